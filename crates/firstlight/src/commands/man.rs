//! `firstlight man`.

use crate::Outcome;
use crate::cli::{Man, command};
use crate::destination;
use crate::output::Output;
use crate::run_folder::write_atomically;
use anyhow::Context;
use clap::Command;
use clap_mangen::Man as Page;

pub(super) fn run(arguments: &Man, output: &Output) -> anyhow::Result<Outcome> {
    let mut command = command();
    command.build();
    let Some(folder) = &arguments.output else {
        let page = page(&command)?;
        let document = serde_json::json!({ "schema": facts::SCHEMA, "page": page });
        output.either(&document, |_| page)?;
        return Ok(Outcome::Good);
    };
    destination::folder(folder)?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut written = Vec::new();
    let mut pages = vec![&command];
    with_pages(&command, &mut pages);
    for command in pages {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let path = folder.join(format!("{name}.1"));
        write_atomically(&path, page(command)?.as_bytes())?;
        written.push(path.display().to_string());
    }
    let document = serde_json::json!({ "schema": facts::SCHEMA, "pages": written });
    output.either(&document, |_| written.join("\n"))?;
    Ok(Outcome::Good)
}

/// The subcommands with a man page: those in the help, and two that the help omits for brevity.
fn with_pages<'a>(command: &'a Command, pages: &mut Vec<&'a Command>) {
    for sub in command.get_subcommands() {
        let is_documented = !sub.is_hide_set() || matches!(sub.get_name(), "op" | "man");
        if is_documented && sub.get_name() != "help" {
            pages.push(sub);
            with_pages(sub, pages);
        }
    }
}

fn page(command: &Command) -> anyhow::Result<String> {
    let mut page = Vec::new();
    Page::new(command.clone()).render(&mut page)?;
    Ok(String::from_utf8(page)?)
}
