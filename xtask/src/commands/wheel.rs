//! `cargo xtask wheel`: builds wheels and archives for users without Rust.

use super::{Command, Usage};
use crate::cargo;
use crate::cross::Source;
use crate::dist::{self, PLATFORMS, Request};
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "wheel",
    arguments: "[--target TRIPLE]... [--from rustup|debian] [--program FILE] [-o DIR] [--prove]",
    about: "Python wheels and archives for Linux and macOS, with checksums",
    details: "  --target TRIPLE   only this platform, an error if it cannot be built (repeatable); `x86_64` and `aarch64` are Linux\n  \
              --from SOURCE     take another platform's standard library from rustup or from debian only\n  \
              --program FILE    pack this program of this machine instead of building one; for tests only\n  \
              -o DIR            the folder to write to (default: target/packages)\n  \
              --prove           install and run each wheel, under qemu for another platform; run the steps of action.yml and Dockerfile\n\n\
              Programs for Linux are linked by zig, from the Python registry, so that they run with glibc 2.28 or newer.",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let request = parse(arguments)?;
    dist::make(&cargo::workspace_root()?, &request)
}

fn parse(arguments: &[String]) -> Result<Request, Usage> {
    let mut request = Request::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| Usage(format!("{argument} wants a value")));
        match argument.as_str() {
            "--prove" => request.prove = true,
            "--program" => request.program = Some(PathBuf::from(value()?)),
            "-o" => request.output = Some(PathBuf::from(value()?)),
            "--from" => request.source = Some(Source::parse(value()?)?),
            "--target" => {
                let triple = value()?;
                let known = PLATFORMS.iter().find(|platform| platform.is(triple));
                request.targets.push(*known.ok_or_else(|| unknown(triple))?);
            }
            other if PLATFORMS.iter().any(|platform| platform.is(other)) => {
                return Err(Usage(format!("a platform is named by --target: `--target {other}`")));
            }
            other => return Err(Usage(format!("unexpected argument `{other}`"))),
        }
    }
    if request.program.is_some() && !request.targets.is_empty() {
        return Err(Usage("--program is for this machine: leave out --target".to_owned()));
    }
    Ok(request)
}

fn unknown(triple: &str) -> Usage {
    let known: Vec<&str> = PLATFORMS.iter().map(|platform| platform.triple).collect();
    Usage(format!("--target wants one of {}, got `{triple}`", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|usage| usage.0)
    }

    #[test]
    fn parses_arguments() {
        assert_eq!(parsed(""), Ok(Request::default()));
        let asked = parsed("--target aarch64-unknown-linux-gnu --from debian -o out --prove");
        let expect = Request {
            targets: vec![PLATFORMS[1]],
            source: Some(Source::Debian),
            output: Some("out".into()),
            prove: true,
            program: None,
        };
        assert_eq!(asked, Ok(expect));
        let linux = Request { targets: PLATFORMS[..2].to_vec(), ..Request::default() };
        assert_eq!(parsed("--target x86_64 --target aarch64"), Ok(linux));
        for (line, words) in [
            ("--target", "--target wants a value"),
            (
                "--target riscv64gc-unknown-linux-gnu",
                "--target wants one of x86_64-unknown-linux-gnu, ",
            ),
            ("--from conda", "--from wants rustup or debian, got `conda`"),
            ("--program a --target aarch64-apple-darwin", "leave out --target"),
            ("dist", "unexpected argument `dist`"),
            ("x86_64", "a platform is named by --target: `--target x86_64`"),
            ("--prove aarch64-apple-darwin", "`--target aarch64-apple-darwin`"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
