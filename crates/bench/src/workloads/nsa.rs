mod cuda;

use super::{OpWorkloads, UniformValues, Workload, tensors};
use crate::Size;
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpWorkloads = OpWorkloads {
    op: "nsa",
    cpu: workloads,
    cuda: cuda::workloads,
    sweep: |sweep| {
        sweep.over_tokens(|sweep, dtype, tokens| cuda::call(dtype, sweep.batch, tokens, tokens))
    },
};

fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, dtype, build| Workload { case, dtype, recurrent: false, build };
    let mut list = vec![
        case("prefill-2048", DType::F32, prefill as fn(DType) -> _),
        case("decode-4096", DType::F32, decode),
    ];
    if size == Size::Standard {
        list.push(case("prefill-2048", DType::Bf16, prefill));
        list.push(case("decode-4096", DType::Bf16, decode));
    }
    list
}

/// The NSA paper's heads: 16 query heads per key head, key dimension 192, value dimension 128.
fn call(dtype: DType, batch: usize, queries: usize, keys: usize) -> (TensorMap, Settings) {
    let gate = [batch, queries, 16];
    let inputs = tensors(&[
        ("q", &[batch, queries, 16, 192], UniformValues(dtype, -1.0, 1.0)),
        ("k", &[batch, keys, 1, 192], UniformValues(dtype, -1.0, 1.0)),
        ("v", &[batch, keys, 1, 128], UniformValues(dtype, -1.0, 1.0)),
        ("g_cmp", &gate, UniformValues(dtype, 0.0, 1.0)),
        ("g_slc", &gate, UniformValues(dtype, 0.0, 1.0)),
        ("g_swa", &gate, UniformValues(dtype, 0.0, 1.0)),
    ]);
    (inputs, Settings::new())
}

fn prefill(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, 2048, 2048)
}

fn decode(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 4, 1, 4096)
}
