//! In which releases of a package a module or a name of it exists.

/// A module, or a name of a module, to find in the releases of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameQuery {
    /// The package, normalized by PEP 503.
    pub package: String,
    /// The module: `transformers.generation`.
    pub module: String,
    /// The name; `None` asks for the module.
    pub name: Option<String>,
    /// The release that lacks it, if known.
    pub version: Option<String>,
}

/// The releases of a package that have a name, which follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameHistory {
    /// The oldest release with the name; `None` if no older one lacks it.
    pub first: Option<String>,
    /// The newest release with the name; `None` if no newer one lacks it.
    pub last: Option<String>,
    /// The first release after `last` whose files show that they lack it.
    pub removed: Option<String>,
    /// Whether the release of the query has it; `None` if unknown.
    pub version_has: Option<bool>,
    /// Whether the release of the query is newer than `last`.
    pub version_is_newer: bool,
}

/// Which releases lack a name, as seen from one that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameLack {
    /// The release is older than the name.
    TooOld,
    /// The release is newer than the name.
    TooNew,
    /// The release is older or newer.
    Either,
    /// Every release has the name.
    Never,
}

impl NameHistory {
    /// How the release that lacks the name differs from those that have it.
    pub fn lack(&self) -> NameLack {
        match (&self.first, &self.last, self.version_has) {
            (None, None, _) | (_, _, Some(true)) => NameLack::Never,
            (_, Some(_), Some(false)) if self.version_is_newer => NameLack::TooNew,
            (Some(_), _, Some(false)) | (Some(_), None, None) => NameLack::TooOld,
            (None, Some(_), _) => NameLack::TooNew,
            (Some(_), Some(_), None) => NameLack::Either,
        }
    }

    /// The requirement that only releases with the name satisfy: `>=4.25.1,<5.0.0`.
    pub fn specifiers(&self) -> String {
        let from = self.first.as_ref().map(|first| format!(">={first}"));
        let until = match (&self.last, &self.removed) {
            (Some(_), Some(removed)) => Some(format!("<{removed}")),
            (Some(last), None) => Some(format!("<={last}")),
            (None, _) => None,
        };
        from.into_iter().chain(until).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_that_lacks_a_name_is_too_old_or_too_new() {
        let check = |first: Option<&str>, last: Option<&str>, has, newer, expect, specifiers| {
            let text = |version: Option<&str>| version.map(str::to_owned);
            let history = NameHistory {
                first: text(first),
                last: text(last),
                removed: last.map(|_| "5.0.0".to_owned()),
                version_has: has,
                version_is_newer: newer,
            };
            assert_eq!((history.lack(), history.specifiers().as_str()), (expect, specifiers));
        };
        check(Some("4.2"), None, None, false, NameLack::TooOld, ">=4.2");
        check(None, Some("4.9"), None, false, NameLack::TooNew, "<5.0.0");
        check(Some("4.2"), Some("4.9"), None, false, NameLack::Either, ">=4.2,<5.0.0");
        check(Some("4.2"), Some("4.9"), Some(false), true, NameLack::TooNew, ">=4.2,<5.0.0");
        check(Some("4.2"), Some("4.9"), Some(false), false, NameLack::TooOld, ">=4.2,<5.0.0");
        check(Some("4.2"), Some("4.9"), Some(true), false, NameLack::Never, ">=4.2,<5.0.0");
        check(None, None, Some(false), false, NameLack::Never, "");
    }
}
