use super::OpCases;
use super::list::{ALL, BF16, Call, F32_BF16, List};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{QueryTokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, Tensor, TensorMap};
use std::ops::Range;

pub(super) const OP: OpCases = OpCases { op: "moe", cases, layout: LAYOUT };

/// Only tokens are sampled, not heads.
const LAYOUT: Layout = Layout {
    heads: ("x", 0),
    shared: ("x", 0),
    whole_groups: false,
    tensors: &[
        ("x", &[QueryTokens, Whole]),
        ("logits", &[QueryTokens, Whole]),
        ("correction", &[Whole]),
        ("w_gate_up", &[Whole, Whole, Whole]),
        ("w_down", &[Whole, Whole, Whole]),
        ("gate_up_scale", &[Whole, Whole, Whole]),
        ("down_scale", &[Whole, Whole, Whole]),
        ("gate_up_offset", &[Whole, Whole, Whole]),
        ("down_offset", &[Whole, Whole, Whole]),
        ("gate_up_bias", &[Whole, Whole]),
        ("down_bias", &[Whole, Whole]),
        ("residual", &[QueryTokens, Whole]),
        ("o", &[QueryTokens, Whole]),
        ("chosen", &[QueryTokens, Whole]),
        ("weights", &[QueryTokens, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    models(&mut list);
    tokens(&mut list);
    choices(&mut list);
    shares(&mut list);
    always(&mut list);
    edges(&mut list);
    narrow(&mut list);
    phases(&mut list);
    let call = Moe::granite([40, 128, 16, 64], 4);
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.property(Quick, "property/same-bits-t3", BF16, Property::SameBits, &call.of_tokens(3));
    list.done()
}

/// The routers of Granite 4.0-H and Kimi-Linear; experts have a reduced width where they would take gigabytes.
fn models(list: &mut List) {
    let tiny = |tokens| Moe::granite([tokens, 256, 64, 64], 6);
    list.add(Quick, "granite/h-tiny-router-t1", ALL, &tiny(1));
    list.add(Quick, "granite/h-tiny-router-t5", F32_BF16, &tiny(5));
    list.add(Standard, "granite/h-tiny-router-t150", F32_BF16, &tiny(150));
    let small = |tokens| Moe::granite([tokens, 160, 72, 96], 10);
    list.add(Quick, "granite/h-small-router-t7", F32_BF16, &small(7));
    list.add(Standard, "granite/h-small-router-t100", F32_BF16, &small(100));
    let kimi = |tokens| Moe::kimi([tokens, 96, 256, 32], 8);
    list.add(Quick, "kimi/router-t1", ALL, &kimi(1));
    list.add(Quick, "kimi/router-t9", F32_BF16, &kimi(9));
    list.add(Standard, "kimi/router-t200", F32_BF16, &kimi(200));
    let nano = |tokens| Moe::nemotron([tokens, 96, 128, 40], 6);
    list.add(Quick, "nemotron/router-t1", ALL, &nano(1));
    list.add(Quick, "nemotron/router-t9", F32_BF16, &nano(9));
    list.add(Standard, "nemotron/router-t20", F32_BF16, &nano(20));
    list.add(Quick, "nemotron/router-t150", F32_BF16, &nano(150));
    let oss = |tokens| Moe::oss([tokens, 96, 32, 40], 4);
    list.add(Quick, "gpt-oss/router-t1", ALL, &oss(1));
    list.add(Quick, "gpt-oss/router-t9", F32_BF16, &oss(9));
    list.add(Standard, "gpt-oss/router-t20", F32_BF16, &oss(20));
    list.add(Quick, "gpt-oss/router-t150", F32_BF16, &oss(150));
    list.add(Standard, "gpt-oss/default-limits-t5", F32_BF16, &oss(5).with_default_limits());
    list.add(Standard, "gpt-oss/h2880-i2880-t2", BF16, &Moe::oss([2, 2880, 2, 2880], 1));
    list.add(Full, "gpt-oss/h2880-i192-t70", BF16, &Moe::oss([70, 2880, 8, 192], 4));
    // Rows of the models' length.
    list.add(Standard, "nemotron/h2688-i1856-t3", BF16, &Moe::nemotron([3, 2688, 2, 1856], 1));
    list.add(Standard, "nemotron/h2688-i232-t70", BF16, &Moe::nemotron([70, 2688, 8, 232], 3));
    list.add(Quick, "granite/h1536-i512-t2", BF16, &Moe::granite([2, 1536, 2, 512], 2));
    list.add(Standard, "granite/h4096-i768-t3", BF16, &Moe::granite([3, 4096, 2, 768], 1));
    list.add(Standard, "kimi/h2304-i1024-t1", F32_BF16, &Moe::kimi([1, 2304, 2, 1024], 2));
    list.add(Standard, "kimi/h2304-i128-t70", BF16, &Moe::kimi([70, 2304, 8, 128], 3));
    list.add(Full, "granite/h1536-i512-e8-t40", BF16, &Moe::granite([40, 1536, 8, 512], 6));
    list.add(Full, "kimi/h2304-i1024-e2-t500", BF16, &Moe::kimi([500, 2304, 2, 1024], 1));
}

/// Numbers of tokens around those at which kernels and tiles change.
fn tokens(list: &mut List) {
    let base = Moe::kimi([1, 128, 8, 64], 2);
    for tokens in [2, 8, 16, 17, 31, 32, 33, 64, 65, 129, 300] {
        let tier = if matches!(tokens, 8 | 33 | 300) { Quick } else { Standard };
        list.add(tier, &format!("tokens/t{tokens}"), F32_BF16, &base.of_tokens(tokens));
    }
    // Enough tokens to be counted in parts.
    list.add(Standard, "tokens/t2500-e40", BF16, &Moe::granite([2500, 32, 40, 16], 5));
}

fn choices(list: &mut List) {
    let base = |tokens| Moe::kimi([tokens, 64, 16, 32], 3);
    for tokens in [4, 90] {
        let add = |list: &mut List, name: &str, call: &Moe| {
            list.add(Quick, &format!("choice/{name}-t{tokens}"), F32_BF16, call);
        };
        let base = base(tokens);
        // Equal scores: the lower experts are chosen, by all tokens at once.
        add(list, "all-equal", &Moe { logits: Logits::Equal, ..base.clone() });
        add(list, "one-expert-of-all", &Moe { logits: Logits::Favourite(5), ..base.clone() });
        add(list, "near-ties", &Moe { logits: Logits::NearTies, ..base.clone() });
        add(list, "far-apart", &Moe { logits: Logits::Spread(30.0), ..base.clone() });
        add(list, "no-correction", &Moe { correction: false, ..base.clone() });
        add(list, "not-renormalised", &base.set("renormalise", false));
        add(list, "sum-eps", &base.set("sum_eps", 0.3));
        add(list, "top-all", &Moe { top_k: 16, ..base.clone() });
        add(list, "top-1", &Moe { top_k: 1, ..base });
        let granite = Moe::granite([tokens, 64, 16, 32], 3);
        add(list, "softmax-equal", &Moe { logits: Logits::Equal, ..granite.clone() });
        add(list, "softmax-of-all", &granite.clone().set("score", "softmax_of_all"));
        add(list, "softmax-far-apart", &Moe { logits: Logits::Spread(60.0), ..granite.clone() });
        add(list, "softmax-top-all", &Moe { top_k: 16, ..granite });
    }
}

/// The experts of one rank of several, in every form of every variant; some tokens are routed to none of them.
fn shares(list: &mut List) {
    for tokens in [1, 3, 40, 300] {
        let kimi = Moe::kimi([tokens, 64, 16, 32], 3);
        for (name, held) in [("first", 0..8), ("last", 8..16), ("middle", 5..7)] {
            let tier = if name == "last" { Quick } else { Standard };
            list.add(tier, &format!("share/{name}-t{tokens}"), F32_BF16, &kimi.of_experts(held));
        }
        let granite = Moe::granite([tokens, 64, 64, 32], 6).of_experts(32..64);
        list.add(Quick, &format!("share/granite-t{tokens}"), F32_BF16, &granite);
    }
    // No token is routed to these experts.
    let away = Moe { logits: Logits::Favourite(5), ..Moe::kimi([40, 64, 16, 32], 1) };
    list.add(Quick, "share/chosen-by-none-t40", F32_BF16, &away.of_experts(8..16));
    list.add(Quick, "share/chosen-by-none-t1", F32_BF16, &away.of_tokens(1).of_experts(8..16));
}

/// Shared experts in every form of every variant: without gates, with quantized weights, and as many as kernels allow.
fn always(list: &mut List) {
    for tokens in [1, 3, 8, 20, 33, 70, 300] {
        let tier = if [1, 3, 33, 70].contains(&tokens) { Quick } else { Standard };
        let granite = Moe::granite([tokens, 64, 16, 32], 3).always(2);
        list.add(tier, &format!("always/granite-t{tokens}"), F32_BF16, &granite);
        let kimi = Moe::kimi([tokens, 64, 64, 32], 8).always(1);
        list.add(tier, &format!("always/kimi-t{tokens}"), F32_BF16, &kimi);
        let nano = Moe::nemotron([tokens, 72, 20, 40], 6).always(2);
        list.add(tier, &format!("always/nemotron-t{tokens}"), F32_BF16, &nano);
        for (word, dtype, group, offset) in [
            ("e4m3", DType::E4m3, None, false),
            ("u4", DType::U4, Some(128), false),
            ("u4-offsets", DType::U4, Some(128), true),
        ] {
            let call = Moe::kimi([tokens, 256, 16, 128], 4).always(2);
            let call = call.narrow(QuantizedWeights { dtype, group, offset });
            list.add(Standard, &format!("always/{word}-t{tokens}"), BF16, &call);
        }
    }
    let most = |tokens| Moe::kimi([tokens, 16, 508, 8], 28).always(4);
    list.add(Quick, "always/most-t1", BF16, &most(1));
    list.add(Standard, "always/most-t9", BF16, &most(9));
    list.add(Standard, "always/most-t90", BF16, &most(90));
    // The sizes of the models.
    let tiny = Moe::granite([1, 1536, 8, 512], 6).always(2);
    list.add(Standard, "always/h1536-i512-t1", BF16, &tiny);
    list.add(Full, "always/h1536-i512-t32", BF16, &tiny.of_tokens(32));
    let kimi = Moe::kimi([1, 2304, 4, 1024], 2).always(1);
    list.add(Standard, "always/h2304-i1024-t1", BF16, &kimi);
}

fn edges(list: &mut List) {
    list.add(Quick, "edge/one-expert", ALL, &Moe::kimi([5, 32, 1, 16], 1));
    list.add(Quick, "edge/odd-sizes", F32_BF16, &Moe::granite([11, 33, 5, 7], 2));
    list.add(Quick, "edge/h72-i40", ALL, &Moe::granite([13, 72, 6, 40], 2));
    list.add(Quick, "edge/h8-i8", F32_BF16, &Moe::granite([3, 8, 6, 8], 2));
    list.add(Standard, "edge/h200-i136-t77", ALL, &Moe::granite([77, 200, 6, 136], 2));
    list.add(Standard, "edge/no-tokens", F32_BF16, &Moe::granite([0, 64, 8, 32], 2));
    list.add(Standard, "edge/e1000-k32", F32_BF16, &Moe::kimi([6, 16, 1000, 8], 32));
}

/// e4m3, i8 and u4 weights: scales per row and per group, with and without offsets, numbers of tokens at which kernels
/// change, depths that end inside a step or a group, and shapes that only some kernels support.
fn narrow(list: &mut List) {
    let form = |dtype, group, offset| QuantizedWeights { dtype, group, offset };
    let forms = [
        ("e4m3-rows", form(DType::E4m3, None, false)),
        ("e4m3-groups", form(DType::E4m3, Some(128), false)),
        ("i8-rows", form(DType::I8, None, false)),
        ("i8-groups64", form(DType::I8, Some(64), false)),
        ("u4-rows", form(DType::U4, None, false)),
        ("u4-groups", form(DType::U4, Some(128), false)),
        ("u4-offsets", form(DType::U4, Some(128), true)),
        ("u4-groups32", form(DType::U4, Some(32), false)),
    ];
    for (word, narrow) in forms {
        for tokens in [1, 2, 8, 16, 17, 32, 33, 70] {
            let tier = if [1, 8, 33].contains(&tokens) { Quick } else { Standard };
            let kimi = Moe::kimi([tokens, 256, 16, 128], 4);
            list.add(tier, &format!("{word}/kimi-t{tokens}"), BF16, &kimi.narrow(narrow));
        }
        let add = |list: &mut List, tier, name: &str, call: Moe| {
            list.add(tier, &format!("{word}/{name}"), BF16, &call.narrow(narrow));
        };
        // The row lengths of h-tiny and Kimi-Linear, and one that does not fill a step.
        add(list, Standard, "h1536-i512-t1", Moe::granite([1, 1536, 3, 512], 2));
        add(list, Standard, "h2304-i1024-t1", Moe::kimi([1, 2304, 2, 1024], 2));
        add(list, Full, "h2304-i1024-t20", Moe::kimi([20, 2304, 4, 1024], 2));
        add(list, Quick, "h96-i160-t1", Moe::granite([1, 96, 5, 160], 2));
        add(list, Quick, "h416-i32-t5", Moe::granite([5, 416, 5, 32], 2));
        // The experts of one rank.
        add(list, Quick, "share-t1", Moe::kimi([1, 128, 16, 64], 6).of_experts(4..12));
        add(list, Standard, "share-t80", Moe::kimi([80, 128, 16, 64], 6).of_experts(8..16));
        for tokens in [1, 5, 80] {
            let oss = Moe::oss([tokens, 192, 8, 128], 3);
            add(list, Quick, &format!("limits-t{tokens}"), oss.clone());
            add(list, Standard, &format!("limits-share-t{tokens}"), oss.of_experts(2..6));
        }
        // Rows that are not whole vectors: these are expanded to bf16 for few tokens as well.
        add(list, Standard, "h136-i72-t3", Moe::granite([3, 136, 5, 72], 2));
        add(list, Standard, "no-tokens", Moe::granite([0, 256, 4, 128], 2));
    }
}

/// One token, as persistent kernels take it, with the models' row lengths, the only supported ones.
fn phases(list: &mut List) {
    let e4m3 = QuantizedWeights { dtype: DType::E4m3, group: None, offset: false };
    let granite = |hidden, experts, top_k| {
        let call = Moe::granite([1, hidden, experts, 512], top_k).set("scale", 0.22);
        Moe { residual: true, ..call }.narrow(e4m3)
    };
    let kimi = |hidden, experts, top_k| Moe::kimi([1, hidden, experts, 512], top_k).narrow(e4m3);
    // Two experts, both chosen.
    list.add(Quick, "phase/h1536-e2", BF16, &granite(1536, 2, 2).always(2));
    // Without shared experts.
    list.add(Quick, "phase/h1536-e2-routed", BF16, &granite(1536, 2, 2));
    list.add(Standard, "phase/h2048-e8-routed", BF16, &granite(2048, 8, 6));
    list.add(Standard, "phase/h1536-e8", BF16, &granite(1536, 8, 6).always(2));
    list.add(Standard, "phase/h2048-e8", BF16, &granite(2048, 8, 6).always(2));
    list.add(Standard, "phase/h1536-e8-sigmoid", BF16, &kimi(1536, 8, 6).always(2));
    let of_all = granite(2048, 6, 3).set("score", "softmax_of_all");
    list.add(Standard, "phase/h2048-e6-of-all", BF16, &of_all.always(1));
    let ties = Moe { logits: Logits::NearTies, ..granite(1536, 8, 6) };
    list.add(Standard, "phase/h1536-e8-near-ties", BF16, &ties.always(2));
    // Rows of three chunks, experts of twice the width.
    let wide = |experts, top_k| Moe::kimi([1, 2304, experts, 1024], top_k).narrow(e4m3);
    list.add(Standard, "phase/h2304-e6", BF16, &wide(6, 3).always(1));
    list.add(Standard, "phase/h2304-e6-routed", BF16, &wide(6, 3));
    list.add(Standard, "phase/h2304-e4", BF16, &wide(4, 2).always(2));
    list.add(Full, "phase/h2304-e12", BF16, &wide(12, 8).always(1));
    // As many experts per token as h-tiny.
    list.add(Full, "phase/h1536-e20", BF16, &granite(1536, 20, 6).always(2));
    list.add(Full, "phase/h2048-e20-sigmoid", BF16, &kimi(2048, 20, 6).always(2));
}

/// The format of quantized weights.
#[derive(Clone, Copy)]
struct QuantizedWeights {
    dtype: DType,
    /// Group size; `None` for one scale per row.
    group: Option<usize>,
    offset: bool,
}

impl QuantizedWeights {
    /// Weights `[experts, rows, columns]` of about this standard deviation.
    fn draw(
        self,
        draw: &mut TensorRng,
        (shape, names): ([usize; 3], [&str; 3]),
        deviation: f64,
        put: &mut impl FnMut(&str, Tensor),
    ) {
        let [experts, rows, columns] = shape;
        let groups = self.group.map_or(1, |group| columns.div_ceil(group));
        let of = [experts, groups, rows];
        // The spread of the values, and their middle.
        let (numbers, spread) = match self.dtype {
            // From the smallest values to the largest that are not clipped.
            DType::E4m3 => (draw.normals(&shape, DType::E4m3, 60.0), 60.0),
            DType::I8 => {
                (draw.tensor(&shape, DType::I8, |draw| draw.below(255) as f64 - 127.0), 73.0)
            }
            _ => (draw.tensor(&shape, DType::U4, |draw| draw.below(16) as f64), 4.6),
        };
        let low = deviation / spread / 1.5;
        let scales = draw.uniforms(&of, DType::F32, low, 2.0 * low);
        if self.offset {
            let below = scales.to_f64().into_iter().map(|scale| scale * draw.uniform(3.0, 12.0));
            put(names[2], Tensor::new(&of, below.collect::<Vec<_>>()).cast(DType::F32));
        }
        put(names[0], numbers);
        put(names[1], scales);
    }
}

#[derive(Clone)]
enum Logits {
    /// Normal with this standard deviation.
    Spread(f64),
    /// All the same.
    Equal,
    /// Every token prefers this expert.
    Favourite(usize),
    /// A few units in the last place apart.
    NearTies,
}

/// A call of moe.
#[derive(Clone)]
struct Moe {
    tokens: usize,
    hidden: usize,
    experts: usize,
    inner: usize,
    top_k: usize,
    logits: Logits,
    /// Whether experts have gate projections.
    gated: bool,
    /// Whether they have biases.
    biased: bool,
    correction: bool,
    residual: bool,
    narrow: Option<QuantizedWeights>,
    /// The experts of this rank.
    held: Range<usize>,
    /// Shared experts after them.
    always: usize,
    settings: Settings,
}

impl Moe {
    /// Sizes are T, H, E and I.
    fn granite([tokens, hidden, experts, inner]: [usize; 4], top_k: usize) -> Self {
        Self {
            tokens,
            hidden,
            experts,
            inner,
            top_k,
            logits: Logits::Spread(1.5),
            gated: true,
            biased: false,
            correction: false,
            residual: false,
            narrow: None,
            held: 0..experts,
            always: 0,
            settings: Settings::new().with("score", "softmax_of_chosen"),
        }
    }

    /// With Kimi-Linear's router and a residual.
    fn kimi(sizes: [usize; 4], top_k: usize) -> Self {
        let settings = Settings::new().with("score", "sigmoid").with("weight_scale", 2.446);
        let settings = settings.with("scale", 0.8);
        Self { correction: true, residual: true, settings, ..Self::granite(sizes, top_k) }
    }

    /// The same without gate projections.
    fn nemotron(sizes: [usize; 4], top_k: usize) -> Self {
        let call = Self::kimi(sizes, top_k).set("activation", "relu_squared");
        Self { gated: false, ..call }
    }

    /// Granite's router, with biases, gate and up values that reach their limits, and a residual.
    fn oss(sizes: [usize; 4], top_k: usize) -> Self {
        let call = Self::granite(sizes, top_k).set("activation", "clamped_swiglu");
        Self { biased: true, residual: true, ..call.set("limit", 1.5).set("alpha", 1.3) }
    }

    /// With default limits, which nothing reaches.
    fn with_default_limits(self) -> Self {
        let settings = Settings::new().with("score", "softmax_of_chosen");
        Self { settings: settings.with("activation", "clamped_swiglu"), ..self }
    }

    fn of_tokens(&self, tokens: usize) -> Self {
        Self { tokens, ..self.clone() }
    }

    fn narrow(self, narrow: QuantizedWeights) -> Self {
        let group = narrow.group.map(|group| self.set("w_group", group));
        Self { narrow: Some(narrow), ..group.unwrap_or(self) }
    }

    /// The experts of one rank.
    fn of_experts(&self, held: Range<usize>) -> Self {
        Self { held: held.clone(), ..self.set("experts_first", held.start) }
    }

    /// With shared experts.
    fn always(&self, always: usize) -> Self {
        Self { always, ..self.set("always", always) }
    }

    fn set(&self, name: &str, value: impl std::fmt::Display) -> Self {
        Self { settings: self.settings.clone().with(name, value), ..self.clone() }
    }

    fn draw_logits(&self, draw: &mut TensorRng) -> Tensor {
        let shape = [self.tokens, self.experts];
        let mut at = 0;
        let mut logit = |draw: &mut TensorRng| {
            let expert = at % self.experts;
            at += 1;
            match self.logits {
                Logits::Spread(deviation) => draw.normal() * deviation,
                Logits::Equal => 0.75,
                Logits::Favourite(wanted) if wanted == expert => 9.0,
                Logits::Favourite(_) => draw.normal(),
                Logits::NearTies => 0.3 + draw.below(4) as f64 * 3e-8,
            }
        };
        draw.tensor(&shape, DType::F32, |draw| logit(draw))
    }
}

impl Call for Moe {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let Self { tokens, hidden, experts, inner, .. } = *self;
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| drop(inputs.insert(name.to_owned(), tensor));
        put("x", draw.normals(&[tokens, hidden], dtype, 1.0));
        put("logits", self.draw_logits(draw));
        if self.correction {
            // With equal logits, corrections must be equal as well.
            let deviation = if matches!(self.logits, Logits::Spread(_)) { 0.3 } else { 0.0 };
            put("correction", draw.normals(&[experts], DType::F32, deviation));
        }
        // So that gate, up and results are about 1 for all sizes.
        let of_depth = |depth: usize| 1.0 / (depth as f64).sqrt();
        let held = self.held.len() + self.always;
        let ups = if self.gated { 2 * inner } else { inner };
        let up = ([held, ups, hidden], ["w_gate_up", "gate_up_scale", "gate_up_offset"]);
        let down = ([held, hidden, inner], ["w_down", "down_scale", "down_offset"]);
        for (of, size) in [(up, of_depth(hidden)), (down, 2.0 * of_depth(inner))] {
            match self.narrow {
                Some(narrow) => narrow.draw(draw, of, size, &mut put),
                None => put(of.1[0], draw.normals(&of.0, dtype, size)),
            }
        }
        if self.biased {
            put("gate_up_bias", draw.normals(&[held, ups], DType::F32, 0.7));
            put("down_bias", draw.normals(&[held, hidden], DType::F32, 0.7));
        }
        if self.residual {
            put("residual", draw.normals(&[tokens, hidden], DType::F32, 0.5));
        }
        (inputs, self.settings.clone().with("top_k", self.top_k))
    }
}
