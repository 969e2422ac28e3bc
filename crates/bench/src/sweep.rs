//! Shapes of the caller's choice: attention over head dims, every other op over its tokens.

use crate::workloads::{Task, conv1d, kda, linear, moe, nsa, qkv, rmsnorm, sampling, ssd};
use kernels::{DType, Settings, TensorMap};

/// A sweep: one workload for each head dim or number of tokens.
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

type Inputs = (TensorMap, Settings);

impl Sweep {
    /// The workloads of an op.
    pub(crate) fn tasks(&self, op: &str) -> Vec<Task<'_>> {
        let (batch, heads) = (self.batch, self.heads);
        if op == "attention" {
            let over_dims = |tokens: &usize| -> Vec<Task<'_>> {
                let tokens = *tokens;
                self.dims.iter().map(|dim| self.attention(tokens, *dim)).collect()
            };
            return self.tokens.iter().flat_map(over_dims).collect();
        }
        let task = |tokens: usize| -> Option<Task<'_>> {
            let build: Box<dyn Fn(DType) -> Inputs> = match op {
                "kda" => Box::new(move |dtype| kda::call(dtype, batch, tokens, heads)),
                "ssd" => Box::new(move |dtype| ssd::call(dtype, batch, tokens, heads)),
                "conv1d" => Box::new(move |dtype| conv1d::call(dtype, batch, tokens)),
                "nsa" => Box::new(move |dtype| nsa::cuda::call(dtype, batch, tokens, tokens)),
                "rmsnorm" => Box::new(move |dtype| rmsnorm::mamba(dtype, batch, tokens)),
                "linear" => Box::new(move |dtype| linear::in_proj(dtype, batch * tokens)),
                "moe" => Box::new(move |dtype| moe::few(dtype, batch * tokens)),
                "sampling" => Box::new(move |_| sampling::nucleus(batch * tokens)),
                _ => return None,
            };
            let case = format!("prefill-{tokens}").into();
            Some(Task { case, dtype: self.dtype, recurrent: false, build })
        };
        self.tokens.iter().filter_map(|tokens| task(*tokens)).collect()
    }

    fn attention(&self, tokens: usize, dim: usize) -> Task<'_> {
        let suffix = if self.causal { "-causal" } else { "" };
        let shape = [self.batch, tokens, self.heads, dim];
        Task {
            case: format!("prefill-{tokens}-d{dim}{suffix}").into(),
            dtype: self.dtype,
            recurrent: false,
            build: Box::new(move |dtype| {
                (qkv(dtype, shape, shape), Settings::new().with("causal", self.causal))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_sweep_whose_calls_bind() {
        let sweep = Sweep {
            batch: 2,
            tokens: vec![128, 192],
            heads: 2,
            dims: vec![64, 100],
            causal: true,
            dtype: DType::F32,
        };
        for op in kernels::OPS {
            let name = op.spec().name;
            let tasks = sweep.tasks(name);
            assert_eq!(tasks.len(), if name == "attention" { 4 } else { 2 }, "{name}");
            for task in tasks {
                let (inputs, settings) = (task.build)(task.dtype);
                let bound = op.bind(&inputs, &settings);
                assert!(bound.is_ok(), "{name} {}: {}", task.case, bound.err().unwrap());
            }
        }
    }
}
