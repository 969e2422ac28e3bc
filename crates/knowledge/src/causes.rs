//! Causes of exceptions by their class and of build errors by their words, and the packages that a package is written against.

use crate::Citation;
use crate::messages::CauseRow;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// A cause and the errors that it fits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorCause {
    /// Classes of exceptions; any class where empty.
    #[serde(default)]
    pub classes: Vec<String>,
    /// Words of which the message has one, in lower case; any message where empty.
    #[serde(default)]
    pub words: Vec<String>,
    /// Classes that another row has.
    #[serde(default)]
    pub without: Vec<String>,
    /// Facts about the error without which the row does not apply.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Whether it applies only where no row with classes or words does.
    #[serde(default)]
    pub otherwise: bool,
    /// The cause.
    pub row: CauseRow,
    /// Its source.
    pub source: Citation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Partners {
    package: String,
    of: Vec<String>,
    #[allow(dead_code, reason = "each row has a source")]
    source: Citation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attribute {
    prefix: String,
    #[serde(default)]
    class: String,
    package: String,
    #[allow(dead_code, reason = "each row has a source")]
    source: Citation,
}

static ATTRIBUTES: LazyLock<Vec<Attribute>> =
    LazyLock::new(|| rows(table!("causes.toml"), "attribute"));
static EXCEPTIONS: LazyLock<Vec<ErrorCause>> =
    LazyLock::new(|| rows(table!("causes.toml"), "exception"));
static BUILDS: LazyLock<Vec<ErrorCause>> = LazyLock::new(|| rows(table!("causes.toml"), "build"));
static PARTNERS: LazyLock<Vec<Partners>> = LazyLock::new(|| rows(table!("causes.toml"), "partner"));

/// The packages that a package is written against, most important first; empty where none is known.
pub fn partners(package: &str) -> &'static [String] {
    PARTNERS.iter().find(|row| row.package == package).map_or(&[], |row| row.of.as_slice())
}

/// The package that adds an attribute to objects of a class of another library.
pub fn attached(class: &str, attribute: &str) -> Option<&'static str> {
    let fits = |row: &&Attribute| {
        attribute.starts_with(&row.prefix) && (row.class.is_empty() || row.class == class)
    };
    ATTRIBUTES.iter().find(fits).map(|row| row.package.as_str())
}

/// The causes of an exception of this class; `known` are the names of the facts about it.
pub fn of_exception(class: &str, message: &str, known: &[&str]) -> Vec<&'static CauseRow> {
    applying(&EXCEPTIONS, class, message, known)
}

/// The causes of an error of a compiler, a linker or CMake.
pub fn of_build(message: &str, known: &[&str]) -> Vec<&'static CauseRow> {
    applying(&BUILDS, "", message, known)
}

fn applying(
    rows: &'static [ErrorCause],
    class: &str,
    message: &str,
    known: &[&str],
) -> Vec<&'static CauseRow> {
    let message = message.to_lowercase();
    let fits = |row: &&ErrorCause| {
        let of_class = row.classes.is_empty() || row.classes.iter().any(|it| it == class);
        let of_words =
            row.words.is_empty() || row.words.iter().any(|it| message.contains(&it.to_lowercase()));
        let here = row.needs.iter().all(|need| known.contains(&need.as_str()));
        of_class
            && of_words
            && here
            && !row.without.iter().any(|it| it == class)
            && is_known(&row.row, known)
    };
    let fitting: Vec<&'static ErrorCause> = rows.iter().filter(fits).collect();
    let special = fitting.iter().any(|row| !row.classes.is_empty() || !row.words.is_empty());
    fitting.into_iter().filter(|row| !(row.otherwise && special)).map(|row| &row.row).collect()
}

/// Whether each `{name}` of the row is known.
fn is_known(row: &CauseRow, known: &[&str]) -> bool {
    let lines = std::iter::once(&row.cause).chain(&row.check).chain(&row.fix);
    lines.flat_map(|line| names(line)).all(|name| known.contains(&name))
}

/// The words in braces that are names.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split('{').skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('}')?;
        name.chars().all(|letter| letter.is_ascii_lowercase()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::{attached, names, of_build, of_exception, partners};

    const ALL: [&str; 6] = ["python", "raised", "caller", "both", "partners", "pattern"];

    #[test]
    fn a_row_applies_by_class_words_and_known_facts() {
        let causes = |class, message, known: &[&str]| {
            let rows = of_exception(class, message, known);
            rows.into_iter().map(|row| row.cause.as_str()).collect::<Vec<_>>().join(" | ")
        };
        let key = causes("KeyError", "'factor'", &ALL);
        assert!(key.contains("has names that this release") && key.contains("{partners}"), "{key}");
        assert!(!key.contains("refuses what it was given"), "{key}");
        assert!(causes("ValueError", "x", &ALL).contains("refuses what it was given"));
        assert!(!causes("KeyError", "'factor'", &["python", "raised"]).contains("{partners}"));
        assert_eq!(causes("ValueError", "x", &["python"]), "");
        assert!(causes("FileNotFoundError", "'nvcc'", &["python"]).contains("CUDA toolkit"));
        assert!(!causes("FileNotFoundError", "x.json", &["python"]).contains("CUDA toolkit"));
    }

    #[test]
    fn build_errors_have_causes_by_their_words() {
        let first = |message| {
            let known = ["python", "toolchain", "of", "ownerless"];
            of_build(message, &known).first().map(|row| row.cause.clone()).unwrap_or_default()
        };
        assert!(first("x.o: undefined reference to `f'").contains("linker"));
        assert!(first("x.cu(3): error: expected a type").contains("{of} was written"));
        assert!(first("a.h: fatal error: stddef.h: No such file").contains("compiler's"));
    }

    #[test]
    fn attributes_name_the_package_that_adds_them() {
        assert_eq!(attached("Linear", "ds_grads_remaining"), Some("deepspeed"));
        assert_eq!(attached("Version", "major"), Some("packaging"));
        assert_eq!(attached("Linear", "major"), None);
    }

    #[test]
    fn names_are_the_words_in_braces() {
        assert_eq!(names("{a} '{p.device for p}' {b}").collect::<Vec<_>>(), ["a", "b"]);
        assert!(partners("trl").iter().any(|name| name == "transformers"));
        assert!(partners("no-such-package").is_empty());
    }
}
