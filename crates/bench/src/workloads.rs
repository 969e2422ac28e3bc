//! What is timed: one file an op, gathered in [`WORKLOADS`].

mod attention;
mod conv1d;
mod gated_delta;
mod kda;
pub(crate) mod linear;
mod moe;
mod nsa;
pub(crate) mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

pub(crate) use attention::cuda::causal as causal_attention;
#[cfg(test)]
pub(crate) use attention::qkv;

use crate::{Size, Sweep};
use facts::BackendKind;
use half::{bf16, f16};
use kernels::{DType, Element, Settings, Tensor, TensorMap};
use std::borrow::Cow;

/// One call worth timing.
pub struct Workload {
    /// `prefill-2048`, `decode-b64`.
    pub case: &'static str,
    /// Storage type.
    pub dtype: DType,
    /// A prefill whose float64 reference is a token-by-token recurrence worth comparing with.
    pub recurrent: bool,
    /// Draws the inputs.
    pub build: fn(DType) -> (TensorMap, Settings),
}

/// A workload of a run: one that is listed, or one of a sweep.
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
    /// Whether it is a step of decoding: a token, or a few, for each sequence.
    pub(crate) fn is_step(&self) -> bool {
        self.case.starts_with("decode")
    }
}

impl From<Workload> for Task<'_> {
    fn from(Workload { case, dtype, recurrent, build }: Workload) -> Self {
        Self { case: case.into(), dtype, recurrent, build: Box::new(build) }
    }
}

/// What is timed of an op.
pub struct OpWorkloads {
    /// Its name.
    pub op: &'static str,
    /// Its workloads of a size on the processor.
    pub cpu: fn(Size) -> Vec<Workload>,
    /// The same on NVIDIA GPUs, which want larger calls; none where it has no variant for them.
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
];

/// Values uniform in [low, high) of a storage type: benchmarks need realistic data, not a particular distribution, and a state
/// of a hundred megabytes must be drawn quickly.
#[derive(Clone, Copy)]
pub(crate) struct Between(pub(crate) DType, pub(crate) f32, pub(crate) f32);

fn uniform(name: &str, shape: &[usize], Between(dtype, low, high): Between) -> Tensor {
    match dtype {
        DType::F32 => drawn::<f32>(name, shape, low, high),
        DType::Bf16 => drawn::<bf16>(name, shape, low, high),
        DType::F16 => drawn::<f16>(name, shape, low, high),
        _ => drawn::<f32>(name, shape, low, high).cast(dtype),
    }
}

/// Values drawn at once; each such run has its own generator, so that all cores draw and the values are the same on
/// any number of them.
const RUN: usize = 1 << 16;

fn drawn<E: Element>(name: &str, shape: &[usize], low: f32, high: f32) -> Tensor {
    Tensor::by_runs::<E>(shape, RUN, |run, stored| {
        let mut draw = verify::Draw::named(&format!("{name}/{run}"));
        let mut values = Vec::with_capacity(RUN + 1);
        while values.len() < stored.len() {
            let bits = draw.bits();
            for half in [bits as u32, (bits >> 32) as u32] {
                values.push(low + (high - low) * (half >> 8) as f32 / (1 << 24) as f32);
            }
        }
        E::narrow(&values[..stored.len()], stored);
    })
}

/// Tensors by their names and shapes.
pub(crate) fn tensors(list: &[(&str, &[usize], Between)]) -> TensorMap {
    let draw = |(name, shape, values): &(&str, &[usize], Between)| {
        ((*name).to_owned(), uniform(name, shape, *values))
    };
    list.iter().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_steps_and_every_workload_binds() {
        let ops: Vec<&str> = kernels::OPS.iter().map(|op| op.spec().name).collect();
        assert_eq!(ops, WORKLOADS.iter().map(|of| of.op).collect::<Vec<_>>());
        // On GPUs the large shapes are left to the machines that have one: drawing them takes memory and time.
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
            assert!(workloads.iter().any(is_step), "{op} has no step of decoding");
            for workload in workloads {
                assert!(is_step(&workload) || workload.case.starts_with("prefill"), "{op}");
                let (inputs, settings) = (workload.build)(workload.dtype);
                let bound = kernels::op(op).unwrap().bind(&inputs, &settings);
                assert!(bound.is_ok(), "{op} {}: {}", workload.case, bound.err().unwrap());
            }
        }
    }
}
