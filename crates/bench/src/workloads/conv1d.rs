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

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 4096)
}

/// 102 MiB of float32 states, read once and written once.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 2048, 1)
}
