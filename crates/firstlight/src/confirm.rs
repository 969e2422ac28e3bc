//! Asks for confirmation.

use crate::failure::Failure;
use std::io::{BufRead, IsTerminal, Write};

/// Whether the user agrees at the terminal; `yes` agrees in advance. The question goes to standard error, so that
/// `--json` stays one document.
///
/// # Errors
/// Standard input is not a terminal; `hint` is the advice for that case.
pub(crate) fn agreed(yes: bool, question: &str, hint: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::hinted(
            "confirmation needed, and standard input is not a terminal",
            hint,
        ));
    }
    let mut ask = std::io::stderr();
    write!(ask, "{question} [y/N] ")?;
    ask.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
