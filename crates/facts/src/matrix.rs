use serde::{Deserialize, Serialize};

/// The report of `firstlight plan --matrix --json`: the platforms on which components work, each cell with its reason and
/// source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportMatrix {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The platforms, in the order of the cells.
    pub platforms: Vec<String>,
    /// This machine's platform; `None` if it is not listed.
    pub here: Option<String>,
    /// One row for each component.
    pub rows: Vec<SupportRow>,
}

/// One component on every platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportRow {
    /// `bitsandbytes`, `multi-GPU`.
    pub component: String,
    /// One for each platform.
    pub cells: Vec<SupportCell>,
}

/// One component on one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportCell {
    /// The platform.
    pub platform: String,
    /// The level of support.
    pub support: Support,
    /// The reason, with conditions.
    pub reason: String,
    /// Its source.
    pub source: String,
    /// The source's date: `2026-11-21`.
    pub date: String,
}

/// The level of support of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Support {
    /// It installs and works.
    Yes,
    /// It works under a condition that the reason names.
    Partly,
    /// It does not work.
    No,
}
