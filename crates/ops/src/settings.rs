//! Settings of a call, by name.

use crate::{OpError, OpSpec};
use std::collections::BTreeMap;

/// Settings by name, as given; typed and checked when an op reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<String, String>,
}

impl Settings {
    /// No settings: every default holds.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same settings with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.values.insert(name.to_owned(), value.to_string());
        self
    }

    /// Adds or replaces one.
    pub fn set(&mut self, name: &str, value: impl std::fmt::Display) {
        self.values.insert(name.to_owned(), value.to_string());
    }

    /// Names and values as given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Rejects names the op does not have.
    pub(crate) fn check_known(&self, spec: &OpSpec) -> Result<(), OpError> {
        for name in self.values.keys() {
            if !spec.settings.iter().any(|setting| setting.name == name) {
                let known = spec.settings.iter().map(|setting| setting.name).collect();
                return Err(OpError::UnknownSetting {
                    op: spec.name,
                    setting: name.clone(),
                    known,
                });
            }
        }
        Ok(())
    }

    fn read<T>(
        &self,
        op: &'static str,
        name: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, OpError> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        match parse(value.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(OpError::Setting {
                op,
                setting: name.to_owned(),
                value: value.clone(),
                wanted: wanted.to_owned(),
            }),
        }
    }

    /// A [`SettingKind::Bool`] setting.
    ///
    /// # Errors
    /// When it was given as anything but `true` or `false`.
    pub fn bool(&self, op: &'static str, name: &str) -> Result<Option<bool>, OpError> {
        self.read(op, name, "true or false", |text| text.to_ascii_lowercase().parse().ok())
    }

    /// A [`SettingKind::Number`] setting.
    ///
    /// # Errors
    /// When it was given as anything but a finite number.
    pub fn number(&self, op: &'static str, name: &str) -> Result<Option<f64>, OpError> {
        self.read(op, name, "a finite number", |text| {
            text.parse().ok().filter(|x: &f64| x.is_finite())
        })
    }

    /// A [`SettingKind::Count`] setting.
    ///
    /// # Errors
    /// When it was given as anything but a whole number, zero or more.
    pub fn count(&self, op: &'static str, name: &str) -> Result<Option<usize>, OpError> {
        self.read(op, name, "a whole number, zero or more", |text| text.parse().ok())
    }

    /// A [`SettingKind::Counts`] setting; never empty if it was given.
    ///
    /// # Errors
    /// When it was given as anything but whole numbers above zero, separated by commas.
    pub fn counts(&self, op: &'static str, name: &str) -> Result<Option<Vec<usize>>, OpError> {
        let count = |text: &str| text.trim().parse().ok().filter(|count| *count > 0);
        self.read(op, name, "whole numbers above zero, separated by commas", |text| {
            text.split(',').map(count).collect()
        })
    }

    /// A [`SettingKind::Choice`] setting.
    ///
    /// # Errors
    /// If its value is not one of the words.
    pub fn choice(
        &self,
        op: &'static str,
        name: &str,
        words: &'static [&'static str],
    ) -> Result<Option<&'static str>, OpError> {
        self.read(op, name, &format!("one of {}", words.join(", ")), |text| {
            words.iter().copied().find(|word| word.eq_ignore_ascii_case(text))
        })
    }
}

/// An [`OpError::Setting`] for a value that cannot be used.
pub(crate) fn refused(
    op: &'static str,
    setting: &str,
    value: impl ToString,
    wanted: impl Into<String>,
) -> OpError {
    OpError::Setting {
        op,
        setting: setting.to_owned(),
        value: value.to_string(),
        wanted: wanted.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_by_kind_and_errors_name_the_setting() {
        let settings =
            Settings::new().with("causal", "True").with("scale", "0.1").with("window", "-1");
        assert_eq!(settings.bool("attention", "causal"), Ok(Some(true)));
        assert_eq!(settings.number("attention", "scale"), Ok(Some(0.1)));
        assert_eq!(settings.number("attention", "softcap"), Ok(None));
        let error = settings.count("attention", "window").unwrap_err();
        assert_eq!(
            error.to_string(),
            "attention: setting `window` is `-1`, wanted a whole number, zero or more"
        );
        assert!(Settings::new().with("x", "inf").number("kda", "x").is_err());
        let counts = |text: &str| Settings::new().with("split", text).counts("linear", "split");
        assert_eq!(counts("8, 16,1"), Ok(Some(vec![8, 16, 1])));
        assert!(["", "8,", "8,0", "8;1", "-1"].map(counts).iter().all(Result::is_err));
    }
}
