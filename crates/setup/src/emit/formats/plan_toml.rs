//! `plan.toml`, the plan itself. Reading and writing it again gives the same bytes.

use super::Format;
use crate::emit::{EmitError, has_hashes};
use facts::{InstallPlan, PlannedPackage, SCHEMA};

pub(super) const FORMAT: Format = Format {
    name: "plan.toml",
    about: "the whole plan with its reasons, which `firstlight apply` installs.",
    write,
};

/// The last line. A list truncated between two entries would otherwise be a valid shorter list.
const END: &str = "# end of the plan";

fn write(plan: &InstallPlan) -> Result<String, EmitError> {
    let text = toml::to_string(plan).map_err(|error| EmitError::Unfit {
        format: FORMAT.name,
        reason: error.to_string(),
        hint: "please report it: every plan should be valid TOML".to_owned(),
    })?;
    Ok(format!("{text}\n{END}\n"))
}

/// Why a text is not a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanFileError {
    /// It was written by a newer firstlight.
    #[error("line {line}: the plan has schema {found}, this firstlight reads {SCHEMA}")]
    Schema {
        /// Line in the text, from 1.
        line: usize,
        /// The schema it names.
        found: i64,
    },
    /// It is damaged, or was edited into something invalid.
    #[error("line {line}: {what}")]
    Damaged {
        /// Line in the text, from 1.
        line: usize,
        /// The problem.
        what: String,
    },
}

impl PlanFileError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Schema { .. } => "use a newer firstlight, or make a new plan with this one",
            Self::Damaged { .. } => {
                "plans must not be edited; make a new one with the command in its first lines"
            }
        }
    }
}

/// Reads a plan in the format `plan.toml`.
///
/// # Errors
/// If the text is not a plan, has another schema, or is inconsistent: a package from an index that it does not name, a
/// second index for all packages, a file name that is a path, an invalid hash, a locked package without a file. The
/// error names the line.
pub fn read_plan(text: &str) -> Result<InstallPlan, PlanFileError> {
    let damaged = |error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.get(..start).unwrap_or(text).matches('\n').count() + 1;
        PlanFileError::Damaged { line, what: error.message().to_owned() }
    };
    // The schema is checked first: nothing else of a newer document needs to be valid in this version.
    let table: toml::Table = text.parse().map_err(damaged)?;
    match table.get("schema").and_then(toml::Value::as_integer) {
        Some(found) if found != i64::from(SCHEMA) => {
            return Err(PlanFileError::Schema { line: line_of(text, "schema ="), found });
        }
        _ => {}
    }
    let plan: InstallPlan = toml::from_str(text).map_err(damaged)?;
    match wrong(&plan) {
        None if text.trim_end().lines().next_back() != Some(END) => {
            let what = format!("the file ends here without `{END}`, so it is incomplete");
            Err(PlanFileError::Damaged { line: text.lines().count().max(1), what })
        }
        None => Ok(plan),
        Some((at, what)) => Err(PlanFileError::Damaged { line: line_of(text, &at), what }),
    }
}

/// The last line that contains these words, from 1: of two entries with the same name the second is wrong.
fn line_of(text: &str, words: &str) -> usize {
    text.lines()
        .collect::<Vec<_>>()
        .iter()
        .rposition(|line| line.contains(words))
        .map_or(1, |index| index + 1)
}

/// An inconsistency of the plan, and words of its line.
fn wrong(plan: &InstallPlan) -> Option<(String, String)> {
    if let Some(index) = plan.indexes.iter().skip(1).find(|index| !index.explicit) {
        let what = format!(
            "index `{}` is not explicit, so any package could come from it instead of the default",
            index.name
        );
        return Some((index.url.clone(), what));
    }
    for (nth, package) in plan.packages.iter().enumerate() {
        let name = &package.name;
        let line = || format!("name = \"{name}\"");
        if plan.packages[..nth].iter().any(|earlier| earlier.name == *name) {
            return Some((line(), format!("package `{name}` is in the plan twice")));
        }
        if !plan.indexes.iter().any(|index| index.name == package.index) {
            let what = format!(
                "package `{name}` comes from `{}`, which is not an index of this plan",
                package.index
            );
            return Some((format!("index = \"{}\"", package.index), what));
        }
        if let Some(found) = wrong_file(package) {
            return Some(found);
        }
        if plan.locked && !has_hashes(package) {
            let what =
                format!("the plan is marked as locked, and `{name}` has no file with a hash");
            return Some((line(), what));
        }
    }
    None
}

fn wrong_file(package: &PlannedPackage) -> Option<(String, String)> {
    for file in &package.files {
        // An apply creates files with these names.
        if file.name.is_empty() || file.name.contains(['/', '\\']) || file.name.starts_with('.') {
            return Some((file.name.clone(), format!("`{}` is not a file name", file.name)));
        }
        if let Some(sha256) = &file.sha256
            && !(sha256.len() == 64
                && sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        {
            let what =
                format!("`{sha256}`, the hash of {}, is not 64 hexadecimal digits", file.name);
            return Some((sha256.clone(), what));
        }
    }
    None
}
