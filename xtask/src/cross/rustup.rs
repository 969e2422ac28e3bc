//! Targets that rustup installed.

use crate::steps;
use anyhow::{Context, bail};
use std::process::Command;

/// Succeeds if the active toolchain has the target's standard library; the error says what is missing. Installing a target
/// is left to the user.
pub(super) fn has_target(triple: &str) -> anyhow::Result<()> {
    let listed = steps::output(Command::new("rustup").args(["target", "list", "--installed"]))
        .context("could not list rustup's targets")?;
    if !lists(&listed, triple) {
        bail!("rustup has no {triple} (`rustup target add {triple}` installs it)");
    }
    Ok(())
}

fn lists(listed: &str, triple: &str) -> bool {
    listed.lines().any(|line| line.trim() == triple)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_whole_line() {
        let listed = "aarch64-unknown-linux-gnu\nx86_64-unknown-linux-gnu\n";
        assert!(lists(listed, "aarch64-unknown-linux-gnu"));
        assert!(!lists(listed, "aarch64-unknown-linux"));
        assert!(!lists(listed, "aarch64-apple-darwin"));
    }
}
