//! Parses a command line, and reports errors in the common style: a sentence and a hint.

use super::{Cli, foreign, help};
use crate::failure;
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The whole command as users see it.
pub(crate) fn command() -> Command {
    help::styled(Cli::command())
}

/// Parses the command line.
///
/// # Errors
/// The exit status, if help was requested or the command line is wrong; both are printed before.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let typed = words.clone();
    match foreign::translate(words) {
        Err(option) => {
            let sentence = format!("unexpected argument '{option}' found");
            let hint = foreign::option(&option).unwrap_or_default();
            Err(refuse(&sentence, hint))
        }
        Ok(words) => {
            let matches = command().try_get_matches_from(words);
            let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
            cli.map_err(|error| show(&error, &typed))
        }
    }
}

/// Prints a usage error.
fn refuse(sentence: &str, hint: &str) -> ExitCode {
    let json = std::env::args_os().any(|word| word == "--json");
    failure::print_sentence(sentence, Some(hint), &Output::new(json));
    ExitCode::from(2)
}

fn show(error: &Error, typed: &[OsString]) -> ExitCode {
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
        // Not a user error: help, because no command was given.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        ErrorKind::MissingSubcommand => {
            let (path, command) = typed_command(typed);
            let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
            let names: Vec<&str> = commands.map(Command::get_name).collect();
            let sentence = format!("no command was given: {path} has {}", names.join(", "));
            refuse(&sentence, &hint(error, typed))
        }
        _ => refuse(&sentence(error), &hint(error, typed)),
    }
}

/// The first paragraph of clap's message on one line.
fn sentence(error: &Error) -> String {
    // The standard library's messages for text that is not a number.
    let text = ["invalid digit found in string", "cannot parse integer from empty string"]
        .iter()
        .fold(error.to_string(), |text, words| text.replace(words, "expected a whole number"));
    let mut lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let rest: Vec<&str> = lines.collect();
    let of_values = |line: &str| line.starts_with('[');
    match rest.iter().all(|line| of_values(line)) {
        true => std::iter::once(first.as_str()).chain(rest).collect::<Vec<_>>().join(" "),
        false => format!("{first} {}", rest.join(", ")),
    }
}

/// A hint for the user: the equivalent of another program's option, the nearest name, or how to get help.
fn hint(error: &Error, typed: &[OsString]) -> String {
    let path = command_path(typed);
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let help = format!("`{path} --help` lists its options, with examples");
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let command = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            let known = foreign::command(command).map(str::to_owned);
            let near = near(error, ContextKind::SuggestedSubcommand, command);
            let near = near.map(|name| format!("did you mean '{name}'?"));
            known.or(near).unwrap_or_else(|| format!("`{path} --help` lists the commands"))
        }
        ErrorKind::UnknownArgument => {
            let argument = text(ContextKind::InvalidArg).unwrap_or_default();
            let known = foreign::option(argument).map(str::to_owned);
            let near = near(error, ContextKind::SuggestedArg, argument);
            let near = near.map(|name| format!("did you mean '{name}'?"));
            let remote = remote_command(&path, argument, typed);
            known.or(near).or(remote).unwrap_or(help)
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            let option = text(ContextKind::InvalidArg).unwrap_or_default();
            let known = foreign::value(option, value).map(str::to_owned);
            let near = near(error, ContextKind::SuggestedValue, value);
            let near = near.map(|name| format!("did you mean '{name}'?"));
            known.or(near).unwrap_or(help)
        }
        ErrorKind::MissingRequiredArgument => {
            usage(error).map_or(help, |usage| format!("usage: {usage}"))
        }
        _ => help,
    }
}

/// How to give `remote` the command that was typed without `--`.
fn remote_command(path: &str, argument: &str, typed: &[OsString]) -> Option<String> {
    let at = typed.iter().position(|word| word == argument)?;
    let words = |words: &[OsString]| {
        let quoted = words.iter().map(|word| facts::quote(&word.to_string_lossy()));
        quoted.collect::<Vec<_>>().join(" ")
    };
    (path == "firstlight remote" && !argument.starts_with('-')).then(|| {
        let (before, after) = (words(&typed[1..at]), words(&typed[at..]));
        format!("the command for that machine follows `--`: firstlight {before} -- {after}")
    })
}

/// `firstlight run`: the typed command, as far as it is valid.
fn command_path(typed: &[OsString]) -> String {
    typed_command(typed).0
}

fn typed_command(typed: &[OsString]) -> (String, Command) {
    let mut path = "firstlight".to_owned();
    let mut at = command();
    for word in typed.iter().skip(1) {
        let Some(next) = at.find_subcommand(word).cloned() else { continue };
        path += &format!(" {}", next.get_name());
        at = next;
    }
    (path, at)
}

/// The usage that clap prints with an error.
fn usage(error: &Error) -> Option<String> {
    let text = error.to_string();
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "))?;
    Some(usage.trim().to_owned())
}

/// The suggested name that the user may have meant: clap's similarity matches `bogus` with `logits`.
fn near(error: &Error, suggested: ContextKind, typed: &str) -> Option<String> {
    let names = match error.get(suggested) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => return None,
    };
    // An option is compared without its value and its dashes.
    let typed = typed.split('=').next().unwrap_or_default().trim_start_matches('-');
    let bare: Vec<&str> = names.iter().map(|name| name.trim_start_matches('-')).collect();
    let near = diagnose::nearest_name(typed, &bare)?;
    names.iter().find(|name| name.trim_start_matches('-') == near).cloned()
}
