//! Compares the table of releases with PyPI, row by row.

use crate::steps::{output, require};
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use toml::{Table, Value};

const TABLE: &str = "crates/knowledge/data/pypi.toml";
const HELPER: &str = "xtask/src/facts/pypi.py";

/// Arguments of `cargo xtask facts`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FactsRequest {
    /// Only these packages; all if empty.
    pub(crate) packages: Vec<String>,
    /// Only about this many releases.
    pub(crate) sample: Option<u32>,
    /// The date of the new table; `None` if it is not written.
    pub(crate) write: Option<String>,
}

/// Prints the differences; fails if there are some and the table is not written.
pub(crate) fn compare(root: &Path, asked: &FactsRequest) -> anyhow::Result<()> {
    require("python3", "--version", "`apt-get install python3`, 3.11 or newer")?;
    let mut helper = Command::new("python3");
    helper.arg(root.join(HELPER)).arg(root.join(TABLE));
    for package in &asked.packages {
        helper.args(["--only", package]);
    }
    if let Some(count) = asked.sample {
        helper.args(["--sample", &count.to_string()]);
    }
    if let Some(date) = &asked.write {
        helper.args(["--date", date]);
    }
    let now = output(&mut helper).context("hint: PyPI must be reachable")?;
    let before = std::fs::read_to_string(root.join(TABLE)).with_context(|| TABLE.to_owned())?;
    let differences = differences(&before, &now)?;
    for line in &differences {
        println!("{line}");
    }
    if asked.write.is_some() {
        std::fs::write(root.join(TABLE), now)?;
        println!("{TABLE} is written: {} differences", differences.len());
        return Ok(());
    }
    if !differences.is_empty() {
        bail!("{TABLE} differs from PyPI\nhint: `cargo xtask facts --write DATE` updates it");
    }
    println!("{TABLE} agrees with PyPI");
    Ok(())
}

/// One line for each new release and each changed value. Releases that `now` does not have are not differences.
fn differences(before: &str, now: &str) -> anyhow::Result<Vec<String>> {
    let (before, now) = (rows(before)?, rows(now)?);
    let mut lines = Vec::new();
    for ((package, version), row) in &now {
        match before.get(&(package.clone(), version.clone())) {
            None => lines.push(format!("new: {package} {version}")),
            Some(old) => {
                let changed = row.iter().filter(|(key, value)| old.get(*key) != Some(value));
                lines.extend(changed.map(|(key, value)| {
                    let was = old.get(key).map_or("nothing".to_owned(), shown);
                    format!("{package} {version}: {key} is {}, was {was}", shown(value))
                }));
            }
        }
    }
    Ok(lines)
}

/// A value, or the length of a long list: `git diff` of the table shows its items.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) if list.len() > 3 => format!("a list of {}", list.len()),
        value => format!("{value:?}"),
    }
}

fn rows(text: &str) -> anyhow::Result<BTreeMap<(String, String), Table>> {
    let table: Table = text.parse().context("the table of releases")?;
    let list = table.get("release").and_then(Value::as_array).context("no [[release]]")?;
    let text = |row: &Table, key: &str| {
        row.get(key).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {key}"))
    };
    list.iter()
        .map(|row| {
            let row = row.as_table().context("a release is a table")?;
            Ok(((text(row, "package")?, text(row, "version")?), row.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_list_new_and_changed_releases_and_ignore_unread_ones() {
        let row = |package: &str, version: &str, python: &str| {
            format!(
                "[[release]]\npackage = \"{package}\"\nversion = \"{version}\"\npython = \"{python}\"\n"
            )
        };
        let before = row("torch", "2.14.1", ">=3.10") + &row("triton", "3.9.0", ">=3.11");
        assert_eq!(differences(&before, &row("torch", "2.14.1", ">=3.10")).unwrap(), [""; 0]);
        let now = row("torch", "2.14.1", ">=3.11") + &row("torch", "2.15.0", ">=3.11");
        let lines = differences(&before, &now).unwrap();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("torch 2.14.1: python is") && lines[0].contains(">=3.10"));
        assert_eq!(lines[1], "new: torch 2.15.0");
        assert!(differences(&before, "release = 1").is_err());
    }
}
