//! Translates uv's resolution errors to terms of the plan.

use crate::emit::pyproject::PROJECT;
use facts::CompactCollect;
use facts::InstallPlan;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// Why a plan cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// No versions of all packages fit together.
    #[error(
        "these cannot be installed together: {}{}\nuv: {reason}",
        wants.join(", "),
        places(indexes)
    )]
    Conflict {
        /// The requirements in conflict: `requests==2.28.1`, `requests>=2.32.5`.
        wants: Vec<String>,
        /// Packages in conflict and the address of their index.
        indexes: Vec<(String, String)>,
        /// uv's derivation.
        reason: String,
        /// The remedy.
        hint: String,
    },
    /// The package does not exist.
    #[error("there is no package `{package}` on {url}")]
    Absent {
        /// The package.
        package: String,
        /// The index.
        url: String,
    },
    /// An index did not answer.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// The network error.
        reason: String,
    },
    /// A package without a file that the machine may install.
    #[error("`{package}` {version} has no file for this machine on its index")]
    NoFile {
        /// The package.
        package: String,
        /// Its version.
        version: String,
    },
    /// A folder for uv's input could not be created.
    #[error("cannot write a temporary folder: {0}")]
    Folder(#[source] io::Error),
    /// uv did not start.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// uv's output is not a lock file.
    #[error("uv {version} wrote an invalid lock file: {what}")]
    Answer {
        /// uv's version.
        version: String,
        /// The problem.
        what: String,
    },
    /// uv resolves with an interpreter, and finds none.
    #[error("uv needs Python 3 to resolve packages, and finds none on this machine")]
    NoPython,
    /// Any other message of uv.
    #[error("uv cannot resolve this plan: {said}")]
    Other {
        /// The message.
        said: String,
    },
}

impl LockError {
    /// The remedy.
    pub fn hint(&self) -> &str {
        match self {
            Self::Conflict { hint, .. } => hint,
            Self::Absent { .. } => {
                "check the spelling of its name there; a package of another index has to be added to the plan manually"
            }
            Self::Unreachable { .. } => {
                "check that this machine can reach that URL (proxies are read from HTTPS_PROXY), then lock again"
            }
            Self::NoFile { .. } => "choose another version, or allow a source build of it",
            Self::Folder(_) => "set TMPDIR to a folder with free space",
            Self::Start { .. } => "install uv again",
            Self::Answer { .. } => "use another version of uv",
            Self::NoPython => crate::python::INSTALL,
            Self::Other { .. } => {
                "run the command again with `uv` updated, or lock without the package it names"
            }
        }
    }
}

fn places(indexes: &[(String, String)]) -> String {
    let all = indexes.iter().map(|(package, url)| format!("; `{package}` comes from {url}"));
    all.collect()
}

/// Translates uv's message about a failed resolution.
pub(super) fn translate(stderr: &str, plan: &InstallPlan) -> LockError {
    let said = errors(stderr);
    if let Some(url) =
        word_after(&said, "Failed to fetch: ").or_else(|| word_after(&said, "Failed to download: "))
    {
        let url = url.trim_matches('`').to_owned();
        return LockError::Unreachable { url, reason: last_cause(&said) };
    }
    if said.contains("No interpreter found") {
        return LockError::NoPython;
    }
    if !said.contains("No solution found") {
        return LockError::Other { said };
    }
    let reason: Vec<_> = said
        .lines()
        .filter(|line| !line.contains("No solution found"))
        .map(without_label)
        .collect();
    let reason = without_markers(&reason.join(" "));
    if let Some(package) = absent(&reason) {
        let asked = plan.packages.iter().find(|planned| planned.name == package);
        let index = asked.map(|planned| &planned.index);
        let mut named = plan.indexes.iter().filter(|one| Some(&one.name) == index);
        let url = named.next().or(plan.indexes.first()).map(|index| index.url.clone());
        return LockError::Absent { package: package.to_owned(), url: url.unwrap_or_default() };
    }
    let reason = reason.replace(&format!("{PROJECT} depends on"), "the plan wants");
    let wants = wants(&reason);
    let indexes = indexes(stderr, &wants, plan);
    let hint = hint(&reason, stderr, &indexes, plan);
    LockError::Conflict { wants, indexes, reason, hint }
}

