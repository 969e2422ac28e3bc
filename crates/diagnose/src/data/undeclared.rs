//! Packages whose import needs another package that their METADATA does not require.

use knowledge::Citation;

/// One package and its undeclared dependency.
pub(crate) struct UndeclaredDependency {
    pub(crate) package: &'static str,
    /// The dependency, needed in the same release.
    pub(crate) needs: &'static str,
    /// The line that imports it.
    pub(crate) line: &'static str,
}

/// The source of the rows.
pub(crate) const SOURCE: Citation =
    Citation::of("PyPI's wheel of transformer-engine-cu12 2.6.0.post1", "2026-11-25");

const METADATA: &str =
    "transformer_engine/__init__.py: __version__ = str(metadata.version(\"transformer_engine\"))";

pub(crate) const UNDECLARED: [UndeclaredDependency; 2] = [
    UndeclaredDependency {
        package: "transformer-engine-cu12",
        needs: "transformer-engine",
        line: METADATA,
    },
    UndeclaredDependency {
        package: "transformer-engine-cu13",
        needs: "transformer-engine",
        line: METADATA,
    },
];
