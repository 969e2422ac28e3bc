//! Python, torchvision, torchaudio and triton versions that are compatible with each torch series.

use crate::packed::table;
use crate::table::{minor, parse_minor, rows};
use crate::{Citation, Minor, dotted};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;

/// The compatible series of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompatibleSeries {
    /// This series only.
    Series(Minor),
    /// This series and every later one: the package is built against torch's stable ABI.
    From(Minor),
}

impl CompatibleSeries {
    /// Whether a series is compatible.
    pub fn allows(self, series: Minor) -> bool {
        match self {
            Self::Series(wanted) => series == wanted,
            Self::From(first) => series >= first,
        }
    }

    /// The version specifier after the package's name: `==0.20.*`.
    pub fn constraint(self) -> String {
        match self {
            Self::Series(series) => format!("=={}.*", dotted(series)),
            Self::From(first) => format!(">={}", dotted(first)),
        }
    }
}

/// From `0.20` or `0.29+`.
impl<'de> Deserialize<'de> for CompatibleSeries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let read = match text.strip_suffix('+') {
            Some(first) => parse_minor(first).map(Self::From),
            None => parse_minor(&text).map(Self::Series),
        };
        read.ok_or_else(|| D::Error::custom(format!("`{text}` is not like 0.20 or 0.29+")))
    }
}

/// One torch series and its companions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The torch series: major and minor number.
    #[serde(deserialize_with = "minor")]
    pub torch: Minor,
    /// Oldest and newest Python with a wheel.
    #[serde(deserialize_with = "range")]
    pub python: (Minor, Minor),
    /// Compatible torchvision series.
    pub torchvision: CompatibleSeries,
    /// Compatible torchaudio series.
    pub torchaudio: CompatibleSeries,
    /// The triton series that the CUDA wheels pin.
    #[serde(deserialize_with = "minor")]
    pub triton: Minor,
    /// Source of the row.
    pub source: Citation,
}

fn range<'de, D: Deserializer<'de>>(from: D) -> Result<(Minor, Minor), D::Error> {
    match crate::table::minors(from)?[..] {
        [first, last] => Ok((first, last)),
        _ => Err(D::Error::custom("a range has a first and a last")),
    }
}

static SERIES: LazyLock<Vec<Series>> =
    LazyLock::new(|| rows(table!("torch_series.toml"), "series"));

/// Every series, oldest first.
pub fn all() -> &'static [Series] {
    &SERIES
}

/// The row of a torch series.
pub fn series(torch: Minor) -> Option<&'static Series> {
    all().iter().find(|row| row.torch == torch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch_builds::builds;

    #[test]
    fn rows_ascend_and_cover_every_published_build() {
        for row in all() {
            assert!(row.python.0 < row.python.1, "{row:?}");
        }
        assert!(all().windows(2).all(|pair| pair[0].torch < pair[1].torch));
        for build in builds() {
            for torch in &build.torch {
                assert!(series(*torch).is_some(), "no row for torch {torch:?}");
            }
        }
        for row in all() {
            assert!(builds().iter().any(|build| build.torch.contains(&row.torch)), "{row:?}");
        }
    }

    #[test]
    fn series_have_compatible_packages() {
        let row = series((2, 5)).expect("2.5");
        assert_eq!(row.torchvision.constraint(), "==0.20.*");
        assert!(row.torchvision.allows((0, 20)) && !row.torchvision.allows((0, 21)));
        let row = series((2, 15)).expect("2.15");
        assert_eq!(row.torchvision.constraint(), ">=0.29");
        assert!(row.torchvision.allows((0, 30)) && !row.torchvision.allows((0, 28)));
        assert_eq!(series((1, 13)).map(|row| row.torch), None);
    }
}
