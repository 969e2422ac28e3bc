use super::OpCases;
use super::list::{ALL, BF16, Call, F16, F32, F32_BF16, List, offsets};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, QueryTokens, Shared, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, Tensor, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "nsa", cases, layout: LAYOUT };

const LAYOUT: Layout = Layout {
    heads: ("q", 2),
    shared: ("k", 2),
    whole_groups: true,
    tensors: &[
        ("q", &[Batch, QueryTokens, Head, Whole]),
        ("k", &[Batch, Whole, Shared, Whole]),
        ("v", &[Batch, Whole, Shared, Whole]),
        ("g_cmp", &[Batch, QueryTokens, Head]),
        ("g_slc", &[Batch, QueryTokens, Head]),
        ("g_swa", &[Batch, QueryTokens, Head]),
        ("block_indices", &[Batch, QueryTokens, Shared, Whole]),
        ("k_cmp", &[Batch, Whole, Shared, Whole]),
        ("v_cmp", &[Batch, Whole, Shared, Whole]),
        ("cmp_k_weight", &[Shared, Whole, Whole]),
        ("cmp_v_weight", &[Shared, Whole, Whole]),
        ("cmp_k_pos", &[Shared, Whole, Whole]),
        ("cmp_v_pos", &[Shared, Whole, Whole]),
        ("o", &[Batch, QueryTokens, Head, Whole]),
        ("indices", &[Batch, QueryTokens, Shared, Whole]),
        ("reads", &[Batch, QueryTokens, Shared, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    fla(&mut list);
    paper(&mut list);
    selection(&mut list);
    caches(&mut list);
    edges(&mut list);
    let call = Nsa::new(40, 150).heads(8, 2).blocks(8, 4, 16, 4).set("window", 20);
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// fla's suite with its definitions: mean pooling, l = d = l', sigmoid gates.
fn fla(list: &mut List) {
    let half = &[DType::Bf16, DType::F16];
    let fla = |tokens: usize| Nsa::new(tokens, tokens).aligned(32).set("gate", "sigmoid");
    list.add(Quick, "fla/t63-hq16-d64", ALL, &fla(63).heads(16, 1).dims(64, 64));
    list.add(Quick, "fla/t111-hq32-d100", BF16, &fla(111).heads(32, 2).dims(100, 100));
    list.add(Standard, "fla/t111-hq32-d60", half, &fla(111).batch(2).heads(32, 1).dims(60, 60));
    let long = |tokens, dim| fla(tokens).heads(16, 1).dims(dim, dim).set("select_count", 8);
    list.add(Standard, "fla/t500-d128", half, &long(500, 128).set("window", 64));
    list.add(Standard, "fla/t1024-d60", F16, &long(1024, 60).set("window", 64));
    list.add(Full, "fla/t1024-d128", BF16, &long(1024, 128));
    list.add(Full, "fla/t2048-d64", BF16, &long(2048, 64).set("window", 128));
    list.add(Standard, "fla/t200-d128-v320", half, &fla(200).heads(16, 1).dims(128, 320));
    for (queries, keys, tier) in [
        (1, 1, Quick),
        (1, 33, Quick),
        (1, 700, Standard),
        (7, 300, Quick),
        (65, 129, Standard),
        (280, 400, Standard),
    ] {
        let decode = Nsa::new(queries, keys).heads(16, 1).dims(64, 64).aligned(32);
        let name = format!("fla/decode-tq{queries}-tk{keys}");
        list.add(tier, &name, F32_BF16, &decode.set("select_count", 4));
    }
    // Without a window and with gates as given: the configuration that fla runs on its own kernels only.
    let own = |queries, keys| Nsa::new(queries, keys).heads(16, 1).dims(64, 64).aligned(32);
    for (queries, keys) in [(111, 111), (7, 300)] {
        let call = own(queries, keys).branches("cs").set("select_count", 4);
        list.add(Quick, &format!("fla/no-window-tq{queries}-tk{keys}"), F32_BF16, &call);
    }
    let varlen = fla(0).heads(16, 1).dims(64, 64).set("select_count", 4);
    let lengths = [(15, 15), (85, 85), (0, 0), (200, 200)];
    list.add(Standard, "fla/varlen-15-100-100-300", ALL, &varlen.packed(&lengths));
}

/// The paper's sizes and other definitions.
fn paper(list: &mut List) {
    let paper = |queries, keys| Nsa::new(queries, keys).dims(192, 128);
    list.add(Quick, "paper/hq16-tq4-tk1300", F32_BF16, &paper(4, 1300).heads(16, 1));
    list.add(Standard, "paper/hq64-hkv4-tq3-tk1500", F32_BF16, &paper(3, 1500).heads(64, 4));
    list.add(Full, "paper/hq64-hkv4-t700", BF16, &paper(700, 700).heads(64, 4));
    let small =
        |queries, keys| Nsa::new(queries, keys).heads(8, 2).dims(32, 32).blocks(8, 4, 16, 5);
    list.add(Quick, "nsa-vibe/softmax-gate", F32, &small(60, 100).set("gate", "softmax"));
    let learned = Nsa { learned: true, ..small(60, 90) };
    list.add(Quick, "xunhaolai/learned-overlapping", F32_BF16, &learned);
    list.add(
        Standard,
        "xunhaolai/learned-odd",
        F32,
        &learned.clone().dims(33, 7).blocks(9, 4, 11, 5),
    );
}

/// nsa-vibe's selection of [16, 40), [64, 96) and [120, 160) of 192 keys, and other blocks.
fn selection(list: &mut List) {
    let ranges = [16..40, 64..96, 120..160];
    let blocks: Vec<i32> = ranges.into_iter().flat_map(|r| r.start / 8..r.end / 8).collect();
    let vibe = Nsa { given: Some(blocks), ..Nsa::new(1, 192).heads(2, 2).dims(64, 64) };
    let vibe = vibe.branches("s").set("select_block", 8);
    list.add(Quick, "nsa-vibe/selection-16-40-64-96-120-160", ALL, &vibe);
    let rows = Nsa { queries: 40, ..vibe }.heads(8, 2);
    list.add(Standard, "nsa-vibe/selection-tq40", F32_BF16, &rows);
    let base = || Nsa::new(130, 200).heads(4, 1).dims(32, 32).blocks(8, 4, 16, 4);
    // Equal keys give equal scores: the lower blocks are selected.
    list.add(Quick, "edge/exact-ties", F32, &Nsa { equal_keys: true, ..base() });
    let free = base().set("initial_blocks", 0).set("local_blocks", 0);
    list.add(Quick, "edge/nothing-forced", F32_BF16, &free);
    list.add(Standard, "edge/exact-ties-nothing-forced", F32, &Nsa { equal_keys: true, ..free });
    let forced = base().blocks(8, 4, 16, 5).set("initial_blocks", 2).set("local_blocks", 3);
    list.add(Standard, "edge/all-forced", F32, &forced);
    list.add(Quick, "edge/sharp-scores", F32, &base().set("scale", 3));
}

/// Decode steps whose compressed tokens are cached between steps, and so given.
fn caches(list: &mut List) {
    let cache = |queries, keys| Nsa { cache: true, ..Nsa::new(queries, keys) };
    let fla = cache(1, 700).heads(16, 1).dims(64, 64).aligned(32).set("select_count", 4);
    list.add(Quick, "cache/decode-tq1-tk700", ALL, &fla);
    list.add(Standard, "cache/decode-b3-tq1-tk700", F32_BF16, &fla.clone().batch(3).heads(32, 2));
    let paper = cache(3, 1300).dims(192, 128).heads(64, 4);
    list.add(Quick, "cache/paper-hq64-hkv4-tq3", F32_BF16, &paper);
    let long = cache(1, 9000).dims(128, 128).heads(64, 4).aligned(64);
    list.add(Standard, "cache/decode-hq64-hkv4-tk9000", BF16, &long.clone().branches("cs"));
    list.add(Standard, "cache/decode-window", BF16, &long);
    list.add(Quick, "cache/only-to-select", ALL, &cache(2, 170).branches("s"));
    list.add(Quick, "cache/no-compressed-token", F32_BF16, &cache(3, 20));
    list.add(Standard, "cache/only-compressed", F32_BF16, &cache(70, 333).branches("c"));
}

fn edges(list: &mut List) {
    let base = |queries, keys| Nsa::new(queries, keys).heads(4, 2).dims(20, 12).blocks(8, 4, 16, 4);
    list.add(Quick, "edge/t1", ALL, &base(1, 1));
    list.add(Quick, "edge/tq-over-tk-no-visible-key", F32_BF16, &base(40, 21));
    list.add(Standard, "edge/no-keys", F32, &base(5, 0));
    for branches in ["c", "s", "w", "cs", "cw", "sw"] {
        let call = base(50, 80).branches(branches).set("window", 9);
        list.add(Quick, &format!("edge/branches-{branches}"), F32, &call);
    }
    // One query after many keys: a mask for equal lengths would leave it only the first of them.
    for branches in ["c", "s", "w"] {
        let call = base(1, 80).branches(branches).set("window", 9);
        list.add(Quick, &format!("edge/decode-branch-{branches}"), F32, &call);
    }
    list.add(Quick, "edge/window-1", F32, &base(60, 60).set("window", 1));
    list.add(Quick, "edge/window-17", ALL, &base(60, 60).set("window", 17));
    list.add(Standard, "edge/odd-blocks", F32_BF16, &base(150, 170).blocks(24, 10, 40, 3));
    list.add(Standard, "edge/blocks-of-1", F32, &base(60, 60).blocks(1, 1, 1, 9));
    list.add(Standard, "edge/below-one-block", F16, &base(7, 7));
    list.add(Standard, "edge/d13-v30-group3", ALL, &base(90, 110).heads(6, 2).dims(13, 30));
    let uneven = [(3, 40), (0, 0), (0, 9), (30, 21), (5, 0), (1, 100)];
    list.add(Quick, "edge/varlen-uneven", F32_BF16, &base(0, 0).packed(&uneven));
    list.add(Standard, "edge/varlen-nothing", F32, &base(0, 0).packed(&[(0, 0)]));
    list.add(Standard, "edge/no-batch", F32, &base(3, 9).batch(0));
}

/// A call of nsa.
#[derive(Clone)]
struct Nsa {
    batch: usize,
    queries: usize,
    keys: usize,
    packed: Option<Vec<(usize, usize)>>,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    value_dim: usize,
    /// Abbreviations of the branches present: `c`, `s`, `w`.
    branches: &'static str,
    learned: bool,
    /// Compressed tokens are given.
    cache: bool,
    /// l and d, which determine the weights of a learned pooling.
    compress_block: usize,
    compress_stride: usize,
    /// The blocks of every query.
    given: Option<Vec<i32>>,
    /// Every key is the same vector.
    equal_keys: bool,
    settings: Settings,
}

impl Nsa {
    fn new(queries: usize, keys: usize) -> Self {
        Self {
            batch: 1,
            queries,
            keys,
            packed: None,
            heads: 4,
            kv_heads: 1,
            dim: 32,
            value_dim: 32,
            branches: "csw",
            learned: false,
            cache: false,
            compress_block: 32,
            compress_stride: 16,
            given: None,
            equal_keys: false,
            settings: Settings::new(),
        }
    }

    fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    fn heads(self, heads: usize, kv_heads: usize) -> Self {
        Self { heads, kv_heads, ..self }
    }

    fn dims(self, dim: usize, value_dim: usize) -> Self {
        Self { dim, value_dim, ..self }
    }

    fn branches(self, branches: &'static str) -> Self {
        Self { branches, ..self }
    }

    fn packed(self, lengths: &[(usize, usize)]) -> Self {
        Self { packed: Some(lengths.to_vec()), ..self }
    }

    fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    /// l, d, l' and n.
    fn blocks(self, compress: usize, stride: usize, select: usize, count: usize) -> Self {
        let set = self.set("compress_block", compress).set("compress_stride", stride);
        let set = set.set("select_block", select).set("select_count", count);
        Self { compress_block: compress, compress_stride: stride, ..set }
    }

    /// l = d = l', importance block by block.
    fn aligned(self, block: usize) -> Self {
        let set = self.set("compress_block", block).set("compress_stride", block);
        let set = set.set("select_block", block).set("overlap", false);
        Self { compress_block: block, compress_stride: block, ..set }
    }
}

impl Call for Nsa {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let mut inputs = TensorMap::new();
        let (mut rows, mut key_rows) =
            (vec![self.batch, self.queries], vec![self.batch, self.keys]);
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        if let Some(lengths) = &self.packed {
            rows = vec![lengths.iter().map(|pair| pair.0).sum()];
            key_rows = vec![lengths.iter().map(|pair| pair.1).sum()];
            put("cu_seqlens", offsets(lengths.iter().map(|pair| pair.0)));
            put("cu_seqlens_k", offsets(lengths.iter().map(|pair| pair.1)));
        }
        let shape = |rows: &[usize], rest: &[usize]| [rows, rest].concat();
        // Queries large enough that the softmax clearly prefers some keys.
        put("q", draw.normals(&shape(&rows, &[self.heads, self.dim]), dtype, 2.0));
        let mut k = draw.normals(&shape(&key_rows, &[self.kv_heads, self.dim]), dtype, 1.0);
        if self.equal_keys {
            let row = k.to_f64()[..self.dim].to_vec();
            let values: Vec<f64> = row.iter().copied().cycle().take(k.len()).collect();
            k = Tensor::new(k.shape(), values).cast(dtype);
        }
        put("k", k);
        put("v", draw.normals(&shape(&key_rows, &[self.kv_heads, self.value_dim]), dtype, 1.0));
        for (letter, gate) in [('c', "g_cmp"), ('s', "g_slc"), ('w', "g_swa")] {
            if self.branches.contains(letter) {
                put(gate, draw.normals(&shape(&rows, &[self.heads]), dtype, 1.0));
            }
        }
        if let Some(blocks) = &self.given {
            let shape = shape(&rows, &[self.kv_heads, blocks.len()]);
            let count = shape.iter().product();
            let values: Vec<i32> = blocks.iter().copied().cycle().take(count).collect();
            put("block_indices", Tensor::new(&shape, values));
        }
        if self.cache {
            let blocks = self.keys.checked_sub(self.compress_block);
            let rows = [self.batch, blocks.map_or(0, |rest| rest / self.compress_stride + 1)];
            put("k_cmp", draw.normals(&shape(&rows, &[self.kv_heads, self.dim]), dtype, 0.3));
            if self.branches.contains('c') {
                let size = [self.kv_heads, self.value_dim];
                put("v_cmp", draw.normals(&shape(&rows, &size), dtype, 0.3));
            }
        }
        let mut settings = self.settings.clone();
        if self.learned {
            settings.set("pooling", "learned");
            for (side, size) in [("k", self.dim), ("v", self.value_dim)] {
                let flat = self.compress_block * size;
                let scale = (flat as f64).powf(-0.5) * 2.0;
                let weight = draw.normals(&[self.kv_heads, flat, size], dtype, scale);
                put(&format!("cmp_{side}_weight"), weight);
                let position = [self.kv_heads, self.compress_block, size];
                put(&format!("cmp_{side}_pos"), draw.normals(&position, dtype, 0.5));
            }
        }
        (inputs, settings)
    }
}
