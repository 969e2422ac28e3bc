//! Packages whose older releases have files of their own that newer ones leave to another package.

use knowledge::Citation;

/// One package.
pub(crate) struct Moved {
    pub(crate) package: &'static str,
    /// The first release that requires the other package and has no such files.
    pub(crate) release: &'static str,
    /// The package that has them since.
    pub(crate) to: &'static str,
}

/// Where the rows were read.
pub(crate) const SOURCE: Citation = Citation::of(
    "PyPI: cuda-python 12.6.2.post1 has cuda/bindings and requires nothing, 12.8.0 requires cuda-bindings",
    "2026-11-25",
);

pub(crate) const MOVED: [Moved; 1] =
    [Moved { package: "cuda-python", release: "12.8", to: "cuda-bindings" }];
