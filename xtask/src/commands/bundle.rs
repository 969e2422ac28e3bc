//! `cargo xtask bundle`: the CUDA kernels that are compiled ahead.

use super::{Command, Usage};
use crate::bundle::{self, Asked};
use crate::cargo;
use std::path::Path;

pub(super) const COMMAND: Command = Command {
    name: "bundle",
    arguments: "[--check [--sample N]] [--program FILE]",
    about: "compiles the CUDA kernels that are built in, without a GPU, and looks at what came out",
    details: "  --check      change nothing: compile all of them and compare with the committed bundle, byte by byte\n  \
              --sample N   of the committed bundle, compile only about N kernels again: spread over it, the same ones\n               \
              until a source changes. The key of each kernel is held against its source all the same\n  \
              --program F  the example `bundle` of these sources, which was built already",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (asked, program) = parse(arguments)?;
    bundle::make(&cargo::workspace_root()?, asked, program)
}

fn parse(arguments: &[String]) -> Result<(Asked, Option<&Path>), Usage> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (words, program) = match words.as_slice() {
        [words @ .., "--program", file] => (words, Some(Path::new(*file))),
        words => (words, None),
    };
    let asked = match words {
        [] => Asked::Make,
        ["--check"] => Asked::Check,
        ["--check", "--sample", count] => match count.parse() {
            Ok(count) if count > 0 => Asked::Sample(count),
            _ => return Err(Usage(format!("`{count}` is no number of kernels"))),
        },
        _ => {
            let what = "wanted nothing, --check or --check --sample N, and then --program FILE";
            return Err(Usage(what.to_owned()));
        }
    };
    Ok((asked, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let check = |text: &str, expect: Option<(Asked, Option<&str>)>| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            assert_eq!(
                parse(&words).ok(),
                expect.map(|(asked, file)| (asked, file.map(Path::new))),
                "{text}"
            );
        };
        check("", Some((Asked::Make, None)));
        check("--check", Some((Asked::Check, None)));
        check("--check --sample 100", Some((Asked::Sample(100), None)));
        check("--check --program a", Some((Asked::Check, Some("a"))));
        for wrong in
            ["--sample 100", "--check --sample", "--check --sample 0", "--check all", "--program"]
        {
            check(wrong, None);
        }
    }
}
