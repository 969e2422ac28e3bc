//! From the words of a command line to arguments, and what is said of a wrong one.

use super::{Cli, help};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};
use std::io::Write;
use std::process::ExitCode;

/// The whole command as people see it.
pub(crate) fn command() -> Command {
    help::dressed(Cli::command())
}

/// Reads the command line.
///
/// # Errors
/// The exit status, when help was asked for or the line is wrong; both are said by then.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    let matches = command().try_get_matches();
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(say)
}

fn say(mut error: Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(closed) if closed.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(full) => {
                let _ =
                    writeln!(std::io::stderr(), "error: cannot write to standard output: {full}");
                ExitCode::from(2)
            }
        },
        _ => {
            keep_near(&mut error);
            if std::env::args_os().any(|word| word == "--json") {
                let text = error.to_string();
                let (what, hint) = text.split_once("\n\n").unwrap_or((&text, ""));
                let what = what.trim_start_matches("error: ");
                let document = serde_json::json!({ "schema": facts::SCHEMA, "error": what, "hint": hint.trim() });
                // The sentence below is for people; where standard output is gone, the exit status still tells.
                let _ = writeln!(std::io::stdout(), "{document}");
            }
            let _ = error.print();
            ExitCode::from(2)
        }
    }
}

/// Only names that the typed one may have been meant for are suggested: clap's own measure takes `bogus` for `logits`.
fn keep_near(error: &mut Error) {
    for (typed, suggested) in [
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ] {
        let Some(ContextValue::String(typed)) = error.get(typed).cloned() else { continue };
        let names = match error.get(suggested) {
            Some(ContextValue::String(name)) => vec![name.clone()],
            Some(ContextValue::Strings(names)) => names.clone(),
            _ => continue,
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // An option is compared without its value and its dashes.
        let typed = typed.split('=').next().unwrap_or_default().trim_start_matches('-');
        let bare: Vec<&str> = names.iter().map(|name| name.trim_start_matches('-')).collect();
        let near = diagnose::nearest_name(typed, &bare);
        match near.and_then(|near| names.iter().find(|name| name.trim_start_matches('-') == near)) {
            Some(name) if matches!(suggested, ContextKind::SuggestedSubcommand) => {
                let name = ContextValue::Strings(vec![(*name).to_owned()]);
                error.insert(suggested, name);
            }
            Some(_) => {}
            None => {
                error.remove(suggested);
            }
        }
    }
}
