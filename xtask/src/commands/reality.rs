//! `cargo xtask reality`: the doctor held against what importing and the dynamic loader really do.

use super::{Command, Usage};
use crate::{cargo, reality};
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "reality",
    arguments: "[--sample] [--only NAME]... [--untouched] [--firstlight FILE] [--work DIR] [--fix] [--keep] [--again | --known | --rejudge] [--imports-only] [--alone] [--record DATE]",
    about: "builds real Python environments, breaks them, and holds the doctor against what imports",
    details: "  --sample           only the small environments, within a minute; skipped where no registry answers\n  \
              --only NAME        only this environment (`torch-2.8`) or variant (`torch-2.8/no-cudnn`); may stand several times\n  \
              --untouched        the environments as they were installed, without their variants\n  \
              --firstlight FILE  the command that is judged (default: it is built)\n  \
              --work DIR         where environments are built, one at a time (default: below the target folder)\n  \
              --fix              also run `doctor --fix --yes` in each that is broken, and import again\n  \
              --keep             keep the environments; a torch takes 6 GB\n  \
              --again            import again even where the work folder knows the result\n  \
              --known            judge only what the work folder knows the result of, and import nothing\n  \
              --rejudge          import nothing: hold the doctor against what the record of this date says of the imports\n  \
              --imports-only     do not open every library of an untouched environment, which no verdict needs\n  \
              --alone            ask neither pip check nor collect_env nor rigsolve for the record\n  \
              --record DATE      add to the table and the JSON of this date in benchmarks/reality (2026-11-22)",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let asked = parse(arguments)?;
    reality::run(&cargo::workspace_root()?, &asked)
}

fn parse(arguments: &[String]) -> Result<reality::Asked, Usage> {
    let mut asked = reality::Asked::default();
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
    fn arguments() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let asked = parse(&words("--only torch-2.8 --only vllm --fix --work /tmp/x")).unwrap();
        assert_eq!((asked.only.len(), asked.fix, asked.work), (2, true, Some("/tmp/x".into())));
        for wrong in ["--only", "--sample --record 2026-11-22", "torch"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
