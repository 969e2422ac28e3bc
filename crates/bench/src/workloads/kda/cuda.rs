//! KDA on a GPU: the layers of Kimi Linear, K = V = 128, at the shapes of the measured peers.

use super::call;
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-8192-h32", run::<1, 8192, 32> as fn(DType) -> _),
        case("decode-b256-h32", run::<256, 1, 32>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-65536-h32", run::<1, 65536, 32>));
        list.push(case("prefill-b8-8192-h32", run::<8, 8192, 32>));
        list.push(case("decode-b1-h32", run::<1, 1, 32>));
        list.push(case("decode-b64-h32", run::<64, 1, 32>));
        // Last, since Triton compiles and tunes again for other numbers of heads.
        list.push(case("prefill-8192-h64", run::<1, 8192, 64>));
        list.push(case("prefill-8192-h96", run::<1, 8192, 96>));
    }
    list
}

fn run<const BATCH: usize, const TOKENS: usize, const HEADS: usize>(
    dtype: DType,
) -> (TensorMap, Settings) {
    call(dtype, BATCH, TOKENS, HEADS)
}

/// One sequence of 1024 tokens, because a call of a gradient is verified whole, in float64.
pub(super) fn backward(_: Size) -> Vec<Workload> {
    let build: fn(DType) -> _ = |dtype| super::backward(run::<1, 1024, 32>(dtype));
    vec![Workload { case: "train-1024-h32", dtype: DType::Bf16, recurrent: false, build }]
}
