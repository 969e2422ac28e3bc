//! `cargo xtask sweep`: every tokenizer and chat template that a package of the registries brings, compared with their own libraries.

use super::{Command, Usage};
use crate::cargo;
use crate::steps;
use crate::sweep;
use anyhow::bail;
use std::ffi::OsString;

pub(super) const COMMAND: Command = Command {
    name: "sweep",
    arguments: "tokenizers|templates [TEXTS]",
    about: "published tokenizers and chat templates, compared with tokenizers and transformers",
    details: "tokenizers  TEXTS random texts each (3,000), encoded and streamed token by token, equal to the package `tokenizers`\n\
              templates   conversations rendered as transformers' apply_chat_template does\n\n\
              The packages are those of xtask/sweeps/packages.txt: 320 MB to download, kept below target/.",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (test, texts) = match words[..] {
        ["tokenizers"] => ("tokenizers_live", "3000"),
        ["tokenizers", texts] if texts.parse::<u32>().is_ok_and(|texts| texts > 0) => {
            ("tokenizers_live", texts)
        }
        ["templates"] => ("templates_live", "0"),
        _ => return Err(Usage("wanted `tokenizers` or `templates`".to_owned()).into()),
    };
    let root = cargo::workspace_root()?;
    let target = cargo::target_directory(&root)?;
    let Some(home) = sweep::prepare(&target, false)? else {
        bail!("the packages cannot be downloaded: a registry is not reachable from here");
    };
    let mut variables: Vec<(&str, OsString)> = vec![("FIRSTLIGHT_TEXTS", texts.into())];
    if test == "templates_live" {
        let Some(templates) = crate::templates::prepare(&target)? else {
            bail!("transformers cannot be downloaded: the registry is not reachable from here");
        };
        variables.push(("FIRSTLIGHT_TEMPLATES", templates.into()));
        variables.push(("FIRSTLIGHT_MORE_TEMPLATES", home.join("templates").into()));
    } else {
        variables.push(("FIRSTLIGHT_TOKENIZERS", home.into()));
    }
    // With the features that tests of the whole workspace are built with.
    let words = ["test", "--locked", "--workspace", "--test", test, "--", "--nocapture"];
    steps::run(cargo::command(&root, &words).envs(variables))
}
