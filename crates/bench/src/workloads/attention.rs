pub(super) mod cuda;

use super::{OpWorkloads, Task, UniformValues, Workload, tensors};
use crate::{Size, Sweep};
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads =
    OpWorkloads { op: "attention", cpu: workloads, cuda: cuda::workloads, sweep };

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

/// One workload per head dimension and number of tokens.
fn sweep(sweep: &Sweep) -> Vec<Task<'_>> {
    let suffix = if sweep.causal { "-causal" } else { "" };
    let task = |tokens: usize, dim: usize| {
        let shape = [sweep.batch, tokens, sweep.heads, dim];
        Task {
            case: format!("prefill-{tokens}-d{dim}{suffix}").into(),
            dtype: sweep.dtype,
            recurrent: false,
            build: Box::new(move |dtype| {
                (qkv(dtype, shape, shape), Settings::new().with("causal", sweep.causal))
            }),
        }
    };
    let over_dims =
        |tokens: &usize| sweep.dims.iter().map(|dim| task(*tokens, *dim)).collect::<Vec<_>>();
    sweep.tokens.iter().flat_map(over_dims).collect()
}

pub(crate) fn qkv(dtype: DType, q: [usize; 4], k: [usize; 4]) -> TensorMap {
    tensors(&[
        ("q", &q, UniformValues(dtype, -2.0, 2.0)),
        ("k", &k, UniformValues(dtype, -2.0, 2.0)),
        ("v", &k, UniformValues(dtype, -1.0, 1.0)),
    ])
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [1, 2048, 8, 128], [1, 2048, 8, 128]), Settings::new())
}

fn causal(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [1, 2048, 8, 128], [1, 2048, 8, 128]), Settings::new().with("causal", true))
}

fn wide(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [1, 1024, 4, 512], [1, 1024, 4, 512]), Settings::new())
}

/// One token of eight sequences over 4096 keys: 256 MiB of float32 keys and values, read once by four heads each.
fn decode(dtype: DType) -> (TensorMap, Settings) {
    (qkv(dtype, [8, 1, 32, 128], [8, 4096, 8, 128]), Settings::new().with("causal", true))
}
