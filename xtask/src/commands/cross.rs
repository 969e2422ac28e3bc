//! `cargo xtask cross`: checks other targets.

use super::{Command, Usage};
use crate::cargo;
use crate::cross::{self, Emulated, Request, Source, TARGETS};

pub(super) const COMMAND: Command = Command {
    name: "cross",
    arguments: "[--target TRIPLE]... [--package CRATE]... [--from rustup|debian] [--without-tests] [--allow-missing] [--run-aarch64 [--unit] [FILTER]...]",
    about: "compiles everything for 64-bit Arm Linux and macOS; can run Arm tests under qemu",
    details: "  --target TRIPLE   only this target (repeatable)\n  \
              --package CRATE   only this crate (repeatable; -p for short)\n  \
              --from SOURCE     take the standard library from rustup or from debian only\n  \
              --without-tests   only libraries and programs\n  \
              --allow-missing   a target that cannot be checked here does not fail the command\n  \
              --run-aarch64     instead of checking, run the kernels' tests for aarch64 under qemu: all of them\n                    \
              (slow) or, with --unit, only unit tests; further arguments go to the test programs",
    run,
};

/// The action that the arguments select.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Check(Request),
    Run(Emulated),
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let action = parse(arguments)?;
    let root = cargo::workspace_root()?;
    match action {
        Action::Check(request) => cross::check(&root, &request),
        Action::Run(emulated) => cross::run_tests_emulated(&root, &emulated),
    }
}

fn parse(arguments: &[String]) -> Result<Action, Usage> {
    let mut request = Request {
        targets: Vec::new(),
        packages: Vec::new(),
        source: None,
        with_tests: true,
        allow_missing: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| Usage(format!("{argument} wants a value")));
        match argument.as_str() {
            "--allow-missing" => request.allow_missing = true,
            "--without-tests" => request.with_tests = false,
            "--package" | "-p" => request.packages.push(value()?.clone()),
            "--target" => {
                let triple = value()?;
                let known = TARGETS.iter().find(|target| target.triple == triple);
                request.targets.push(*known.ok_or_else(|| unknown_target(triple))?);
            }
            "--from" => request.source = Some(Source::parse(value()?)?),
            "--run-aarch64" => {
                let mut filter: Vec<String> = arguments.cloned().collect();
                let unit = filter.first().is_some_and(|word| word == "--unit");
                if unit {
                    filter.remove(0);
                }
                let Request { source, packages, .. } = request;
                return Ok(Action::Run(Emulated { source, packages, unit, filter }));
            }
            other => return Err(Usage(format!("unexpected argument `{other}`"))),
        }
    }
    if request.targets.is_empty() {
        request.targets = TARGETS.to_vec();
    }
    Ok(Action::Check(request))
}

fn unknown_target(triple: &str) -> Usage {
    let known: Vec<&str> = TARGETS.iter().map(|target| target.triple).collect();
    Usage(format!("--target wants one of {}, got `{triple}`", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &str, expect: Result<Action, &str>) {
        let words: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        let found = parse(&words);
        assert_eq!(
            found.as_ref().map_err(|usage| usage.0.as_str()),
            expect.as_ref().map_err(|e| *e),
            "{arguments}"
        );
    }

    #[test]
    fn parses_arguments() {
        let request = |targets: &[cross::Target], source, with_tests, allow_missing| {
            Ok(Action::Check(Request {
                targets: targets.to_vec(),
                packages: Vec::new(),
                source,
                with_tests,
                allow_missing,
            }))
        };
        check("", request(TARGETS, None, true, false));
        check("--target aarch64-apple-darwin", request(&TARGETS[1..2], None, true, false));
        check("--without-tests", request(TARGETS, None, false, false));
        check("--from debian --allow-missing", request(TARGETS, Some(Source::Debian), true, true));
        let run = |source, packages: &[&str], unit, filter: &[&str]| {
            let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            Ok(Action::Run(Emulated {
                source,
                packages: owned(packages),
                unit,
                filter: owned(filter),
            }))
        };
        check("--run-aarch64", run(None, &[], false, &[]));
        check("--run-aarch64 --unit", run(None, &[], true, &[]));
        check(
            "--from rustup -p ops-cpu --run-aarch64 neon",
            run(Some(Source::Rustup), &["ops-cpu"], false, &["neon"]),
        );
    }

    #[test]
    fn rejects_invalid_arguments() {
        check("--target", Err("--target wants a value"));
        check("--from conda", Err("--from wants rustup or debian, got `conda`"));
        check("--fast", Err("unexpected argument `--fast`"));
        check(
            "--target riscv",
            Err(
                "--target wants one of aarch64-unknown-linux-gnu, aarch64-apple-darwin, x86_64-apple-darwin, got `riscv`",
            ),
        );
    }
}
