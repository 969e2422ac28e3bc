//! The command except for `main`: a release optimises this crate for size, and `main.rs` for speed.
#![allow(clippy::print_stdout, clippy::print_stderr)] // The only crate that prints.

/// Prints a line to standard error. Unlike `std::eprintln!` it does not panic if the reader of a pipe has closed it: `2>&1 | head`.
macro_rules! eprintln {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}

/// Prints to standard error as `eprintln!` does, without a line break.
macro_rules! eprint {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($argument)*);
    }};
}

mod backend;
mod certificate;
mod cli;
mod commands;
mod confirm;
mod cores;
mod destination;
mod failure;
mod hashes;
mod hub;
mod loading;
mod message_reader;
mod output;
mod own_program;
mod phases;
mod progress;
mod python;
mod rank_processes;
mod ranks;
mod redact;
mod run_files;
mod run_folder;
mod sarif;
mod source_tree;
mod stages;
mod stopping;
mod tensors;
mod tokenizer;
mod transfer;

use std::process::ExitCode;

/// The outcome of a command without an operational error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// No findings: exit 0.
    Good,
    /// Findings or failures: exit 1.
    Bad,
    /// No known problems, but no proof either: exit 3.
    Unclear,
}

/// Parses the arguments, runs the command, and prints its result.
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
