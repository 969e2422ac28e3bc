//! Attention over head dims of the caller's choice.

use crate::workloads::{Task, qkv};
use kernels::{DType, Settings};

/// A sweep: one workload for each head dim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Head dims.
    pub dims: Vec<usize>,
    /// With a causal mask.
    pub causal: bool,
    /// Storage type.
    pub dtype: DType,
}

impl Sweep {
    pub(crate) fn tasks(&self) -> Vec<Task<'_>> {
        let suffix = if self.causal { "-causal" } else { "" };
        let task = |dim: &usize| {
            let shape = [self.batch, self.tokens, self.heads, *dim];
            Task {
                case: format!("prefill-{}-d{dim}{suffix}", self.tokens).into(),
                dtype: self.dtype,
                recurrent: false,
                build: Box::new(move |dtype| {
                    (qkv(dtype, shape, shape), Settings::new().with("causal", self.causal))
                }),
            }
        };
        self.dims.iter().map(task).collect()
    }
}
