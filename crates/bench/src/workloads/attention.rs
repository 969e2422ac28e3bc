pub(super) mod cuda;

use super::{OpWorkloads, Task, UniformValues, Workload, tensors};
use crate::{Size, Sweep};
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads =
    OpWorkloads { op: "attention", cpu: workloads, cuda: cuda::workloads, sweep };

pub(super) const BACKWARD: OpWorkloads = OpWorkloads {
    op: "attention_backward",
    cpu: |size| {
        let case = |dtype| Workload { case: "train-512", dtype, recurrent: false, build: train };
        let types: &[DType] = match size {
            Size::Standard => &[DType::F32, DType::Bf16],
            Size::Quick => &[DType::F32],
        };
        types.iter().copied().map(case).collect()
    },
    cuda: cuda::backward,
    sweep: |sweep| tasks(sweep, "train", gradient),
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, build| Workload { case, dtype, recurrent: false, build };
    let mut list = vec![
        case("prefill-2048", DType::F32, prefill),
        case("prefill-2048", DType::Bf16, prefill),
        case("decode-b8", DType::F32, decode),
        case("decode-b8", DType::Bf16, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-2048-causal", DType::F32, causal));
        list.push(case("prefill-2048-causal", DType::Bf16, causal));
        list.push(case("prefill-1024-d512", DType::F32, wide));
    }
    list
}

/// A call on queries and keys of one shape.
type Build = fn(DType, [usize; 4], bool) -> (TensorMap, Settings);

fn sweep(sweep: &Sweep) -> Vec<Task<'_>> {
    tasks(sweep, "prefill", square)
}

/// One workload per head dimension and number of tokens.
fn tasks<'a>(sweep: &'a Sweep, name: &str, build: Build) -> Vec<Task<'a>> {
    let suffix = if sweep.causal { "-causal" } else { "" };
    let task = |tokens: usize, dim: usize| {
        let shape = [sweep.batch, tokens, sweep.heads, dim];
        Task {
            case: format!("{name}-{tokens}-d{dim}{suffix}").into(),
            dtype: sweep.dtype,
            recurrent: false,
            build: Box::new(move |dtype| build(dtype, shape, sweep.causal)),
        }
    };
    let over_dims =
        |tokens: &usize| sweep.dims.iter().map(|dim| task(*tokens, *dim)).collect::<Vec<_>>();
    sweep.tokens.iter().flat_map(over_dims).collect()
}

fn square(dtype: DType, shape: [usize; 4], causal: bool) -> (TensorMap, Settings) {
    (qkv(dtype, shape, shape), Settings::new().with("causal", causal))
}

/// The call of the gradient. o and lse have the sizes that a forward call gives, which the formulas do not require to be its results.
fn gradient(dtype: DType, shape: [usize; 4], causal: bool) -> (TensorMap, Settings) {
    let (mut inputs, settings) = square(dtype, shape, causal);
    let [batch, tokens, heads, _] = shape;
    let log_tokens = (tokens.max(1) as f32).ln();
    inputs.extend(tensors(&[
        ("o", &shape, UniformValues(dtype, -0.1, 0.1)),
        ("lse", &[batch, heads, tokens], UniformValues(DType::F32, log_tokens, log_tokens + 2.0)),
        ("do", &shape, UniformValues(dtype, -1.0, 1.0)),
    ]));
    (inputs, settings)
}

fn train(dtype: DType) -> (TensorMap, Settings) {
    gradient(dtype, [1, 512, 8, 128], true)
}

pub(crate) fn qkv(dtype: DType, q: [usize; 4], k: [usize; 4]) -> TensorMap {
    tensors(&[
        ("q", &q, UniformValues(dtype, -2.0, 2.0)),
        ("k", &k, UniformValues(dtype, -2.0, 2.0)),
        ("v", &k, UniformValues(dtype, -1.0, 1.0)),
    ])
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    square(dtype, [1, 2048, 8, 128], false)
}

fn causal(dtype: DType) -> (TensorMap, Settings) {
    square(dtype, [1, 2048, 8, 128], true)
}

fn wide(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [1, 1024, 4, 512], [1, 1024, 4, 512]), Settings::new())
}

/// One token of eight sequences over 4096 keys: 256 MiB of float32 keys and values, read once by four heads each.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [8, 1, 32, 128], [8, 4096, 8, 128]), Settings::new().with("causal", true))
}
