//! Linear projections on a GPU: those of Granite 4.0-H micro, and the widest of Kimi-Linear.

use super::{gate_up, head, in_proj, kda, output};
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-4096-in-proj", mixer::<4096> as fn(DType) -> _),
        case("prefill-4096-gate-up", mlp::<4096>),
        case("decode-b1-in-proj", mixer::<1>),
        case("decode-b1-out-proj", out_proj::<1>),
        case("decode-b1-gate-up", mlp::<1>),
        case("decode-b1-down", down_proj::<1>),
        case("decode-b32-in-proj", mixer::<32>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-512-in-proj", mixer::<512>));
        list.push(case("prefill-512-gate-up", mlp::<512>));
        list.push(case("prefill-4096-out-proj", out_proj::<4096>));
        list.push(case("prefill-4096-down", down_proj::<4096>));
        list.push(case("prefill-4096-kimi-kda", kimi::<4096>));
        list.push(case("decode-b2-gate-up", mlp::<2>));
        list.push(case("decode-b8-in-proj", mixer::<8>));
        list.push(case("decode-b8-gate-up", mlp::<8>));
        list.push(case("decode-b32-gate-up", mlp::<32>));
        list.push(case("decode-b32-down", down_proj::<32>));
        list.push(case("decode-b1-head", logits::<1>));
        list.push(case("decode-b32-head", logits::<32>));
        list.push(case("decode-b1-kimi-kda", kimi::<1>));
    }
    list
}

fn mixer<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    in_proj(dtype, TOKENS)
}

fn out_proj<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    output(dtype, TOKENS, 4096)
}

fn mlp<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    gate_up(dtype, TOKENS)
}

fn down_proj<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    output(dtype, TOKENS, 8192)
}

fn logits<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    head(dtype, TOKENS)
}

fn kimi<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    kda(dtype, TOKENS)
}
