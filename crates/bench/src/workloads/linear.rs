mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "linear",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| sweep.over_tokens(|sweep, dtype, tokens| in_proj(dtype, sweep.batch * tokens)),
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, build| Workload { case, dtype, recurrent: false, build };
    let mut list = vec![
        case("prefill-64-out-proj", DType::F32, prefill as fn(DType) -> _),
        case("decode-b1-out-proj", DType::F32, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-64-out-proj", DType::Bf16, prefill));
        list.push(case("decode-b1-out-proj", DType::Bf16, decode));
    }
    list
}

/// The input projection of a Granite 4.0-H micro mixer: normalized input, outputs gate, convolution channels and step
/// sizes.
pub(crate) fn in_proj(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    normed(dtype, [tokens, 2048, 8512], Settings::new().with("split", "4096,4352,64"))
}

/// The gate and up projection of its MLP: normalized input, 8192 gates and as many ups.
fn gate_up(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    normed(dtype, [tokens, 2048, 16_384], Settings::new().with("activation", "swiglu"))
}

/// An output projection with the residual fused: of the mixer (4096 inputs) or of the MLP (8192).
fn output(dtype: DType, tokens: usize, inputs: usize) -> (TensorMap, Settings) {
    let (x, w) = ([tokens, inputs], [2048, inputs]);
    let mut call = tensors(&[
        ("x", &x, UniformValues(dtype, -1.0, 1.0)),
        ("w", &w, UniformValues(dtype, -0.03, 0.03)),
    ]);
    call.extend(tensors(&[("residual", &[tokens, 2048], UniformValues(DType::F32, -1.0, 1.0))]));
    (call, Settings::new().with("scale", 0.22))
}

/// The tied head over a vocabulary of 100352.
fn head(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    normed(dtype, [tokens, 2048, 100_352], Settings::new().with("out", "f32"))
}

/// The query, key, value, gate and beta projections of a Kimi-Linear layer as one.
fn kda(dtype: DType, tokens: usize) -> (TensorMap, Settings) {
    let widths = "4096,4096,4096,128,128,32";
    normed(dtype, [tokens, 2304, 12_576], Settings::new().with("split", widths))
}

/// Normalized rows of the residual stream, which is f32.
fn normed(
    dtype: DType,
    [tokens, inputs, outputs]: [usize; 3],
    settings: Settings,
) -> (TensorMap, Settings) {
    let call = tensors(&[
        ("x", &[tokens, inputs], UniformValues(DType::F32, -1.0, 1.0)),
        ("w", &[outputs, inputs], UniformValues(dtype, -0.03, 0.03)),
        ("norm", &[inputs], UniformValues(DType::F32, 0.5, 1.5)),
    ]);
    (call, settings)
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    output(dtype, 64, 4096)
}

fn decode(dtype: DType) -> (TensorMap, Settings) {
    output(dtype, 1, 4096)
}
