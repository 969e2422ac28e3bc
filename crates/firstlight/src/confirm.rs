//! Asking before something is changed.

use crate::failure::Failure;
use std::io::{BufRead, IsTerminal, Write};

/// Whether the person at the terminal agrees; `yes` agrees beforehand. The question goes to standard error, so that
/// `--json` stays one document.
///
/// # Errors
/// Where nobody can be asked: `hint` says what to do then.
pub(crate) fn agreed(yes: bool, question: &str, hint: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::hinted("there is nobody to ask: standard input is no terminal", hint));
    }
    let mut ask = std::io::stderr();
    write!(ask, "{question} [y/N] ")?;
    ask.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
