//! Attention on a GPU: the sweep over head dimensions at one long sequence, and decoding over long caches.

use super::{gradient, qkv};
use crate::Size;
use crate::workloads::Workload;
use ops::{DType, Settings, TensorMap};

/// One case: its name, type and inputs.
type ListedCase = (&'static str, DType, fn(DType) -> (TensorMap, Settings));

macro_rules! sweep {
    ($($dim:literal)*) => {
        &[$(
            (concat!("prefill-8192-d", $dim), DType::Bf16, square::<$dim, false> as fn(DType) -> _),
            (concat!("prefill-8192-d", $dim, "-causal"), DType::Bf16, square::<$dim, true>),
        )*]
    };
}

const QUICK: &[ListedCase] = &[
    ("prefill-8192-d128", DType::Bf16, square::<128, false>),
    ("prefill-8192-d128-causal", DType::Bf16, square::<128, true>),
    ("prefill-8192-d512", DType::Bf16, square::<512, false>),
    ("decode-b8-tk32768", DType::Bf16, decode::<8>),
];

const SWEEP: &[ListedCase] =
    sweep!(64 128 192 256 320 384 448 512 576 640 704 768 832 896 960 1024);

const STANDARD: &[ListedCase] = &[
    ("prefill-8192-d128-f16", DType::F16, square::<128, false>),
    ("prefill-8192-d100", DType::Bf16, square::<100, false>),
    ("prefill-8192-mla", DType::Bf16, mla),
    ("decode-b1-tk32768", DType::Bf16, decode::<1>),
    ("decode-b8-tk32768", DType::Bf16, decode::<8>),
    ("decode-b32-tk32768", DType::Bf16, decode::<32>),
    ("decode-b64-tk32768", DType::Bf16, decode::<64>),
    ("decode-latent-tk131072", DType::Bf16, decode_latent),
];

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let listed: Vec<&ListedCase> = match size {
        Size::Quick => QUICK.iter().collect(),
        Size::Standard => SWEEP.iter().chain(STANDARD).collect(),
    };
    let workload = |(case, dtype, build): &ListedCase| Workload {
        case,
        dtype: *dtype,
        recurrent: false,
        build: *build,
    };
    listed.into_iter().map(workload).collect()
}

/// Calls of the gradient on 2048 tokens: all of a head's are checked in float64, whose time grows with their square.
pub(super) fn backward(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![case("train-2048-d128-causal", train::<128, true> as fn(DType) -> _)];
    if size == Size::Standard {
        list.push(case("train-2048-d128", train::<128, false>));
        list.push(case("train-2048-d64-causal", train::<64, true>));
        list.push(case("train-2048-d256-causal", train::<256, true>));
    }
    list
}

fn train<const DIM: usize, const CAUSAL: bool>(dtype: DType) -> (TensorMap, Settings) {
    gradient(dtype, [1, 2048, 32, DIM], CAUSAL)
}

/// The shape of the measured peers: one sequence of 8192 tokens, 32 heads.
fn square<const DIM: usize, const CAUSAL: bool>(dtype: DType) -> (TensorMap, Settings) {
    let shape = [1, 8192, 32, DIM];
    (qkv(dtype, shape, shape), Settings::new().with("causal", CAUSAL))
}

/// The latent form of multi-head latent attention: one key head, values that are the first channels of the keys.
fn mla(dtype: DType) -> (TensorMap, Settings) {
    let mut tensors = qkv(dtype, [1, 8192, 16, 576], [1, 8192, 1, 576]);
    tensors.extend(qkv(dtype, [1, 8192, 16, 576], [1, 8192, 1, 512]).remove_entry("v"));
    (tensors, Settings::new().with("causal", true))
}

/// One token of one sequence over a long latent cache, with Kimi Linear's 32 heads.
fn decode_latent(dtype: DType) -> (TensorMap, Settings) {
    let mut tensors = qkv(dtype, [1, 1, 32, 576], [1, 131_072, 1, 576]);
    tensors.remove("v");
    (tensors, Settings::new().with("causal", true).with("value_width", 512))
}

/// One token of each sequence over 32768 keys, four query heads for each key head.
fn decode<const BATCH: usize>(dtype: DType) -> (TensorMap, Settings) {
    let (q, k) = ([BATCH, 1, 32, 128], [BATCH, 32768, 8, 128]);
    (qkv(dtype, q, k), Settings::new().with("causal", true))
}

/// The last queries of four sequences, four query heads per key head: used to compare variants.
pub(crate) fn causal(
    dtype: DType,
    queries: usize,
    keys: usize,
    dim: usize,
) -> (TensorMap, Settings) {
    let (q, k) = ([4, queries, 32, dim], [4, keys, 8, dim]);
    (qkv(dtype, q, k), Settings::new().with("causal", true))
}
