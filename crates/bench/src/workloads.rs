//! The timed workloads, one file per op, collected in [`WORKLOADS`].

mod attention;
mod conv1d;
mod gated_delta;
mod kda;
pub(crate) mod linear;
mod moe;
mod nsa;
mod reused;
pub(crate) mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

pub(crate) use attention::cuda::causal as causal_attention;
#[cfg(test)]
pub(crate) use attention::qkv;
pub(crate) use reused::{clear_reused, with_reuse};

use crate::{Size, Sweep};
use facts::BackendKind;
use half::{bf16, f16};
use ops::{DType, Settings, Tensor, TensorMap};
use std::borrow::Cow;

/// One timed call.
pub struct Workload {
    /// Its name: `prefill-2048`, `decode-b64`, `train-4096` of a gradient.
    pub case: &'static str,
    /// Storage type.
    pub dtype: DType,
    /// Whether it is a prefill whose reference is a token-by-token recurrence, which a bench may also time.
    pub recurrent: bool,
    /// Generates the inputs.
    pub build: fn(DType) -> (TensorMap, Settings),
}

/// A workload of a run: a listed one, or one of a sweep.
pub(crate) struct Task<'a> {
    /// As [`Workload::case`].
    pub(crate) case: Cow<'static, str>,
    /// As [`Workload::dtype`].
    pub(crate) dtype: DType,
    /// As [`Workload::recurrent`].
    pub(crate) recurrent: bool,
    /// As [`Workload::build`].
    pub(crate) build: Box<dyn Fn(DType) -> (TensorMap, Settings) + 'a>,
}

impl Task<'_> {
    /// Whether it is a decoding step: one or a few tokens per sequence.
    pub(crate) fn is_step(&self) -> bool {
        self.case.starts_with("decode")
    }
}

impl From<Workload> for Task<'_> {
    fn from(Workload { case, dtype, recurrent, build }: Workload) -> Self {
        Self { case: case.into(), dtype, recurrent, build: Box::new(build) }
    }
}

/// The workloads of an op.
pub struct OpWorkloads {
    /// Its name.
    pub op: &'static str,
    /// Its workloads of a size on the CPU.
    pub cpu: fn(Size) -> Vec<Workload>,
    /// Its workloads on NVIDIA GPUs, which need larger calls; none without a GPU variant.
    pub cuda: fn(Size) -> Vec<Workload>,
    /// Its workloads in a sweep.
    pub(crate) sweep: for<'a> fn(&'a Sweep) -> Vec<Task<'a>>,
}

impl OpWorkloads {
    /// Its workloads of a size on a backend.
    pub(crate) fn on(&self, backend: BackendKind, size: Size) -> Vec<Workload> {
        if backend == BackendKind::Cuda { (self.cuda)(size) } else { (self.cpu)(size) }
    }
}

/// Each op with its workloads.
pub const WORKLOADS: &[OpWorkloads] = &[
    attention::OP,
    kda::OP,
    gated_delta::OP,
    ssd::OP,
    selective_scan::OP,
    conv1d::OP,
    nsa::OP,
    rmsnorm::OP,
    linear::OP,
    moe::OP,
    sampling::OP,
    attention::BACKWARD,
    kda::BACKWARD,
    gated_delta::BACKWARD,
    ssd::BACKWARD,
    conv1d::BACKWARD,
    rmsnorm::BACKWARD,
];

/// Uniform random values in [low, high) of a storage type: benchmarks need realistic data, not a particular
/// distribution, and a state of a hundred megabytes must be generated quickly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct UniformValues(pub(crate) DType, pub(crate) f32, pub(crate) f32);

fn uniform(name: &str, shape: &[usize], UniformValues(dtype, low, high): UniformValues) -> Tensor {
    let range = [low, high];
    match dtype {
        DType::F32 => Tensor::uniform::<f32>(name, shape, range),
        DType::Bf16 => Tensor::uniform::<bf16>(name, shape, range),
        DType::F16 => Tensor::uniform::<f16>(name, shape, range),
        _ => Tensor::uniform::<f32>(name, shape, range).cast(dtype),
    }
}

/// Tensors by their names and shapes.
pub(crate) fn tensors(list: &[(&str, &[usize], UniformValues)]) -> TensorMap {
    let generate = |(name, shape, values): &(&str, &[usize], UniformValues)| {
        ((*name).to_owned(), reused::cached_uniform(name, shape, *values))
    };
    list.iter().map(generate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_ops_have_decode_steps_and_every_workload_is_valid() {
        let ops: Vec<&str> = ops::OPS.iter().map(|op| op.spec().name).collect();
        assert_eq!(ops, WORKLOADS.iter().map(|of| of.op).collect::<Vec<_>>());
        // The large GPU shapes are only tested on machines with a GPU: generating them takes memory and time.
        let mut names: Vec<&str> = WORKLOADS
            .iter()
            .flat_map(|of| (of.cuda)(Size::Standard))
            .map(|workload| workload.case)
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() * 2 >= count, "a case is listed for two types at most");
        for OpWorkloads { op, cpu, .. } in WORKLOADS {
            let workloads = cpu(Size::Quick);
            let is_step = |workload: &Workload| workload.case.starts_with("decode");
            let is_gradient = op.ends_with("_backward");
            assert!(is_gradient != workloads.iter().any(is_step), "decode steps of {op}");
            let other = if is_gradient { "train" } else { "prefill" };
            for workload in workloads {
                assert!(is_step(&workload) || workload.case.starts_with(other), "{op}");
                let (inputs, settings) = (workload.build)(workload.dtype);
                let bound = ops::op(op).unwrap().bind(&inputs, &settings);
                assert!(bound.is_ok(), "{op} {}: {}", workload.case, bound.err().unwrap());
            }
        }
    }
}
