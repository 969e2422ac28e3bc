//! The layout checks. A new one is a file under `checks/` and a line in [`CHECKS`].

mod book;
mod cuda_users;
mod dependency_reasons;
mod doc_code;
mod edges;
mod file_length;
mod links;
mod lists;
mod machine_paths;
mod module_cycles;
mod modules;
mod one_version;
mod pure_crates;
mod releases;
mod runs;
mod signatures;
mod stubs;
mod unsafe_code;
mod words;
mod workflows;

use crate::layout::Layout;
use anyhow::bail;
pub(crate) use links::{LinkTarget, path_of};
use std::fmt;
use std::path::Path;
pub(crate) use words::print_findings as print_words;

/// Every check, in the order of execution.
const CHECKS: &[Check] = &[
    edges::CHECK,
    file_length::CHECK,
    modules::CHECK,
    lists::CHECK,
    machine_paths::CHECK,
    dependency_reasons::CHECK,
    one_version::CHECK,
    cuda_users::CHECK,
    module_cycles::CHECK,
    unsafe_code::CHECK,
    doc_code::CHECK,
    stubs::CHECK,
    signatures::CHECK,
    pure_crates::CHECK,
    links::CHECK,
    releases::CHECK,
    runs::CHECK,
    workflows::CHECK,
    book::CHECK,
    words::CHECK,
];

/// One check: a pure function from the layout to its problems.
struct Check {
    /// Its name in the output.
    name: &'static str,
    /// The property that it checks, in one line.
    promise: &'static str,
    /// The remedy for its problems.
    hint: &'static str,
    /// Finds the problems.
    find: fn(&Layout) -> Vec<Problem>,
}

/// One violation of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    path: String,
    line: Option<usize>,
    what: String,
}

impl Problem {
    fn file(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: None, what: what.into() }
    }

    fn line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: Some(line), what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(formatter, "{}:{line}: {}", self.path, self.what),
            None => write!(formatter, "{}: {}", self.path, self.what),
        }
    }
}

/// Runs every check and prints every problem; the error has their number.
pub(crate) fn run_all(root: &Path) -> anyhow::Result<()> {
    let layout = Layout::read(root)?;
    let mut count = 0;
    for check in CHECKS {
        let problems = (check.find)(&layout);
        println!("{:<20}{}", check.name, if problems.is_empty() { "ok" } else { "FAILED" });
        if !problems.is_empty() {
            println!("  wanted: {}", check.promise);
            for problem in &problems {
                println!("  {problem}");
            }
            println!("  hint: {}", check.hint);
        }
        count += problems.len();
    }
    if count > 0 {
        bail!("{count} layout problems");
    }
    println!("{} files, {} checks, no problem", layout.files.len(), CHECKS.len());
    Ok(())
}

/// The links of a layout's documents that lead nowhere.
pub(crate) fn dead_links(layout: &Layout) -> Vec<String> {
    (links::CHECK.find)(layout).iter().map(ToString::to_string).collect()
}

/// Runs a check on a layout and compares its problems with the expected lines.
#[cfg(test)]
fn check(check: &Check, layout: &Layout, expect: &[&str]) {
    let found: Vec<String> = (check.find)(layout).iter().map(ToString::to_string).collect();
    assert_eq!(found, expect, "{}", check.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_names_are_unique_and_have_a_promise_and_a_hint() {
        for (index, check) in CHECKS.iter().enumerate() {
            assert!(CHECKS[..index].iter().all(|other| other.name != check.name));
            for text in [check.promise, check.hint] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}", check.name);
            }
        }
    }

    #[test]
    fn empty_repository_fails_only_checks_of_required_files() {
        let layout = Layout::default();
        let failing: Vec<&str> = CHECKS
            .iter()
            .filter(|check| !(check.find)(&layout).is_empty())
            .map(|check| check.name)
            .collect();
        assert_eq!(failing, ["edges"]);
    }
}
