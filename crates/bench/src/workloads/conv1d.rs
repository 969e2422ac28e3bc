mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "conv1d",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| sweep.over_tokens(|sweep, dtype, tokens| call(dtype, sweep.batch, tokens)),
};

pub(super) const BACKWARD: OpWorkloads = OpWorkloads {
    op: "conv1d_backward",
    cpu: |size| {
        let case = |dtype| Workload { case: "train-4096", dtype, recurrent: false, build: train };
        let types: &[DType] = match size {
            Size::Standard => &[DType::F32, DType::Bf16],
            Size::Quick => &[DType::F32],
        };
        types.iter().copied().map(case).collect()
    },
    cuda: cuda::backward,
    sweep: |sweep| sweep.over_tokens(|sweep, dtype, tokens| backward(dtype, sweep.batch, tokens)),
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, build| Workload { case, dtype, recurrent: false, build };
    let mut list = vec![
        case("prefill-4096", DType::F32, prefill as fn(DType) -> _),
        case("decode-b2048", DType::F32, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-4096", DType::Bf16, prefill));
        list.push(case("decode-b2048", DType::Bf16, decode));
    }
    list
}

/// The channels of a Granite 4.0-H micro layer.
const CHANNELS: usize = 4352;

pub(crate) fn call(dtype: DType, batch: usize, tokens: usize) -> (TensorMap, Settings) {
    let inputs = tensors(&[
        ("x", &[batch, tokens, CHANNELS], UniformValues(dtype, -1.0, 1.0)),
        ("weight", &[CHANNELS, 4], UniformValues(dtype, -0.5, 0.5)),
        ("bias", &[CHANNELS], UniformValues(dtype, -0.5, 0.5)),
        ("initial_state", &[batch, CHANNELS, 3], UniformValues(DType::F32, -1.0, 1.0)),
    ]);
    (inputs, Settings::new().with("activation", "silu"))
}

/// The call of the gradient: sequences start without a state.
fn backward(dtype: DType, batch: usize, tokens: usize) -> (TensorMap, Settings) {
    let (mut inputs, settings) = call(dtype, batch, tokens);
    inputs.remove("initial_state");
    let d_o = [("do", &[batch, tokens, CHANNELS][..], UniformValues(dtype, -1.0, 1.0))];
    inputs.extend(tensors(&d_o));
    (inputs, settings)
}

fn train(dtype: DType) -> (TensorMap, Settings) {
    backward(dtype, 1, 4096)
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 4096)
}

/// 102 MiB of float32 states, read once and written once.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 2048, 1)
}
