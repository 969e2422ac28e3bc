mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "moe",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| sweep.over_tokens(|sweep, dtype, tokens| few(dtype, sweep.batch * tokens)),
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, build| Workload { case, dtype, recurrent: false, build };
    let mut list = vec![
        case("prefill-256-e16", DType::Bf16, prefill as fn(DType) -> _),
        case("decode-b1-e16", DType::Bf16, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-256-e16", DType::F32, prefill));
        list.push(case("decode-b1-e16", DType::F32, decode));
    }
    list
}

/// 16 of the 64 experts of Granite 4.0-H tiny, for the CPU.
pub(crate) fn few(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    granite(dtype, [tokens, 1536, 16, 512], 6)
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    few(dtype, 256)
}

fn decode(dtype: DType) -> (TensorMap, Settings) {
    few(dtype, 1)
}

/// Granite's router with experts of these sizes: T, H, E, I.
fn granite(dtype: DType, sizes: [usize; 4], top_k: usize) -> (TensorMap, Settings) {
    let settings = Settings::new().with("top_k", top_k).with("scale", 0.22);
    (experts(dtype, sizes), settings)
}

/// Kimi-Linear's router with its experts.
fn kimi(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    let mut inputs = experts(dtype, [tokens, 2304, 256, 1024]);
    inputs.extend(tensors(&[("correction", &[256], UniformValues(DType::F32, -0.1, 0.1))]));
    let settings = Settings::new().with("top_k", 8).with("score", "sigmoid");
    (inputs, settings.with("weight_scale", 2.446))
}

fn experts(dtype: DType, [tokens, hidden, experts, inner]: [usize; 4]) -> TensorMap {
    tensors(&[
        ("x", &[tokens, hidden], UniformValues(dtype, -1.7, 1.7)),
        ("logits", &[tokens, experts], UniformValues(DType::F32, -3.0, 3.0)),
        ("w_gate_up", &[experts, 2 * inner, hidden], UniformValues(dtype, -0.04, 0.04)),
        ("w_down", &[experts, hidden, inner], UniformValues(dtype, -0.06, 0.06)),
        ("residual", &[tokens, hidden], UniformValues(DType::F32, -1.0, 1.0)),
    ])
}
