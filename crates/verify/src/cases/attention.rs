use super::OpCases;
use super::list::{ALL, BF16, Backward, Call, F16, F32, F32_BF16, List, integers, offsets};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, QueryTokens, Shared, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, Tensor, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "attention", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "attention_backward", cases: backward, layout: GRADIENT_LAYOUT };

const LAYOUT: Layout = Layout {
    heads: ("q", 2),
    shared: ("k", 2),
    whole_groups: false,
    tensors: &[
        ("q", &[Batch, QueryTokens, Head, Whole]),
        ("k", &[Batch, Whole, Shared, Whole]),
        ("v", &[Batch, Whole, Shared, Whole]),
        ("cache_seqlens", &[Batch]),
        ("o", &[Batch, QueryTokens, Head, Whole]),
        ("lse", &[Batch, Head, QueryTokens]),
    ],
};

/// A key's gradient is a sum over the queries of all heads that read it.
const GRADIENT_LAYOUT: Layout = Layout {
    heads: ("q", 2),
    shared: ("k", 2),
    whole_groups: true,
    tensors: &[
        ("q", &[Batch, Tokens, Head, Whole]),
        ("k", &[Batch, Tokens, Shared, Whole]),
        ("v", &[Batch, Tokens, Shared, Whole]),
        ("o", &[Batch, Tokens, Head, Whole]),
        ("lse", &[Batch, Head, Tokens]),
        ("do", &[Batch, Tokens, Head, Whole]),
        ("dlse", &[Batch, Head, Tokens]),
        ("dq", &[Batch, Tokens, Head, Whole]),
        ("dk", &[Batch, Tokens, Shared, Whole]),
        ("dv", &[Batch, Tokens, Shared, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    ffpa(&mut list);
    head_dims(&mut list);
    masks(&mut list);
    layouts(&mut list);
    values(&mut list);
    schedules(&mut list);
    latent(&mut list);
    let call = Attention::new(200, 4, 64).keys(333).causal();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// FFPA's forward suite: wide heads, 16 query heads over 4 key heads, lengths that are not multiples of a tile.
fn ffpa(list: &mut List) {
    let ffpa = |tokens, dim| Attention::new(tokens, 16, dim).kv_heads(4);
    list.add(Quick, "ffpa/d320-gqa16x4-t75", ALL, &ffpa(75, 320).causal());
    for (dim, tokens) in [(320, 201), (384, 129), (512, 161), (640, 97)] {
        let name = |what: &str| format!("ffpa/d{dim}-gqa16x4-t{tokens}{what}");
        list.add(Standard, &name(""), &[DType::Bf16, DType::F16], &ffpa(tokens, dim));
        list.add(Standard, &name("-causal"), F32, &ffpa(tokens, dim).causal());
        let name = format!("ffpa/d{dim}-gqa16x4-t517-causal");
        list.add(Standard, &name, BF16, &ffpa(517, dim).causal());
    }
    for (queries, tier) in [(1, Quick), (5, Standard), (7, Standard)] {
        let decode = ffpa(queries, 512).keys(300).causal();
        list.add(tier, &format!("ffpa/d512-decode-tq{queries}"), ALL, &decode);
        let decode = ffpa(queries, 320).batch(2).keys(1025).causal();
        list.add(Standard, &format!("ffpa/d320-decode-tq{queries}-tk1025"), F16, &decode);
    }
}

/// Every head dimension with a specialized kernel, and dimensions between them.
fn head_dims(list: &mut List) {
    for dim in [32, 64, 96, 128, 192, 256] {
        let call = Attention::new(150, 2, dim).kv_heads(1);
        list.add(Standard, &format!("dims/d{dim}-t150"), ALL, &call);
    }
    for dim in [448, 576, 704, 768, 896, 1024] {
        let call = Attention::new(70, 2, dim).causal();
        list.add(Standard, &format!("dims/d{dim}-t70"), F32_BF16, &call);
    }
    list.add(Quick, "edge/d60", ALL, &Attention::new(67, 3, 60).causal());
    list.add(Quick, "edge/d100-dv33", F32_BF16, &Attention::new(40, 2, 100).value_dim(33));
    for dim in [1, 7, 72] {
        list.add(Standard, &format!("edge/d{dim}"), ALL, &Attention::new(50, 2, dim).causal());
    }
    // Multi-head latent attention: one key head of 512 + 64 channels whose first 512 are the values.
    let mla = Attention::new(1, 16, 576).kv_heads(1).value_dim(512).causal();
    list.add(Quick, "mla/576-512-decode-tk200", F32_BF16, &mla.clone().keys(200));
    list.add(Standard, "mla/576-512-decode-tq2-tk1111", ALL, &mla.clone().queries(2).keys(1111));
    list.add(Standard, "mla/192-128-t130", BF16, &Attention::new(130, 4, 192).value_dim(128));
    let long = |dim| Attention::new(2048, 4, dim).causal();
    list.add(Full, "dims/d128-t2048-causal", F32_BF16, &long(128));
    list.add(Standard, "dims/d64-t2048-causal", F16, &long(64));
    list.add(Full, "dims/d1024-t700", F32_BF16, &Attention::new(700, 2, 1024));
    let pair = Attention::new(2048, 8, 128).kv_heads(2).batch(2);
    list.add(Full, "dims/b2-d128-gqa8x2-t2048", BF16, &pair);
    list.add(Standard, "mla/576-512-decode-tk4097", BF16, &mla.batch(2).keys(4097));
}

/// Latent caches, whose values are the first channels of the keys.
fn latent(list: &mut List) {
    const HALVES: &[DType] = &[DType::Bf16, DType::F16];
    let mla = |queries: usize, heads: usize| {
        Attention::new(queries, heads, 576).kv_heads(1).latent(512).causal()
    };
    let pages =
        |queries, heads, lengths: &[usize], block| mla(queries, heads).paged(lengths, block);
    list.add(Quick, "latent/576-512-h32-paged64", ALL, &pages(1, 32, &[200, 0, 64, 1], 64));
    list.add(Standard, "latent/576-512-h32-paged64-tk4200", BF16, &pages(1, 32, &[4200, 77], 64));
    list.add(Standard, "latent/576-512-h16-tq3-paged16", HALVES, &pages(3, 16, &[500, 3, 130], 16));
    list.add(Standard, "latent/576-512-h128-paged256", BF16, &pages(1, 128, &[700, 255], 256));
    list.add(Standard, "latent/576-512-h32-tq2-paged1", BF16, &pages(2, 32, &[70], 1));
    list.add(Standard, "latent/576-512-h5-tq4-tk333", HALVES, &mla(4, 5).batch(2).keys(333));
    list.add(Standard, "latent/576-512-t1", ALL, &mla(1, 32).keys(1));
    let lengths = [(3, 40), (0, 9), (30, 21), (5, 0), (1, 100), (0, 0)];
    list.add(Quick, "latent/576-512-varlen-uneven", BF16, &mla(0, 4).packed(&lengths));
    list.add(Standard, "latent/576-512-window-70", BF16, &mla(1, 32).keys(300).left(70));
    let capped = mla(2, 32).keys(190).set("softcap", 7).spread(3.0);
    list.add(Standard, "latent/576-512-softcap", BF16, &capped);
    let steep = Attention { fall: 900.0, ..mla(1, 32).keys(383) };
    list.add(Standard, "latent/576-512-logits-fall-by-900", BF16, &steep);
    // Other widths, several key heads, and one query row per tile.
    for (dim, value_dim) in [(100, 33), (60, 60), (96, 64)] {
        let call = Attention::new(40, 6, dim).kv_heads(2).latent(value_dim).causal();
        list.add(Quick, &format!("latent/d{dim}-dv{value_dim}-gqa6x2-t40"), ALL, &call);
    }
    let two = Attention::new(1, 8, 576).kv_heads(2).latent(512).paged(&[130, 65], 64).causal();
    list.add(Standard, "latent/576-512-gqa8x2-paged64", BF16, &two);
}

fn masks(list: &mut List) {
    let base = |queries: usize, keys: usize| Attention::new(queries, 2, 64).keys(keys);
    // torch's is_causal is aligned at the top left: one query over many keys would attend to key 0 only.
    list.add(Quick, "edge/causal-tq1-tk65", ALL, &base(1, 65).causal());
    list.add(Quick, "edge/causal-tq-below-tk", F32_BF16, &base(13, 130).causal());
    // The first Tq - Tk queries attend to nothing: o = 0, lse = -inf.
    list.add(Quick, "edge/causal-tq-over-tk-no-visible-key", ALL, &base(100, 37).causal());
    list.add(Quick, "edge/t1", ALL, &base(1, 1).causal());
    list.add(Quick, "edge/no-keys", F32, &base(5, 0));
    list.add(Quick, "edge/window-12-0-causal", F32_BF16, &base(70, 90).causal().left(12));
    list.add(Quick, "edge/window-5-3", F32, &base(66, 66).left(5).right(3));
    list.add(Standard, "edge/window-0-0", F32, &base(130, 130).left(0).right(0));
    list.add(Standard, "edge/window-left-only", BF16, &base(90, 200).left(40));
    list.add(Standard, "edge/window-right-only-no-visible-key", F32, &base(130, 60).right(4));
    list.add(Standard, "edge/window-decode", ALL, &base(1, 1000).causal().left(127));
    list.add(Standard, "edge/window-wider-than-keys", F16, &base(60, 60).left(4096).right(4096));
    list.add(Quick, "edge/gqa-12x3-causal", F32, &Attention::new(33, 12, 32).kv_heads(3).causal());
    list.add(Standard, "edge/mqa-24x1", BF16, &Attention::new(65, 24, 64).kv_heads(1).causal());
}

fn layouts(list: &mut List) {
    let packed = |lengths: &[(usize, usize)]| Attention::new(0, 4, 64).kv_heads(2).packed(lengths);
    let same = [(15, 15), (0, 0), (1, 1), (64, 64), (40, 40)];
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &packed(&same).causal());
    // No queries, no keys, more queries than keys, decode.
    let uneven = [(3, 40), (0, 9), (30, 21), (5, 0), (1, 100), (0, 0)];
    list.add(Quick, "edge/varlen-uneven", F32_BF16, &packed(&uneven).causal());
    list.add(Standard, "edge/varlen-nothing", F32, &packed(&[(0, 0)]));
    let long = [(256, 256), (244, 244), (500, 500), (129, 129)];
    list.add(Standard, "varlen/256-244-500-129", F32_BF16, &packed(&long).causal());
    let windows = packed(&[(100, 300), (77, 77), (1, 513)]).causal().left(31);
    list.add(Standard, "varlen/window", F16, &windows);
    let paged = |queries, lengths: &[usize], block| {
        Attention::new(queries, 8, 128).kv_heads(2).paged(lengths, block).causal()
    };
    list.add(Quick, "paged/block16-decode", F32_BF16, &paged(1, &[33, 0, 128, 77], 16));
    list.add(Standard, "paged/block64-tq7", ALL, &paged(7, &[500, 3, 64], 64));
    list.add(Standard, "paged/block1", F32, &paged(1, &[9, 20], 1));
    let cache = Attention::new(1, 8, 64).kv_heads(4).keys(150).cached(&[150, 1, 0, 99]).causal();
    list.add(Quick, "edge/cache-seqlens", F32_BF16, &cache);
    list.add(Standard, "edge/no-batch", F32, &Attention::new(4, 2, 32).batch(0));
    list.add(
        Standard,
        "decode/b8-tk2048",
        BF16,
        &Attention::new(1, 8, 128).kv_heads(2).batch(8).keys(2048).causal(),
    );
}

fn values(list: &mut List) {
    let base = Attention::new(70, 2, 64).causal();
    list.add(Quick, "edge/softcap-5", F32_BF16, &base.clone().set("softcap", 5).spread(4.0));
    list.add(Standard, "edge/softcap-50-window", F32, &base.clone().set("softcap", 50).left(9));
    list.add(Quick, "edge/large-logits", F32_BF16, &base.clone().spread(30.0));
    list.add(Standard, "edge/larger-logits", F32, &base.clone().spread(300.0));
    list.add(Quick, "edge/scale-0.3", F32, &base.clone().set("scale", 0.3));
    list.add(Standard, "edge/scale-0", F32, &base.clone().set("scale", 0));
    list.add(Standard, "edge/scale-negative", F16, &base.clone().set("scale", -0.2));
    list.add(Quick, "edge/far-below-zero", F32, &Attention { sunk: true, ..base });
}

/// Cases that exercise kernels' schedules: widths between tiles, masks over several tiles of keys at every width, and a
/// maximum that changes in every tile.
fn schedules(list: &mut List) {
    const HALVES: &[DType] = &[DType::Bf16, DType::F16];
    for (dim, value_dim) in [(80, 80), (40, 104), (200, 136)] {
        let lengths = [(100, 300), (0, 5), (129, 64), (1, 257), (40, 0)];
        let call = Attention::new(0, 4, dim).kv_heads(2).value_dim(value_dim).packed(&lengths);
        list.add(Standard, &format!("dims/d{dim}-dv{value_dim}-varlen"), HALVES, &call.causal());
    }
    for dim in [160, 224] {
        list.add(Standard, &format!("dims/d{dim}-t150"), HALVES, &Attention::new(150, 2, dim));
    }
    for dim in [320, 448, 512, 640, 704, 768, 832, 896, 960, 1024] {
        let call = Attention::new(200, 2, dim).kv_heads(1).keys(333).causal();
        list.add(Standard, &format!("wide/d{dim}-causal-tk333"), F16, &call);
        list.add(Standard, &format!("wide/d{dim}-window-70"), BF16, &call.left(70));
    }
    for dim in [320, 512, 640, 1024] {
        let call = Attention::new(130, 2, dim).keys(300).set("softcap", 7).spread(3.0);
        list.add(Standard, &format!("wide/d{dim}-softcap"), BF16, &call);
        let lengths = [(100, 300), (0, 5), (129, 64), (1, 257), (40, 0)];
        let packed = Attention::new(0, 2, dim).packed(&lengths).causal();
        list.add(Standard, &format!("wide/d{dim}-varlen"), BF16, &packed);
    }
    // A kernel may skip a rescaling by 1; where logits fall towards the first key, none is 1.
    for dim in [128, 512] {
        let call = Attention::new(256, 2, dim).keys(383).causal();
        let call = Attention { fall: 900.0, ..call };
        list.add(Standard, &format!("edge/logits-fall-by-900-d{dim}"), HALVES, &call);
    }
}

/// Gradients: the shapes of the forward suites that train, and what is hard for a gradient: rows without visible keys, lse far from 0,
/// one query, a number of tokens that is 64 modulo 128.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Attention| Backward { op: OP.op, call };
    let square = |tokens: usize, dim| Attention::new(tokens, 2, dim);
    for dim in [64, 128] {
        let call = square(192, dim).causal();
        list.add(Quick, &format!("dims/d{dim}-t192-causal"), ALL, &of(call));
    }
    for dim in [32, 96, 192, 256] {
        let call = square(150, dim).kv_heads(1);
        list.add(Standard, &format!("dims/d{dim}-t150"), F32_BF16, &of(call));
    }
    list.add(
        Quick,
        "ffpa/d320-gqa16x4-t75",
        F32_BF16,
        &of(Attention::new(75, 16, 320).kv_heads(4).causal()),
    );
    for dim in [512, 1024] {
        list.add(Standard, &format!("dims/d{dim}-t70"), F32_BF16, &of(square(70, dim).causal()));
    }
    list.add(Quick, "edge/d60", ALL, &of(Attention::new(67, 3, 60).causal()));
    list.add(Quick, "edge/d100-dv33", F32_BF16, &of(square(40, 100).value_dim(33)));
    list.add(Standard, "mla/192-128-t130", BF16, &of(Attention::new(130, 4, 192).value_dim(128)));
    list.add(
        Standard,
        "latent/d96-dv64-gqa6x2-t40",
        F32_BF16,
        &of(Attention::new(40, 6, 96).kv_heads(2).latent(64).causal()),
    );

    let base = |queries: usize, keys: usize| square(queries, 64).keys(keys);
    list.add(Quick, "edge/causal-tq1-tk65", ALL, &of(base(1, 65).causal()));
    list.add(Quick, "edge/causal-tq-below-tk", F32_BF16, &of(base(13, 130).causal()));
    list.add(Quick, "edge/causal-tq-over-tk-no-visible-key", ALL, &of(base(100, 37).causal()));
    list.add(Quick, "edge/t1", ALL, &of(base(1, 1).causal()));
    list.add(Quick, "edge/no-keys", F32, &of(base(5, 0)));
    list.add(Quick, "edge/window-12-0-causal", F32_BF16, &of(base(70, 90).causal().left(12)));
    list.add(Quick, "edge/window-5-3", F32, &of(base(66, 66).left(5).right(3)));
    list.add(Standard, "edge/window-127-t200", BF16, &of(base(200, 200).causal().left(127)));
    let gqa = Attention::new(33, 12, 32).kv_heads(3).causal();
    list.add(Quick, "edge/gqa-12x3-causal", F32, &of(gqa));
    list.add(Standard, "edge/mqa-24x1", BF16, &of(Attention::new(65, 24, 64).kv_heads(1).causal()));
    list.add(Standard, "edge/no-batch", F32, &of(Attention::new(4, 2, 32).batch(0)));

    let packed = |lengths: &[(usize, usize)]| Attention::new(0, 4, 64).kv_heads(2).packed(lengths);
    let same = [(15, 15), (0, 0), (1, 1), (64, 64), (40, 40)];
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &of(packed(&same).causal()));
    let uneven = [(3, 40), (0, 9), (30, 21), (5, 0), (1, 100), (0, 0)];
    list.add(Quick, "edge/varlen-uneven", F32_BF16, &of(packed(&uneven).causal()));
    list.add(Standard, "varlen/256-129", BF16, &of(packed(&[(256, 256), (129, 129)]).causal()));

    let values = square(70, 64).causal();
    let capped = values.clone().set("softcap", 5).spread(4.0);
    list.add(Quick, "edge/softcap-5", F32_BF16, &of(capped));
    list.add(Quick, "edge/large-logits", F32_BF16, &of(values.clone().spread(30.0)));
    list.add(Quick, "edge/scale-0.3", F32, &of(values.clone().set("scale", 0.3)));
    list.add(Standard, "edge/scale-0", F32, &of(values.clone().set("scale", 0)));
    // lse is far below -88.7, where exp(-lse) is infinite in float32.
    let sunk = |call| Attention { sunk: true, ..call };
    list.add(Quick, "edge/far-below-zero", F32_BF16, &of(sunk(values)));
    list.add(Quick, "edge/far-below-zero-tq1", F32_BF16, &of(sunk(base(1, 64))));
    list.add(Quick, "edge/far-below-zero-t192", BF16, &of(sunk(base(192, 192).causal())));

    let call = of(Attention::new(200, 4, 64).kv_heads(2).keys(333).causal());
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// A call of attention.
#[derive(Clone)]
struct Attention {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    value_dim: usize,
    /// Number of queries and keys of each packed sequence.
    packed: Option<Vec<(usize, usize)>>,
    /// Cached keys of each sequence, and the block size if they are paged.
    cached: Option<(Vec<usize>, Option<usize>)>,
    /// Whether the values are the first channels of the keys.
    latent: bool,
    /// Standard deviation of the queries.
    spread: f64,
    /// Every logit is far below zero: its exp underflows unless the maximum is subtracted first.
    sunk: bool,
    /// Rise of the logits from the first key to the last.
    fall: f64,
    settings: Settings,
}

impl Attention {
    fn new(tokens: usize, heads: usize, dim: usize) -> Self {
        Self {
            batch: 1,
            queries: tokens,
            keys: tokens,
            heads,
            kv_heads: heads,
            dim,
            value_dim: dim,
            packed: None,
            cached: None,
            latent: false,
            spread: 1.0,
            sunk: false,
            fall: 0.0,
            settings: Settings::new(),
        }
    }

    fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    fn queries(self, queries: usize) -> Self {
        Self { queries, ..self }
    }

    fn keys(self, keys: usize) -> Self {
        Self { keys, ..self }
    }

    fn kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    fn value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    fn latent(self, value_dim: usize) -> Self {
        Self { value_dim, latent: true, ..self }.set("value_width", value_dim)
    }

    fn spread(self, spread: f64) -> Self {
        Self { spread, ..self }
    }

    fn packed(self, lengths: &[(usize, usize)]) -> Self {
        Self { packed: Some(lengths.to_vec()), ..self }
    }

    fn cached(self, lengths: &[usize]) -> Self {
        Self { batch: lengths.len(), cached: Some((lengths.to_vec(), None)), ..self }
    }

    fn paged(self, lengths: &[usize], block: usize) -> Self {
        Self { batch: lengths.len(), cached: Some((lengths.to_vec(), Some(block))), ..self }
    }

    fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    fn causal(self) -> Self {
        self.set("causal", true)
    }

    fn left(self, keys: usize) -> Self {
        self.set("window_left", keys)
    }

    fn right(self, keys: usize) -> Self {
        self.set("window_right", keys)
    }
}

impl Call for Attention {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let mut inputs = TensorMap::new();
        let (mut rows, mut key_rows) =
            (vec![self.batch, self.queries], vec![self.batch, self.keys]);
        if let Some(lengths) = &self.packed {
            rows = vec![lengths.iter().map(|pair| pair.0).sum()];
            key_rows = vec![lengths.iter().map(|pair| pair.1).sum()];
            let own = offsets(lengths.iter().map(|pair| pair.0));
            let keys = offsets(lengths.iter().map(|pair| pair.1));
            if own != keys {
                inputs.insert("cu_seqlens_k".to_owned(), keys);
            }
            inputs.insert("cu_seqlens".to_owned(), own);
        }
        if let Some((lengths, block)) = &self.cached {
            let counts: Vec<i32> = lengths.iter().map(|length| *length as i32).collect();
            inputs.insert("cache_seqlens".to_owned(), integers(&counts));
            if let Some(block) = *block {
                let (table, blocks) = block_table(draw, lengths, block);
                let width = table.len() / lengths.len().max(1);
                let table = Tensor::new(&[lengths.len(), width], table);
                inputs.insert("block_table".to_owned(), table);
                key_rows = vec![blocks, block];
            }
        }
        let shape = |rows: &[usize], heads, dim| [rows, &[heads, dim]].concat();
        let (q, k) =
            (shape(&rows, self.heads, self.dim), shape(&key_rows, self.kv_heads, self.dim));
        let v = shape(&key_rows, self.kv_heads, self.value_dim);
        let (mut q, mut k) = (draw.normals(&q, dtype, self.spread), draw.normals(&k, dtype, 1.0));
        if self.sunk {
            q = sink(&q, -1024.0, self.dim);
            k = sink(&k, 128.0, self.dim);
        }
        if self.fall > 0.0 {
            // The first channel has the slope: scale * 64 * (the key's value).
            let steepest = self.fall * (self.dim as f64).sqrt() / 64.0;
            q = first_channel(&q, self.dim, |_| 64.0);
            let (heads, last) = (self.kv_heads, (self.keys - 1) as f64);
            k = first_channel(&k, self.dim, |row| {
                steepest * ((row / heads % self.keys) as f64 / last - 1.0)
            });
        }
        inputs.insert("q".to_owned(), q);
        inputs.insert("k".to_owned(), k);
        if !self.latent {
            inputs.insert("v".to_owned(), draw.normals(&v, dtype, 1.0));
        }
        (inputs, self.settings.clone())
    }
}

/// The same rows with `value` in the first channel and 0 in the others: larger sums would lose the other terms.
fn sink(tensor: &Tensor, value: f64, dim: usize) -> Tensor {
    let mut values = vec![0.0; tensor.len()];
    values.chunks_mut(dim).for_each(|row| row[0] = value);
    Tensor::new(tensor.shape(), values).cast(tensor.dtype())
}

/// The same rows with other values in the first channel, computed from the row.
fn first_channel(tensor: &Tensor, dim: usize, value: impl Fn(usize) -> f64) -> Tensor {
    let mut values = tensor.to_f64();
    values.chunks_mut(dim).enumerate().for_each(|(row, channels)| channels[0] = value(row));
    Tensor::new(tensor.shape(), values).cast(tensor.dtype())
}

/// A table of shuffled blocks with -1 past each sequence's end, and the number of blocks: one more than are used.
fn block_table(draw: &mut TensorRng, lengths: &[usize], block: usize) -> (Vec<i32>, usize) {
    let used: Vec<usize> = lengths.iter().map(|length| length.div_ceil(block)).collect();
    let (width, total) = (used.iter().max().map_or(0, |most| most + 1), used.iter().sum::<usize>());
    let mut free: Vec<i32> = (0..=total as i32).collect();
    let mut table = Vec::new();
    for used in used {
        table.extend((0..used).map(|_| free.swap_remove(draw.below(free.len()))));
        table.extend(std::iter::repeat_n(-1, width - used));
    }
    (table, total + 1)
}
