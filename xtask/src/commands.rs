//! The commands. A new one is a file under `commands/` and a line in [`COMMANDS`].

mod bundle;
mod check;
mod cross;
mod facts;
mod reality;
mod sweep;
mod test;
mod tidy;
mod wheel;
mod words;

use std::fmt;

/// Every command, in the order of the overview.
pub(crate) const COMMANDS: &[Command] = &[
    test::COMMAND,
    check::COMMAND,
    tidy::COMMAND,
    words::COMMAND,
    cross::COMMAND,
    wheel::COMMAND,
    bundle::COMMAND,
    facts::COMMAND,
    reality::COMMAND,
    sweep::COMMAND,
];

/// One command of `cargo xtask`.
pub(crate) struct Command {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The usage of its arguments, which the check `workflows` compares with calls.
    pub(crate) arguments: &'static str,
    /// One line for the overview.
    pub(crate) about: &'static str,
    /// The help of each argument, one line each.
    pub(crate) details: &'static str,
    /// Runs the command; an error is a failure.
    pub(crate) run: fn(&[String]) -> anyhow::Result<()>,
}

impl Command {
    /// The text of `cargo xtask NAME --help`.
    pub(crate) fn help(&self) -> String {
        let mut help = format!("usage: cargo xtask {} {}", self.name, self.arguments);
        help.truncate(help.trim_end().len());
        help.push_str(&format!("\n\n{}\n", self.about));
        if !self.details.is_empty() {
            help.push_str(&format!("\n{}\n", self.details));
        }
        help
    }
}

/// The text of `cargo xtask help`.
pub(crate) fn overview() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n\n");
    for command in COMMANDS {
        text.push_str(&format!("  {:<8}{}\n", command.name, command.about));
    }
    text
}

/// A usage error: exit status 2, while a failure exits with 1.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Refuses arguments, for commands that take none.
fn no_arguments(arguments: &[String]) -> anyhow::Result<()> {
    match arguments.first() {
        None => Ok(()),
        Some(argument) => Err(Usage(format!("unexpected argument `{argument}`")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_described() {
        for (index, command) in COMMANDS.iter().enumerate() {
            assert!(COMMANDS[..index].iter().all(|other| other.name != command.name));
            assert!(!command.about.is_empty() && !command.about.ends_with('.'), "{}", command.name);
            assert!(overview().contains(command.about));
        }
    }

    #[test]
    fn unexpected_argument_is_a_usage_error() {
        let error = no_arguments(&["--fast".to_owned()]).unwrap_err();
        assert!(error.is::<Usage>());
        assert_eq!(error.to_string(), "unexpected argument `--fast`");
    }
}
