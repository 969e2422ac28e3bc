mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "ssd",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| call(dtype, sweep.batch, tokens, sweep.heads))
    },
};

pub(super) const BACKWARD: OpWorkloads = OpWorkloads {
    op: "ssd_backward",
    cpu: |size| {
        let case = |dtype| Workload { case: "train-512", dtype, recurrent: false, build: train };
        let types: &[DType] = match size {
            Size::Standard => &[DType::F32, DType::Bf16],
            Size::Quick => &[DType::F32],
        };
        types.iter().copied().map(case).collect()
    },
    cuda: cuda::backward,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| backward(dtype, sweep.batch, tokens, sweep.heads))
    },
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, recurrent, build| Workload { case, dtype, recurrent, build };
    let mut list = vec![
        case("prefill-2048", DType::F32, true, prefill as fn(DType) -> _),
        case("decode-b64", DType::F32, false, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-2048", DType::Bf16, true, prefill));
        list.push(case("decode-b64", DType::Bf16, false, decode));
    }
    list
}

pub(crate) fn call(
    dtype: DType,
    batch: usize,
    tokens: usize,
    heads: usize,
) -> (TensorMap, Settings) {
    let inputs = tensors(&[
        ("x", &[batch, tokens, heads, 64], UniformValues(dtype, -1.0, 1.0)),
        ("dt", &[batch, tokens, heads], UniformValues(dtype, -4.0, 1.0)),
        ("A", &[heads], UniformValues(DType::F32, -8.0, -0.5)),
        ("B", &[batch, tokens, 1, 128], UniformValues(dtype, -1.0, 1.0)),
        ("C", &[batch, tokens, 1, 128], UniformValues(dtype, -1.0, 1.0)),
        ("D", &[heads], UniformValues(DType::F32, 0.5, 1.5)),
        ("dt_bias", &[heads], UniformValues(DType::F32, -2.0, 0.0)),
        ("initial_state", &[batch, heads, 64, 128], UniformValues(DType::F32, -0.1, 0.1)),
    ]);
    (inputs, Settings::new())
}

/// The call of the backward op, without initial states.
fn backward(dtype: DType, batch: usize, tokens: usize, heads: usize) -> (TensorMap, Settings) {
    let (mut inputs, settings) = call(dtype, batch, tokens, heads);
    inputs.remove("initial_state");
    let d_o = [("do", &[batch, tokens, heads, 64][..], UniformValues(dtype, -1.0, 1.0))];
    inputs.extend(tensors(&d_o));
    (inputs, settings)
}

fn train(dtype: DType) -> (TensorMap, Settings) {
    backward(dtype, 1, 512, 16)
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 2048, 16)
}

/// 128 MiB of float32 states, read once and written once.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 64, 1, 64)
}
