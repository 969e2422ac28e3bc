//! The state space (SSD) scan on a GPU: with the heads of a Granite 4.0-H or Mamba-2 layer, at shapes that peers support.

use super::call;
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, recurrent, build| Workload { case, dtype: DType::Bf16, recurrent, build };
    let mut list = vec![
        case("prefill-8192-h64", false, run::<1, 8192> as fn(DType) -> _),
        case("decode-b256-h64", false, run::<256, 1>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-65536-h64", false, run::<1, 65536>));
        list.push(case("prefill-b8-8192-h64", false, run::<8, 8192>));
        list.push(case("decode-b1-h64", false, run::<1, 1>));
        list.push(case("decode-b64-h64", false, run::<64, 1>));
        list.push(case("decode-b256-h64-bf16-state", false, bf16_state));
    }
    list
}

/// One sequence of 2048 tokens, because a call of a gradient is verified whole, in float64.
pub(super) fn backward(_: Size) -> Vec<Workload> {
    let build: fn(DType) -> _ = |dtype| super::backward(dtype, 1, 2048, 64);
    vec![Workload { case: "train-2048-h64", dtype: DType::Bf16, recurrent: false, build }]
}

/// States in bfloat16, which halves their bytes.
fn bf16_state(dtype: DType) -> (TensorMap, Settings) {
    let (mut inputs, settings) = run::<256, 1>(dtype);
    if let Some(state) = inputs.get_mut("initial_state") {
        *state = state.cast(DType::Bf16);
    }
    (inputs, settings)
}

fn run<const BATCH: usize, const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, BATCH, TOKENS, 64)
}
