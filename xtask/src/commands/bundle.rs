//! `cargo xtask bundle`: the CUDA kernels that are compiled ahead.

use super::{Command, Usage};
use crate::bundle::{self, Asked};
use crate::cargo;

pub(super) const COMMAND: Command = Command {
    name: "bundle",
    arguments: "[--check [--sample N]]",
    about: "compiles the CUDA kernels that are built in, without a GPU, and looks at what came out",
    details: "  --check      change nothing: compile all of them and compare with the committed bundle, byte by byte\n  \
              --sample N   of the committed bundle, compile only about N kernels again: spread over it, the same ones\n               \
              until a source changes. The key of each kernel is held against its source all the same",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    bundle::make(&cargo::workspace_root()?, parse(arguments)?)
}

fn parse(arguments: &[String]) -> Result<Asked, Usage> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => Ok(Asked::Make),
        ["--check"] => Ok(Asked::Check),
        ["--check", "--sample", count] => match count.parse() {
            Ok(count) if count > 0 => Ok(Asked::Sample(count)),
            _ => Err(Usage(format!("`{count}` is no number of kernels"))),
        },
        _ => Err(Usage("wanted nothing, --check or --check --sample N".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let parse = |text: &str| {
            parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).ok()
        };
        assert_eq!(parse(""), Some(Asked::Make));
        assert_eq!(parse("--check"), Some(Asked::Check));
        assert_eq!(parse("--check --sample 100"), Some(Asked::Sample(100)));
        for wrong in ["--sample 100", "--check --sample", "--check --sample 0", "--check all"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
