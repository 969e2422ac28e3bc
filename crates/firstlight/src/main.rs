//! `firstlight`: from a bare GPU machine to the first verified token.
#![allow(clippy::print_stdout, clippy::print_stderr)] // The only room that prints.

mod cli;
mod commands;
mod confirm;
mod failure;
mod hub;
mod loading;
mod output;
mod own_program;
mod progress;
mod python;
mod redact;
mod run_files;
mod run_folder;
mod source_tree;
mod tensors;

use clap::Parser;
use std::process::ExitCode;

/// How a command that could do its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Nothing is wrong: exit 0.
    Good,
    /// Findings or failures: exit 1.
    Bad,
}

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let output = output::Output::new(cli.json);
    match commands::run(&cli.command, &output) {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::print(&error, &output);
            ExitCode::from(2)
        }
    }
}
