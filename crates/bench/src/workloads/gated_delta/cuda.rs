//! The gated delta rule on a GPU: the layers of Qwen3-Next, 16 heads of queries and keys, 32 of values, K = V = 128.

use super::call;
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-8192-h32", run::<1, 8192> as fn(DType) -> _),
        case("decode-b256-h32", run::<256, 1>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-65536-h32", run::<1, 65536>));
        list.push(case("prefill-b8-8192-h32", run::<8, 8192>));
        list.push(case("decode-b1-h32", run::<1, 1>));
        list.push(case("decode-b64-h32", run::<64, 1>));
    }
    list
}

fn run<const BATCH: usize, const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, BATCH, TOKENS, 32)
}

/// One sequence of 1024 tokens, because the whole backward call is verified in float64, not a sample.
pub(super) fn backward(_: Size) -> Vec<Workload> {
    let build: fn(DType) -> _ = |dtype| super::backward(run::<1, 1024>(dtype));
    vec![Workload { case: "train-1024-h32", dtype: DType::Bf16, recurrent: false, build }]
}
