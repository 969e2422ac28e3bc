mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "selective_scan",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| call(dtype, sweep.batch, tokens, 64 * sweep.heads))
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
    channels: usize,
) -> (TensorMap, Settings) {
    let inputs = tensors(&[
        ("u", &[batch, tokens, channels], UniformValues(dtype, -1.0, 1.0)),
        ("delta", &[batch, tokens, channels], UniformValues(DType::F32, -4.0, 1.0)),
        ("A", &[channels, 16], UniformValues(DType::F32, -16.0, -0.5)),
        ("B", &[batch, tokens, 1, 16], UniformValues(dtype, -1.0, 1.0)),
        ("C", &[batch, tokens, 1, 16], UniformValues(dtype, -1.0, 1.0)),
        ("D", &[channels], UniformValues(DType::F32, 0.5, 1.5)),
        ("z", &[batch, tokens, channels], UniformValues(dtype, -1.0, 1.0)),
        ("delta_bias", &[channels], UniformValues(DType::F32, -2.0, 0.0)),
        ("initial_state", &[batch, channels, 16], UniformValues(DType::F32, -0.1, 0.1)),
    ]);
    (inputs, Settings::new())
}

/// The smallest Mamba.
fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 2048, 1536)
}

/// Jamba: 32 MiB of float32 states, read once and written once.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 64, 1, 8192)
}
