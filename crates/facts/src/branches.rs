//! Decoding steps of native sparse attention (NSA), branch by branch.

use crate::{BackendKind, SCHEMA};
use serde::{Deserialize, Serialize};

/// The report of `bench --branches`: each branch's part of a step, next to the table of a published report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BranchReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The backend.
    pub backend: BackendKind,
    /// The settings of all steps: heads, channels, blocks and storage type.
    pub settings: String,
    /// One row per context length.
    pub rows: Vec<BranchRow>,
    /// Steps that were not timed, with the reason, one sentence each.
    pub not_timed: Vec<String>,
}

impl BranchReport {
    /// An empty report.
    pub fn new(backend: BackendKind, settings: String) -> Self {
        Self { schema: SCHEMA, backend, settings, rows: Vec::new(), not_timed: Vec::new() }
    }
}

/// A value for each branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PerBranch<T> {
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
    /// Tokens in the cache: the prompt and generated tokens.
    pub keys: u64,
    /// The variant that ran.
    pub variant: String,
    /// Median milliseconds of the whole step.
    pub total_ms: f64,
    /// Its 95th percentile.
    pub p95_ms: f64,
    /// Milliseconds that each branch adds to those before it, in the order of the fields; their sum is the whole step.
    /// Scores of compressed tokens, which also select blocks, belong to the first one.
    pub adds_ms: PerBranch<f64>,
    /// Median milliseconds of the whole step with a gate of one for this branch and zero for the others, which computes
    /// all of them: the published report's definition of a branch's share.
    pub one_hot_ms: PerBranch<f64>,
    /// Tokens that a step reads per key head, counted from the selected blocks.
    pub reads: PerBranch<u64>,
    /// Reads according to the published report's formula.
    pub formula_reads: u64,
}

impl BranchRow {
    /// All counted reads.
    pub fn total_reads(&self) -> u64 {
        self.reads.compressed + self.reads.selected + self.reads.window
    }
}
