//! Packages whose import needs another one that their METADATA does not name.

use knowledge::Citation;

/// One package and what it needs.
pub(crate) struct Undeclared {
    pub(crate) package: &'static str,
    /// Needed in the same release.
    pub(crate) needs: &'static str,
    /// The line of its import.
    pub(crate) line: &'static str,
}

/// Where the rows were read.
pub(crate) const SOURCE: Citation =
    Citation::of("PyPI's wheel of transformer-engine-cu12 2.6.0.post1", "2026-11-25");

const METADATA: &str =
    "transformer_engine/__init__.py: __version__ = str(metadata.version(\"transformer_engine\"))";

pub(crate) const UNDECLARED: [Undeclared; 2] = [
    Undeclared { package: "transformer-engine-cu12", needs: "transformer-engine", line: METADATA },
    Undeclared { package: "transformer-engine-cu13", needs: "transformer-engine", line: METADATA },
];
