//! The selective scan on a GPU: with the channels of a Jamba or FalconMamba layer (8192), and of Mamba-130m (1536).

use super::call;
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, recurrent, build| Workload { case, dtype: DType::Bf16, recurrent, build };
    let mut list = vec![
        case("prefill-4096-e8192", true, run::<1, 4096, 8192> as fn(DType) -> _),
        case("decode-b32-e8192", false, run::<32, 1, 8192>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-4096-e8192-fresh", true, fresh));
        list.push(case("prefill-b8-4096-e8192", true, run::<8, 4096, 8192>));
        list.push(case("prefill-4096-e1536", true, run::<1, 4096, 1536>));
        list.push(case("decode-b1-e8192", false, run::<1, 1, 8192>));
        list.push(case("decode-b256-e8192", false, run::<256, 1, 8192>));
    }
    list
}

fn run<const BATCH: usize, const TOKENS: usize, const CHANNELS: usize>(
    dtype: DType,
) -> (TensorMap, Settings) {
    call(dtype, BATCH, TOKENS, CHANNELS)
}

/// A call that mamba_ssm's `selective_scan_fn` supports: no initial state, and step sizes in the storage type.
fn fresh(dtype: DType) -> (TensorMap, Settings) {
    let (mut inputs, settings) = call(dtype, 1, 4096, 8192);
    inputs.remove("initial_state");
    if let Some(delta) = inputs.get_mut("delta") {
        *delta = delta.cast(dtype);
    }
    (inputs, settings)
}
