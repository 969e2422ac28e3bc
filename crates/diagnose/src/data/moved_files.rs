//! Packages whose newer releases moved files to another package.

use knowledge::Citation;

/// One package, and the release that moved its files.
pub(crate) struct FileMove {
    pub(crate) package: &'static str,
    /// The first release without the files; it requires the other package.
    pub(crate) release: &'static str,
    /// The package that has the files since that release.
    pub(crate) to: &'static str,
}

/// The source of the rows.
pub(crate) const SOURCE: Citation = Citation::of(
    "PyPI: cuda-python 12.6.2.post1 has cuda/bindings and requires nothing, 12.8.0 requires cuda-bindings",
    "2026-11-25",
);

pub(crate) const MOVED: [FileMove; 1] =
    [FileMove { package: "cuda-python", release: "12.8", to: "cuda-bindings" }];
