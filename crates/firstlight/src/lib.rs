//! The command, all but its first call: a release makes what is here small, and optimises the whole program at the level of `main.rs`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // The only room that prints.

mod backend;
mod certificate;
mod cli;
mod commands;
mod confirm;
mod cores;
mod crew;
mod destination;
mod failure;
mod hashes;
mod hub;
mod loading;
mod output;
mod own_program;
mod phases;
mod progress;
mod python;
mod ranks;
mod redact;
mod run_files;
mod run_folder;
mod sarif;
mod source_tree;
mod stages;
mod stopping;
mod telling;
mod tensors;
mod tokenizer;
mod transfer;

use std::process::ExitCode;

/// How a command that could do its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing is wrong: exit 0.
    Good,
    /// Findings or failures: exit 1.
    Bad,
    /// Nothing is known to be wrong, and nothing can be told: exit 3.
    Unclear,
}

/// Reads the arguments, does what they say, and prints what comes of it.
pub fn main() -> ExitCode {
    phases::begin();
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let output = output::Output::new(cli.json);
    match commands::run(&cli.command, &output) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Ok(Outcome::Unclear) => ExitCode::from(3),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::print(&error, &output);
            ExitCode::from(2)
        }
    }
}
