use serde::Deserialize;
use std::borrow::Cow;

/// The source of a row.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Citation {
    /// The document, script or package.
    pub what: Cow<'static, str>,
    /// The date when it was read, or of the revision that was read: `2026-11-21`.
    pub date: Cow<'static, str>,
}

impl Citation {
    /// A source for a table written in Rust.
    pub const fn of(what: &'static str, date: &'static str) -> Self {
        Self { what: Cow::Borrowed(what), date: Cow::Borrowed(date) }
    }

    /// Checks that it names a document and a date.
    ///
    /// # Errors
    /// A sentence that names the missing part.
    pub fn check(&self) -> Result<(), String> {
        if self.what.len() <= 10 {
            return Err(format!("{self} names no document"));
        }
        let date: Vec<&str> = self.date.split('-').collect();
        match date[..] {
            [year, month, day] if year.len() == 4 && month.len() == 2 && day.len() == 2 => Ok(()),
            _ => Err(format!("{self} has no date")),
        }
    }
}

impl std::fmt::Display for Citation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table of firstlight: {} ({})", self.what, self.date)
    }
}
