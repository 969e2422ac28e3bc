//! The project's own commands, run as `cargo xtask COMMAND`: tests, layout checks and cross checks.
//!
//! This crate imports no other crate of the workspace, so that it builds when they do not compile.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output is its result")]

mod bundle;
mod cargo;
mod checks;
mod commands;
mod cross;
mod dist;
mod facts;
mod layout;
mod model_sweep;
mod reality;
mod registry;
mod rust_source;
mod steps;
mod sweep;
mod templates;
mod test_programs;
mod torch;
mod transformers_sweep;
mod wheels;

use commands::{COMMANDS, Usage};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if matches!(name.as_str(), "" | "help" | "--help" | "-h") {
        print!("{}", commands::overview());
        return if name.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprintln!("error: there is no command `{name}`\n\n{}", commands::overview());
        return ExitCode::from(2);
    };
    if rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{}", command.help());
        return ExitCode::SUCCESS;
    }
    match (command.run)(&rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<Usage>() {
                eprint!("\n{}", command.help());
                return ExitCode::from(2);
            }
            ExitCode::FAILURE
        }
    }
}
