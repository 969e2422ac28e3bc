//! RMSNorm on a GPU, in the mixers of Granite 4.0-H micro and Kimi-Linear.

use super::{kda, mamba};
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-8192-d4096", granite::<1, 8192> as fn(DType) -> _),
        case("prefill-8192-g32-d128", kimi::<1, 8192>),
        case("decode-b256-d4096", granite::<256, 1>),
    ];
    if size == Size::Standard {
        list.push(case("decode-b1-d4096", granite::<1, 1>));
        list.push(case("decode-b256-g32-d128", kimi::<256, 1>));
    }
    list
}

pub(super) fn backward(_: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    vec![
        case(
            "train-8192-d4096",
            (|dtype| super::backward(granite::<1, 8192>(dtype))) as fn(DType) -> _,
        ),
        case("train-8192-g32-d128", |dtype| super::backward(kimi::<1, 8192>(dtype))),
    ]
}

fn granite<const BATCH: usize, const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    mamba(dtype, BATCH, TOKENS)
}

fn kimi<const BATCH: usize, const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    kda(dtype, BATCH, TOKENS)
}
