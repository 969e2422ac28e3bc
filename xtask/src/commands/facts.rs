//! `cargo xtask facts`: compares the table of releases with PyPI.

use super::{Command, Usage};
use crate::{cargo, facts, registry};

pub(super) const COMMAND: Command = Command {
    name: "facts",
    arguments: "[--package NAME]... [--sample N] [--write DATE]",
    about: "compares the table of releases with PyPI and shows the differences",
    details: "  --package NAME   only the releases of this package (repeatable)\n  \
              --sample N       only about N releases of the table, spread over it and always the same; no new ones\n  \
              --write DATE     write the table with this date (2026-11-21), including new releases",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let asked = parse(arguments)?;
    match facts::compare(&cargo::workspace_root()?, &asked) {
        Err(error) if registry::is_unreachable(&error) => {
            eprintln!(
                "SKIP, which is no pass: the table of releases was not read again: {error:#}"
            );
            Ok(())
        }
        result => result,
    }
}

fn parse(arguments: &[String]) -> Result<facts::FactsRequest, Usage> {
    let mut asked = facts::FactsRequest::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments.next().cloned().ok_or_else(|| Usage(format!("`{argument}` wants a value")))
        };
        match argument.as_str() {
            "--package" => asked.packages.push(value()?),
            "--sample" => {
                let count = value()?;
                let wrong = |_| Usage(format!("`{count}` is not an integer"));
                asked.sample = Some(count.parse().map_err(wrong)?);
            }
            "--write" => asked.write = Some(value()?),
            other => return Err(Usage(format!("unexpected argument `{other}`"))),
        }
    }
    let part = asked.sample.is_some() || !asked.packages.is_empty();
    match part && asked.write.is_some() {
        true => Err(Usage("--write is for the whole table".to_owned())),
        false => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_arguments() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let asked = parse(&words("--package torch --package triton --sample 3")).unwrap();
        assert_eq!((asked.packages.len(), asked.sample, asked.write), (2, Some(3), None));
        for wrong in ["--sample", "--sample few", "--write 2026-11-21 --sample 2", "torch"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
