//! NSA on a GPU: the shapes of the measured peer (fla: blocks of 64 tokens, compressed and selected branch), and
//! decoding steps over caches with compressed tokens.

use crate::Size;
use crate::workloads::{UniformValues, Workload, tensors};
use ops::{DType, Settings, TensorMap};

/// Tokens per block, compressed or selected.
const BLOCK: usize = 64;
const HEADS: usize = 64;
const KV_HEADS: usize = 4;
const DIM: usize = 128;

pub(super) fn workloads(size: Size) -> Vec<Workload> {
    let case = |case, build| Workload { case, dtype: DType::Bf16, recurrent: false, build };
    let mut list = vec![
        case("prefill-8192-hq64", prefill::<8192> as fn(DType) -> _),
        case("decode-b1-tk8192", decode::<1, 8192>),
    ];
    if size == Size::Standard {
        list.push(case("prefill-32768-hq64", prefill::<32768>));
        list.push(case("prefill-65536-hq64", prefill::<65536>));
        list.push(case("decode-b1-tk131072", decode::<1, 131_072>));
        list.push(case("decode-b16-tk8192", decode::<16, 8192>));
        list.push(case("decode-b16-tk131072", decode::<16, 131_072>));
    }
    list
}

pub(crate) fn call(
    dtype: DType,
    batch: usize,
    queries: usize,
    keys: usize,
) -> (TensorMap, Settings) {
    let gate = [batch, queries, HEADS];
    let cache = [batch, keys, KV_HEADS, DIM];
    let inputs = tensors(&[
        ("q", &[batch, queries, HEADS, DIM], UniformValues(dtype, -1.0, 1.0)),
        ("k", &cache, UniformValues(dtype, -1.0, 1.0)),
        ("v", &cache, UniformValues(dtype, -1.0, 1.0)),
        ("g_cmp", &gate, UniformValues(dtype, 0.0, 1.0)),
        ("g_slc", &gate, UniformValues(dtype, 0.0, 1.0)),
    ]);
    let settings = ["compress_block", "compress_stride", "select_block"];
    (inputs, settings.iter().fold(Settings::new(), |all, name| all.with(name, BLOCK)))
}

fn prefill<const TOKENS: usize>(dtype: DType) -> (TensorMap, Settings) {
    call(dtype, 1, TOKENS, TOKENS)
}

/// One token per sequence; compressed tokens have the magnitude of a block's mean.
fn decode<const BATCH: usize, const KEYS: usize>(dtype: DType) -> (TensorMap, Settings) {
    let (mut inputs, settings) = call(dtype, BATCH, 1, KEYS);
    let rows = [BATCH, KEYS / BLOCK, KV_HEADS, DIM];
    let small = (BLOCK as f32).powf(-0.5);
    inputs.extend(tensors(&[
        ("k_cmp", &rows, UniformValues(dtype, -small, small)),
        ("v_cmp", &rows, UniformValues(dtype, -small, small)),
    ]));
    (inputs, settings)
}
