mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "rmsnorm",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| sweep.over_tokens(|sweep, dtype, tokens| mamba(dtype, sweep.batch, tokens)),
};

pub(super) const BACKWARD: OpWorkloads = OpWorkloads {
    op: "rmsnorm_backward",
    cpu: |size| {
        let case = |dtype| Workload { case: "train-4096", dtype, recurrent: false, build: train };
        let types: &[DType] = match size {
            Size::Standard => &[DType::F32, DType::Bf16],
            Size::Quick => &[DType::F32],
        };
        types.iter().copied().map(case).collect()
    },
    cuda: cuda::backward,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| backward(mamba(dtype, sweep.batch, tokens)))
    },
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

/// The gated norm of a Granite 4.0-H micro mixer: over all 4096 channels, with the gate applied before the norm.
pub(crate) fn mamba(dtype: DType, batch: usize, tokens: usize) -> (TensorMap, Settings) {
    (gated(dtype, [batch, tokens, 1, 4096]), Settings::new())
}

/// The output norm of a Kimi-Linear layer: over each of 32 heads of 128 channels, with the gate applied after the norm.
fn kda(dtype: DType, batch: usize, tokens: usize) -> (TensorMap, Settings) {
    let settings = Settings::new().with("norm_before_gate", true).with("activation", "sigmoid");
    (gated(dtype, [batch, tokens, 32, 128]), settings)
}

fn gated(dtype: DType, shape: [usize; 4]) -> TensorMap {
    tensors(&[
        ("x", &shape, UniformValues(dtype, -1.0, 1.0)),
        ("gate", &shape, UniformValues(dtype, -2.0, 2.0)),
        ("weight", &shape[3..], UniformValues(dtype, 0.5, 1.5)),
    ])
}

/// The call of the gradient of a call.
fn backward((mut inputs, settings): (TensorMap, Settings)) -> (TensorMap, Settings) {
    let x = &inputs["x"];
    let d_o = [("do", x.shape(), UniformValues(x.dtype(), -1.0, 1.0))];
    inputs.extend(tensors(&d_o));
    (inputs, settings)
}

fn train(dtype: DType) -> (TensorMap, Settings) {
    backward(mamba(dtype, 1, 4096))
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    mamba(dtype, 1, 4096)
}

fn decode(dtype: DType) -> (TensorMap, Settings) {
    mamba(dtype, 2048, 1)
}
