//! Shapes chosen by the caller: attention over head dimensions, every other op over its tokens.

use crate::workloads::Task;
use ops::{DType, Settings, TensorMap};

/// A sweep: one workload for each head dimension or number of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: Vec<usize>,
    /// Heads of attention, KDA and SSD.
    pub heads: usize,
    /// Head dims of attention.
    pub dims: Vec<usize>,
    /// Attention with a causal mask.
    pub causal: bool,
    /// Storage type.
    pub dtype: DType,
}

impl Sweep {
    /// One workload per number of tokens; `call` generates its inputs.
    pub(crate) fn over_tokens(
        &self,
        call: fn(&Self, DType, usize) -> (TensorMap, Settings),
    ) -> Vec<Task<'_>> {
        let task = |tokens: usize| Task {
            case: format!("prefill-{tokens}").into(),
            dtype: self.dtype,
            recurrent: false,
            build: Box::new(move |dtype| call(self, dtype, tokens)),
        };
        self.tokens.iter().map(|tokens| task(*tokens)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{OpWorkloads, WORKLOADS};

    #[test]
    fn calls_of_every_sweep_bind() {
        let sweep = Sweep {
            batch: 2,
            tokens: vec![128, 192],
            heads: 2,
            dims: vec![64, 100],
            causal: true,
            dtype: DType::F32,
        };
        for OpWorkloads { op, sweep: of, .. } in WORKLOADS {
            let tasks = of(&sweep);
            assert!(
                tasks.len() == 2 || tasks.len() == 4,
                "{op}: over tokens, or head dims as well"
            );
            for task in tasks {
                let (inputs, settings) = (task.build)(task.dtype);
                let bound = ops::op(op).unwrap().bind(&inputs, &settings);
                assert!(bound.is_ok(), "{op} {}: {}", task.case, bound.err().unwrap());
            }
        }
    }
}
