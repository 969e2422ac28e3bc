//! The causal convolution on a GPU, at the shapes of the measured peers.

use super::call;
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-8192-c4352", run::<1, 8192> as fn(DType) -> _),
        case("decode-b256-c4352", run::<256, 1>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-b8-8192-c4352", run::<8, 8192>));
        list.push(case("decode-b1-c4352", run::<1, 1>));
    }
    list
}

/// One sequence, because the whole backward call is verified in float64, not a sample.
pub(super) fn backward(_: Size) -> Vec<Workload> {
    let build: fn(DType) -> _ = |dtype| super::backward(dtype, 1, 8192);
    vec![Workload { case: "train-8192-c4352", dtype: DType::Bf16, recurrent: false, build }]
}

fn run<const BATCH: usize, const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, BATCH, TOKENS)
}
