//! `cargo xtask sweep`: comparisons with everything that others publish.

use super::{Command, Usage};
use crate::cargo;
use crate::transformers_sweep;

pub(super) const COMMAND: Command = Command {
    name: "sweep",
    arguments: "transformers 5.17|5.24|4.57 [ARGUMENTS]",
    about: "every model class of a release of transformers, with firstlight enabled and without",
    details: "Without ARGUMENTS all classes run, half an hour on two cores, and the results go into\n\
              docs/book/src/transformers-sweep.md. ARGUMENTS are those of crates/python/tests/sweep/sweep.py:\n\
              --only NAME,.. --sample N --cases NAME,.. --out FILE --made",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["transformers", release @ ("5.17" | "5.24" | "4.57"), ref rest @ ..] => {
            transformers_sweep::sweep(&cargo::workspace_root()?, release, rest)
        }
        _ => {
            Err(Usage("wanted `transformers` and a release: 5.17, 5.24 or 4.57".to_owned()).into())
        }
    }
}
