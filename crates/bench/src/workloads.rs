//! What is timed: one file an op, gathered in [`WORKLOADS`].

mod attention;
mod conv1d;
mod kda;
mod nsa;
mod ssd;

use crate::Size;
use kernels::{DType, Element, Settings, Tensor, TensorMap};

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

/// An op's name and its workloads of a size.
pub type OpWorkloads = (&'static str, fn(Size) -> Vec<Workload>);

/// Each op with its workloads.
pub const WORKLOADS: &[OpWorkloads] = &[
    ("attention", attention::workloads),
    ("kda", kda::workloads),
    ("ssd", ssd::workloads),
    ("conv1d", conv1d::workloads),
    ("nsa", nsa::workloads),
];

/// Values uniform in [low, high): benchmarks need realistic data, not a particular distribution, and a state of a
/// hundred megabytes must be drawn quickly.
fn uniform(name: &str, shape: &[usize], dtype: DType, low: f32, high: f32) -> Tensor {
    let mut draw = verify::Draw::named(name);
    let count: usize = shape.iter().product();
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let bits = draw.bits();
        for half in [bits as u32, (bits >> 32) as u32] {
            values.push(low + (high - low) * (half >> 8) as f32 / (1 << 24) as f32);
        }
    }
    values.truncate(count);
    match dtype {
        DType::F32 => Tensor::new(shape, values),
        DType::Bf16 => narrow::<half::bf16>(shape, &values),
        DType::F16 => narrow::<half::f16>(shape, &values),
        _ => Tensor::new(shape, values).cast(dtype),
    }
}

fn narrow<E: Element>(shape: &[usize], values: &[f32]) -> Tensor {
    let mut stored = vec![E::default(); values.len()];
    E::narrow(values, &mut stored);
    Tensor::new(shape, stored)
}

/// Named uniform tensors: `(name, shape, dtype, low, high)`.
fn tensors(list: &[(&str, &[usize], DType, f32, f32)]) -> TensorMap {
    let draw = |(name, shape, dtype, low, high): &(&str, &[usize], DType, f32, f32)| {
        ((*name).to_owned(), uniform(name, shape, *dtype, *low, *high))
    };
    list.iter().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_prefill_and_decode_and_every_workload_binds() {
        let ops: Vec<&str> = kernels::OPS.iter().map(|op| op.spec().name).collect();
        assert_eq!(ops, WORKLOADS.iter().map(|(op, _)| *op).collect::<Vec<_>>());
        for (name, workloads) in WORKLOADS {
            let workloads = workloads(Size::Quick);
            for form in ["prefill", "decode"] {
                assert!(
                    workloads.iter().any(|workload| workload.case.starts_with(form)),
                    "{name} has no {form}"
                );
            }
            for workload in workloads {
                let (inputs, settings) = (workload.build)(workload.dtype);
                let bound = kernels::op(name).unwrap().bind(&inputs, &settings);
                assert!(bound.is_ok(), "{name} {}: {}", workload.case, bound.err().unwrap());
            }
        }
    }
}