/// The package that no index has, according to uv.
fn absent(reason: &str) -> Option<&str> {
    let (before, _) = reason.split_once(" was not found in ")?;
    before.split_whitespace().last()
}

/// The error with its causes, without the preceding warnings and uv's hints. One of the hints advises searching all
/// indexes for the best version, which this project never does.
fn errors(stderr: &str) -> String {
    let starts = |line: &&str| line.starts_with("error:") || line.contains("No solution found");
    let lines = stderr.lines().map(str::trim).skip_while(|line| !starts(line));
    let lines = lines.take_while(|line| !line.starts_with("hint:"));
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { stderr.trim().to_owned() } else { lines.join("\n") }
}

/// The labels of an error and of its causes, in both layouts of uv. Text without one continues the line before it.
const LABELS: [&str; 7] = ["error: ", "cause: ", "Caused by: ", "╰─▶ ", "├─▶ ", "│ ", "× "];

fn label_of(line: &str) -> Option<&'static str> {
    LABELS.into_iter().find(|label| line.starts_with(label))
}

/// The last cause of an error, whose lines uv wraps at the width of the terminal.
fn last_cause(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let first = lines.iter().rposition(|line| label_of(line).is_some()).unwrap_or(0);
    let words: Vec<&str> = lines[first..].iter().map(|line| without_label(line)).collect();
    words.join(" ")
}

fn without_label(line: &str) -> &str {
    let line = line.trim();
    label_of(line).map_or(line, |label| &line[label.len()..])
}

fn word_after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let rest = &text[text.find(words)? + words.len()..];
    rest.split_whitespace().next()
}

/// A sentence without the markers that uv appends to names: `torch{sys_platform == 'linux'}==2.10.0`.
fn without_markers(reason: &str) -> String {
    let mut parts = reason.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('}').map_or(part, |(_, after)| after))
}

/// Requirements in uv's sentences: a name followed by a comparison.
fn wants(reason: &str) -> Vec<String> {
    let words = reason.split([' ', '\n']).map(|word| word.trim_end_matches([',', '.', ';', ')']));
    let wants: BTreeSet<_> = words
        .filter_map(|word| {
            let name = package_of(word);
            let named = name.starts_with(|c: char| c.is_ascii_alphanumeric())
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
            (named && name.len() < word.len()).then(|| word.to_owned())
        })
        .collect();
    wants.into_iter().collect()
}

/// The package of a requirement.
fn package_of(want: &str) -> &str {
    want.find(['=', '<', '>', '!', '~']).map_or(want, |end| &want[..end])
}

/// The indexes of these requirements' packages: where uv found them, or the plan's index for them.
fn indexes(stderr: &str, wants: &[String], plan: &InstallPlan) -> Vec<(String, String)> {
    let names: BTreeSet<_> = wants.iter().map(|want| package_of(want)).compact_set();
    let found = |name: &str| {
        let words = format!("`{name}` was found on ");
        word_after(stderr, &words).map(|url| url.trim_end_matches(',').to_owned())
    };
    let planned = |name: &str| {
        let package = plan.packages.iter().find(|package| package.name == name)?;
        let index = plan.indexes.iter().find(|index| index.name == package.index)?;
        Some(index.url.clone())
    };
    names
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), found(name).or_else(|| planned(name))?)))
        .collect()
}

fn hint(reason: &str, stderr: &str, indexes: &[(String, String)], plan: &InstallPlan) -> String {
    let no_file = ["no wheels with a matching", "no usable wheels", "no matching Python"];
    if no_file.iter().any(|words| reason.contains(words)) {
        let there = stderr.lines().find_map(|line| line.trim().strip_prefix("hint: Wheels are "));
        let there = there.map(|rest| format!("wheels are {rest}; ")).unwrap_or_default();
        return format!("{there}choose another version, or allow a source build");
    }
    let default = plan.indexes.first().map(|index| &index.url);
    match indexes.iter().find(|(_, url)| Some(url) != default) {
        Some((package, _)) => {
            format!("use another version of `{package}`, or install it from the default index")
        }
        None => "change one of them, or let the planner choose its version".to_owned(),
    }
}

#[cfg(test)]
mod tests;
