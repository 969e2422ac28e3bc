mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "kda",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| call(dtype, sweep.batch, tokens, sweep.heads))
    },
};

pub(super) const BACKWARD: OpWorkloads = OpWorkloads {
    op: "kda_backward",
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
        sweep.over_tokens(|sweep, dtype, tokens| {
            backward(call(dtype, sweep.batch, tokens, sweep.heads))
        })
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
    let wide = [batch, tokens, heads, 128];
    let inputs = tensors(&[
        ("q", &wide, UniformValues(dtype, -1.0, 1.0)),
        ("k", &wide, UniformValues(dtype, -1.0, 1.0)),
        ("v", &wide, UniformValues(dtype, -1.0, 1.0)),
        // Decays of a trained layer: from almost none to about a tenth per token.
        ("g", &wide, UniformValues(dtype, -0.1, 0.0)),
        ("beta", &wide[..3], UniformValues(dtype, 0.0, 1.0)),
        ("initial_state", &[batch, heads, 128, 128], UniformValues(DType::F32, -0.1, 0.1)),
    ]);
    (inputs, Settings::new().with("l2norm", true))
}

/// The call of the backward op for a forward call, without initial states.
fn backward((mut inputs, settings): (TensorMap, Settings)) -> (TensorMap, Settings) {
    inputs.remove("initial_state");
    let v = &inputs["v"];
    let d_o = [("do", v.shape(), UniformValues(v.dtype(), -1.0, 1.0))];
    inputs.extend(tensors(&d_o));
    (inputs, settings)
}

fn train(dtype: DType) -> (TensorMap, Settings) {
    backward(call(dtype, 1, 512, 8))
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 2048, 8)
}

/// 128 MiB of float32 states, read once and written once.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 64, 1, 32)
}
