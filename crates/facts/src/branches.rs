//! A step of decoding by NSA, branch by branch.

use crate::{BackendKind, SCHEMA};
use serde::{Deserialize, Serialize};

/// What `bench --branches` prints: each branch's own part of a step, beside the table that a field report made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BranchReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Where it ran.
    pub backend: BackendKind,
    /// What every step has in common: heads, channels, blocks and storage type.
    pub settings: String,
    /// One line a context.
    pub rows: Vec<BranchRow>,
    /// What was not timed and why, one sentence each.
    pub not_timed: Vec<String>,
}

impl BranchReport {
    /// A report without a line yet.
    pub fn new(backend: BackendKind, settings: String) -> Self {
        Self { schema: SCHEMA, backend, settings, rows: Vec::new(), not_timed: Vec::new() }
    }
}

/// A value for each branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Branches<T> {
    /// The compressed branch.
    pub compressed: T,
    /// The selected branch.
    pub selected: T,
    /// The sliding window.
    pub window: T,
}

/// A step of one token for one sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BranchRow {
    /// S, tokens of the prompt.
    pub context: u64,
    /// Tokens of the cache: the prompt and what was decoded since.
    pub keys: u64,
    /// The variant that ran.
    pub variant: String,
    /// Median milliseconds of the whole step.
    pub total_ms: f64,
    /// Its 95th percentile.
    pub p95_ms: f64,
    /// Milliseconds that each branch adds to those before it, in the order of the fields; together the whole. Scores of
    /// compressed tokens, by which blocks are selected too, are the first one's.
    pub adds_ms: Branches<f64>,
    /// Median milliseconds of the whole step under a gate of one for this branch and of nought for the others, which
    /// computes all of them: what the field report called the branch's share.
    pub one_hot_ms: Branches<f64>,
    /// Tokens that a key head's step read, counted from the blocks that the kernel selected.
    pub reads: Branches<u64>,
    /// The reads that the field report's formula gives, which measures nothing.
    pub formula_reads: u64,
}

impl BranchRow {
    /// All reads that were counted.
    pub fn total_reads(&self) -> u64 {
        self.reads.compressed + self.reads.selected + self.reads.window
    }
}
