//! `cargo xtask bundle`: compiles the built-in CUDA kernels.

use super::{Command, Usage};
use crate::bundle::{self, BundleMode};
use crate::cargo;
use std::path::Path;

pub(super) const COMMAND: Command = Command {
    name: "bundle",
    arguments: "[--check [--sample N]] [--program FILE]",
    about: "compiles the built-in CUDA kernels without a GPU and checks the binaries",
    details: "  --check      change nothing: compile all kernels and compare with the committed bundle, byte by byte\n  \
              --sample N   compile only about N kernels of the committed bundle, spread over it and the same ones\n               \
              until a source changes; the hash of every source is compared\n  \
              --program F  the example `bundle`, already built from these sources",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let (asked, program) = parse(arguments)?;
    bundle::make(&cargo::workspace_root()?, asked, program)
}

fn parse(arguments: &[String]) -> Result<(BundleMode, Option<&Path>), Usage> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (words, program) = match words.as_slice() {
        [words @ .., "--program", file] => (words, Some(Path::new(*file))),
        words => (words, None),
    };
    let asked = match words {
        [] => BundleMode::Make,
        ["--check"] => BundleMode::Check,
        ["--check", "--sample", count] => match count.parse() {
            Ok(count) if count > 0 => BundleMode::Sample(count),
            _ => return Err(Usage(format!("`{count}` is not a positive integer"))),
        },
        _ => {
            let what = "wanted no option, --check or --check --sample N, each with or without --program FILE at the end";
            return Err(Usage(what.to_owned()));
        }
    };
    Ok((asked, program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_arguments() {
        let check = |text: &str, expect: Option<(BundleMode, Option<&str>)>| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            assert_eq!(
                parse(&words).ok(),
                expect.map(|(asked, file)| (asked, file.map(Path::new))),
                "{text}"
            );
        };
        check("", Some((BundleMode::Make, None)));
        check("--check", Some((BundleMode::Check, None)));
        check("--check --sample 100", Some((BundleMode::Sample(100), None)));
        check("--check --program a", Some((BundleMode::Check, Some("a"))));
        for wrong in
            ["--sample 100", "--check --sample", "--check --sample 0", "--check all", "--program"]
        {
            check(wrong, None);
        }
    }
}
