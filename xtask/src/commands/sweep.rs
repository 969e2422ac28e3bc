//! `cargo xtask sweep`: compares tokenizers, chat templates and models with the libraries that publish them.

use super::{Command, Usage};
use crate::cargo;
use crate::model_sweep;
use crate::steps;
use crate::sweep;
use crate::transformers_sweep;
use anyhow::bail;
use std::ffi::OsString;

pub(super) const COMMAND: Command = Command {
    name: "sweep",
    arguments: "tokenizers [TEXTS] | templates | models [ARGUMENTS] | transformers 5.17|5.24|4.57 [ARGUMENTS]",
    about: "published tokenizers, chat templates and model classes, compared with their own libraries",
    details: "tokenizers    TEXTS random texts each (3,000), encoded and streamed token by token, equal to the package `tokenizers`\n\
              templates     conversations rendered as transformers' apply_chat_template does\n\
              models        every causal language model class of transformers: logits equal, or a refusal that names the reason\n\
              transformers  every model class of a release, with firstlight enabled and without\n\n\
              The packages of the first two are those of xtask/sweeps/packages.txt: 320 MB to download, kept below target/.\n\
              Without ARGUMENTS all classes of transformers run, half an hour on two cores, and the results go into\n\
              docs/book/src/transformers-sweep.md. ARGUMENTS are those of crates/python/tests/sweep/sweep.py:\n\
              --only NAME,.. --sample N --cases NAME,.. --out FILE --resume --made\n\
              `models` without ARGUMENTS writes docs/book/src/model-classes.md; its ARGUMENTS are those of\n\
              crates/models/tests/sweep/models.py: --only NAME,.. --fields --sample --out FILE --table FILE",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["tokenizers"] => published("tokenizers_live", "3000"),
        ["tokenizers", texts] if texts.parse::<u32>().is_ok_and(|texts| texts > 0) => {
            published("tokenizers_live", texts)
        }
        ["templates"] => published("templates_live", "0"),
        ["models", ref rest @ ..] => model_sweep::sweep(&cargo::workspace_root()?, rest),
        ["transformers", release @ ("5.17" | "5.24" | "4.57"), ref rest @ ..] => {
            transformers_sweep::sweep(&cargo::workspace_root()?, release, rest)
        }
        _ => Err(Usage(
            "wanted `tokenizers`, `templates`, `models`, or `transformers` and a release: 5.17, 5.24 or 4.57"
                .to_owned(),
        )
        .into()),
    }
}

/// Runs a test on every tokenizer or template of the listed packages.
fn published(test: &str, texts: &str) -> anyhow::Result<()> {
    let root = cargo::workspace_root()?;
    let target = cargo::target_directory(&root)?;
    let Some(home) = sweep::prepare(&target, false)? else {
        bail!("`npm` was not found\nhint: `apt-get install npm`");
    };
    let mut variables: Vec<(&str, OsString)> = vec![("FIRSTLIGHT_TEXTS", texts.into())];
    if test == "templates_live" {
        let templates = crate::templates::prepare(&target)?;
        variables.push(("FIRSTLIGHT_TEMPLATES", templates.into()));
        variables.push(("FIRSTLIGHT_MORE_TEMPLATES", home.join("templates").into()));
    } else {
        variables.push(("FIRSTLIGHT_TOKENIZERS", home.into()));
    }
    // Builds the whole workspace, so that the features are those of the other tests.
    let words = ["test", "--locked", "--workspace", "--test", test, "--", "--nocapture"];
    steps::run(cargo::command(&root, &words).envs(variables))
}
