use serde::{Deserialize, Serialize};

/// What `firstlight matrix --json` prints: what works on which platform, each cell with its reason and source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportMatrix {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The platforms, in the order of the cells.
    pub platforms: Vec<String>,
    /// The platform this machine belongs to; `None` where it is none of them.
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
    /// How far it is supported.
    pub support: Support,
    /// Why, and what is to be known about it.
    pub reason: String,
    /// Where that was read.
    pub source: String,
    /// When: `2026-11-21`.
    pub date: String,
}

/// How far a component is supported.
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
