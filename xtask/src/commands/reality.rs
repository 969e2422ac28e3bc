//! `cargo xtask reality`: compares the doctor's findings with the results of importing and of the dynamic loader.

use super::{Command, Usage};
use crate::{cargo, reality};
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "reality",
    arguments: "[--sample] [--only NAME]... [--untouched] [--firstlight FILE] [--work DIR] [--fix] [--keep] [--again | --known | --rejudge] [--imports-only] [--alone] [--record DATE]",
    about: "builds real Python environments, breaks them, and compares the doctor's findings with imports",
    details: "  --sample           only the small environments, within a minute; skipped if no registry answers\n  \
              --only NAME        only this environment (`torch-2.8`) or variant (`torch-2.8/no-cudnn`); repeatable\n  \
              --untouched        only the environments as installed, without their variants\n  \
              --firstlight FILE  the firstlight program to judge (default: build it)\n  \
              --work DIR         the folder in which environments are built, one at a time (default: below the target folder)\n  \
              --fix              also run `doctor --fix --yes` in each broken environment, and import again\n  \
              --keep             keep the environments; one with torch takes 6 GB\n  \
              --again            import again even if the work folder has the result\n  \
              --known            judge only environments whose result is in the work folder, and import nothing\n  \
              --rejudge          import nothing: compare the doctor's findings with the imports in the record of this date\n  \
              --imports-only     do not open every library of an untouched environment; verdicts do not depend on it\n  \
              --alone            do not run pip check, collect_env and rigsolve for the record\n  \
              --record DATE      add to the table and the JSON of this date in benchmarks/reality (2026-11-22)",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let asked = parse(arguments)?;
    reality::run(&cargo::workspace_root()?, &asked)
}

fn parse(arguments: &[String]) -> Result<reality::RealityRequest, Usage> {
    let mut asked = reality::RealityRequest::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments.next().cloned().ok_or_else(|| Usage(format!("`{argument}` wants a value")))
        };
        match argument.as_str() {
            "--sample" => asked.sample = true,
            "--untouched" => asked.untouched = true,
            "--fix" => asked.fix = true,
            "--keep" => asked.keep = true,
            "--again" => asked.again = true,
            "--rejudge" => asked.rejudge = true,
            "--known" => asked.known = true,
            "--imports-only" => asked.imports_only = true,
            "--alone" => asked.alone = true,
            "--only" => asked.only.push(value()?),
            "--firstlight" => asked.firstlight = Some(PathBuf::from(value()?)),
            "--work" => asked.work = Some(PathBuf::from(value()?)),
            "--record" => asked.record = Some(value()?),
            other => return Err(Usage(format!("unexpected argument `{other}`"))),
        }
    }
    match asked.record.is_some() && asked.sample {
        true => Err(Usage("--record is for more than the sample".to_owned())),
        false => Ok(asked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_arguments() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let asked = parse(&words("--only torch-2.8 --only vllm --fix --work /tmp/x")).unwrap();
        assert_eq!((asked.only.len(), asked.fix, asked.work), (2, true, Some("/tmp/x".into())));
        for wrong in ["--only", "--sample --record 2026-11-22", "torch"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
