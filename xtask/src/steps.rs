//! Named and timed steps, and the programs that they run.

use anyhow::{Context, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs steps in order, and prints their names and durations.
pub(crate) struct Steps {
    taken: Vec<(String, Duration)>,
}

impl Steps {
    /// Starts without steps.
    pub(crate) fn new() -> Self {
        Self { taken: Vec::new() }
    }

    /// Runs one step; its error has the step's name.
    pub(crate) fn run(
        &mut self,
        name: &str,
        step: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        eprintln!("== {name}");
        let start = Instant::now();
        let result = step().with_context(|| format!("{name} failed"));
        self.taken.push((name.to_owned(), start.elapsed()));
        result
    }

    /// Prints the time of each step.
    pub(crate) fn finish(&self) {
        for (name, duration) in &self.taken {
            eprintln!("{:>8.1} s  {name}", duration.as_secs_f64());
        }
    }
}

/// Whether a program starts and succeeds with `argument`.
pub(crate) fn is_available(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Fails with a hint if a program is missing.
pub(crate) fn require(program: &str, argument: &str, hint: &str) -> anyhow::Result<()> {
    if !is_available(program, argument) {
        bail!("`{program}` was not found\nhint: {hint}");
    }
    Ok(())
}

/// Runs a command with inherited output and waits for it; the error has the command line.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("could not start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs a command and returns its standard output; the error has its standard error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("could not start `{shown}`"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}", output.status, message.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed no UTF-8"))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_the_name_of_the_failed_step() {
        let mut steps = Steps::new();
        steps.run("one", || Ok(())).unwrap();
        let error = steps.run("two", || bail!("cause")).unwrap_err();
        assert_eq!(format!("{error:#}"), "two failed: cause");
        assert_eq!(steps.taken.len(), 2);
    }

    #[test]
    fn missing_program_is_reported_with_its_hint() {
        let error = require("no-such-program-here", "--version", "install it").unwrap_err();
        assert_eq!(error.to_string(), "`no-such-program-here` was not found\nhint: install it");
    }

    #[test]
    fn error_of_a_failed_command_has_its_command_line() {
        let error = run(Command::new("false").arg("x")).unwrap_err();
        assert!(error.to_string().starts_with("`false x` ended with"), "{error}");
        let error = output(Command::new("sh").args(["-c", "echo gone >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().ends_with(": gone"), "{error}");
    }
}
