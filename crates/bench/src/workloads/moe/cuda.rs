//! Routed experts on a GPU with the sizes of Granite 4.0-H tiny and small and of Kimi-Linear, all experts in memory.

use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("decode-b1-h-tiny", tiny::<1> as fn(DType) -> _),
        case("prefill-4096-h-tiny", tiny::<4096>),
        case("decode-b1-kimi", kimi::<1>),
        case("prefill-4096-kimi", kimi::<4096>),
    ];
    if size == Size::Standard {
        list.push(case("decode-b8-h-tiny", tiny::<8>));
        list.push(case("decode-b32-h-tiny", tiny::<32>));
        list.push(case("prefill-512-h-tiny", tiny::<512>));
        list.push(case("decode-b1-h-small", small::<1>));
        list.push(case("prefill-4096-h-small", small::<4096>));
        list.push(case("decode-b32-kimi", kimi::<32>));
        list.push(case("prefill-512-kimi", kimi::<512>));
    }
    list
}

fn tiny<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    super::granite(dtype, [TOKENS, 1536, 64, 512], 6)
}

fn small<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    super::granite(dtype, [TOKENS, 4096, 72, 768], 10)
}

fn kimi<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    super::kimi(dtype, TOKENS)
}
