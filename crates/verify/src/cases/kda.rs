use super::OpCases;
use super::list::{
    ALL, BF16, Backward, F32, F32_BF16, HALVES, List, Recurrence, Recurrent, Sequences,
};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, Shared, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, Tensor, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "kda", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "kda_backward", cases: backward, layout: Layout::WHOLE };

const LAYOUT: Layout = Layout {
    heads: ("v", 2),
    shared: ("q", 2),
    whole_groups: false,
    tensors: &[
        ("q", &[Batch, Tokens, Shared, Whole]),
        ("k", &[Batch, Tokens, Shared, Whole]),
        ("v", &[Batch, Tokens, Head, Whole]),
        ("g", &[Batch, Tokens, Head, Whole]),
        ("beta", &[Batch, Tokens, Head]),
        ("A_log", &[Head]),
        ("dt_bias", &[Head, Whole]),
        ("initial_state", &[Batch, Head, Whole, Whole]),
        ("o", &[Batch, Tokens, Head, Whole]),
        ("final_state", &[Batch, Head, Whole, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    fla(&mut list);
    flash_kda(&mut list);
    gates(&mut list);
    edges(&mut list);
    properties(&mut list);
    list.done()
}

/// fla's chunk, varlen and decode suites.
fn fla(list: &mut List) {
    for (batch, tokens, heads, value_heads, dim, tier) in [
        (1, 63, 1, 1, 64, Quick),
        (2, 500, 3, 3, 60, Standard),
        (3, 1024, 4, 4, 100, Standard),
        (2, 1500, 4, 4, 128, Standard),
        (2, 1024, 2, 8, 128, Standard),
    ] {
        for gate in ["plain", "safe"] {
            let name =
                format!("fla/chunk-b{batch}-t{tokens}-h{heads}-hv{value_heads}-d{dim}-{gate}");
            let call = Kda::new(tokens, heads, dim).batch(batch).value_heads(value_heads);
            list.add(tier, &name, HALVES, &call.logits(gate, 0.0, 1.0).initial());
        }
    }
    let varlen = |lengths: &[usize], dim| Kda::new(0, 2, dim).packed(lengths).soft(0.0).initial();
    list.add(Quick, "fla/varlen-15", HALVES, &varlen(&[15], 64));
    list.add(Standard, "fla/varlen-256-500-1000", HALVES, &varlen(&[256, 244, 500], 64));
    let uneven = [15, 85, 200, 900, 800];
    list.add(Standard, "fla/varlen-15-100-300-1200-2000", HALVES, &varlen(&uneven, 60));
    for (batch, tier) in [(7, Quick), (16, Standard), (32, Full)] {
        // Unused slots contain 1e30, so that reading or writing one is detected.
        let decode = Kda::new(1, 4, 64).batch(batch).value_heads(8).logits("plain", 0.0, 1.0);
        list.add(tier, &format!("fla/decode-pool-b{batch}"), F32_BF16, &decode.pool(2 * batch));
    }
}

/// FlashKDA's grid of heads and lengths, sampled: H 1, 4, 32, 96 by T 16 to 8192, K = V = 128.
fn flash_kda(list: &mut List) {
    for (heads, tokens, tier) in [
        (1, 16, Quick),
        (1, 17, Quick),
        (4, 37, Quick),
        (96, 16, Standard),
        (32, 64, Standard),
        (4, 97, Standard),
        (1, 1024, Standard),
        (4, 256, Standard),
        (96, 97, Standard),
        (32, 256, Full),
        (4, 2048, Full),
        (96, 256, Full),
        (1, 4096, Full),
        (1, 8192, Full),
    ] {
        let call = Kda::new(tokens, heads, 128).logits("safe", 0.0, 1.0).initial();
        list.add(tier, &format!("flashkda/h{heads}-t{tokens}"), F32_BF16, &call);
    }
    // Layers of 2048 and 2304 channels from bug reports: 16 and 32 heads, a prompt of 128 tokens without a state.
    for heads in [16, 32] {
        let call = Kda::new(128, heads, 128).logits("safe", 0.0, 1.0);
        list.add(Quick, &format!("field/layer-h{heads}-t128"), F32_BF16, &call);
    }
    let narrow = Kda::new(64, 4, 128).logits("safe", 0.0, 1.0).with(|of| of.state = DType::Bf16);
    list.add(Standard, "flashkda/h4-t64-bf16-state", BF16, &narrow.initial());
}

/// FlashKDA's gate suite: logits and biases that saturate both gates.
fn gates(list: &mut List) {
    for gate in ["plain", "safe"] {
        let base = |mean, deviation| Kda::new(70, 2, 64).logits(gate, mean, deviation).initial();
        for mean in [-8.0, -4.0, 0.0, 8.0] {
            let tier = if mean == -8.0 { Quick } else { Standard };
            list.add(tier, &format!("flashkda/gate-{gate}-logits{mean}"), F32, &base(mean, 0.0));
        }
        list.add(Quick, &format!("flashkda/gate-{gate}-normal8"), F32_BF16, &base(0.0, 8.0));
        for bias in [-8.0, 8.0] {
            let call = base(0.0, 1.0).with(|of| of.bias = Some(bias));
            list.add(Standard, &format!("flashkda/gate-{gate}-bias{bias}"), F32, &call);
        }
        let mixed = base(-1.0, 1.0).with(|of| (of.bias, of.value_heads) = (Some(1.5), 4));
        list.add(Quick, &format!("flashkda/gate-{gate}-bias-hv4"), F32, &mixed);
    }
    let bound = Kda::new(40, 1, 32).logits("safe", 0.0, 2.0).set("lower_bound", -0.5);
    list.add(Quick, "flashkda/gate-safe-bound-0.5", F32, &bound.initial());
    let doubled = Kda::new(90, 2, 64).logits("plain", 0.0, 1.0).set("allow_neg_eigval", true);
    list.add(Quick, "edge/negative-eigenvalues", F32_BF16, &doubled.initial());
}

fn edges(list: &mut List) {
    let base = |tokens| Kda::new(tokens, 2, 64);
    list.add(Quick, "edge/t1", ALL, &base(1).soft(0.0).initial());
    list.add(Quick, "edge/t1-no-state", F32, &base(1).soft(0.0));
    for tokens in [15, 63, 64, 65, 129] {
        let tier = if tokens == 65 { Quick } else { Standard };
        list.add(tier, &format!("edge/t{tokens}"), F32_BF16, &base(tokens).soft(0.0).initial());
    }
    // Almost no decay: the first token's state remains until the end.
    list.add(Quick, "edge/slow-gates", ALL, &base(200).decay(Decay::Constant(-1e-5)).initial());
    list.add(Quick, "edge/no-decay", F32, &base(130).decay(Decay::Constant(0.0)).initial());
    list.add(Standard, "edge/slow-gates-t1500", F32_BF16, &base(1500).soft(-7.0).initial());
    // e^-5 per token: e^80 after 16 of them, where a cumulative e^-G exceeds float16 and then float32.
    list.add(Quick, "edge/fast-gates", ALL, &base(130).decay(Decay::Constant(-5.0)).initial());
    list.add(Standard, "edge/faster-gates", F32, &base(90).decay(Decay::Constant(-40.0)).initial());
    // Reflections: nothing decays, and rounded keys rotate the state a little with every token.
    let reflections = base(130).decay(Decay::Constant(0.0)).with(|of| of.beta = Some(2.0));
    list.add(Quick, "edge/reflections", F32_BF16, &reflections.initial());
    // Values far from 1, beyond the range of a type narrower than the storage type.
    for (name, values, tier) in [("large", 3e4, Quick), ("small", 1e-5, Standard)] {
        let call = Kda::new(150, 2, 128).soft(-1.0).with(|of| of.values = values);
        list.add(tier, &format!("edge/{name}-values"), F32_BF16, &call);
    }
    let wide = |tokens| Kda::new(tokens, 2, 128).value_heads(4);
    list.add(Standard, "edge/slow-gates-t2000-d128", F32_BF16, &wide(2000).soft(-7.0).initial());
    let uneven = [64, 1, 0, 200, 63, 129];
    let pool = Kda::new(0, 2, 128).packed(&uneven).soft(-1.0).pool(9);
    list.add(Standard, "edge/varlen-pool-d128", F32_BF16, &pool.padded());
    list.add(Standard, "edge/k128-v64-hv4", F32_BF16, &wide(100).value_dim(64).soft(0.0).initial());
    let mixed = Decay::Mixed(&[0.0, -1e-4, -0.1, -5.0]);
    list.add(Quick, "edge/mixed-gates", F32_BF16, &base(130).decay(mixed).initial());
    // One token in 37 clears the state: no output after it depends on tokens before it.
    list.add(Standard, "edge/cliffs", F32_BF16, &base(200).decay(Decay::Clears(-80.0)).initial());
    // Each channel decays by e^-40 over the sequence, but the state avoids the decaying channel at each token: it must
    // not be dropped.
    list.add(
        Quick,
        "edge/false-decay-bound",
        F32_BF16,
        &base(16).decay(Decay::AlternateHalves).initial(),
    );
    // Gates wider than needed; rows of 48 are not padded like those of 128.
    for (dim, tier) in [(48, Quick), (128, Standard)] {
        let wide = Kda::new(130, 2, dim).value_heads(4).with(|of| of.gate_dtype = Some(DType::F32));
        list.add(tier, &format!("edge/f32-gates-d{dim}"), BF16, &wide.soft(-1.0).initial());
    }
    list.add(Quick, "edge/gva-h2-hv6", F32_BF16, &base(50).value_heads(6).soft(0.0).initial());
    list.add(Quick, "edge/k33-v20", ALL, &Kda::new(70, 2, 33).value_dim(20).soft(0.0).initial());
    list.add(Standard, "edge/k16-v200", F32, &Kda::new(70, 1, 16).value_dim(200).soft(0.0));
    list.add(Standard, "edge/k256-v64", F32_BF16, &Kda::new(80, 1, 256).value_dim(64).soft(0.0));
    let lengths = [5, 0, 1, 64, 0, 33];
    let varlen = Kda::new(0, 2, 48).packed(&lengths).soft(0.0).initial();
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &varlen);
    list.add(Quick, "edge/varlen-no-state", F32, &Kda::new(0, 2, 48).packed(&lengths).soft(-3.0));
    let pool = Kda::new(0, 2, 32).packed(&lengths).soft(0.0).pool(9);
    list.add(Quick, "edge/varlen-pool-padding", F32_BF16, &pool.padded());
    list.add(Standard, "edge/no-tokens", F32, &base(0).batch(2).soft(0.0).initial());
    list.add(Standard, "edge/scale-1", F32, &base(50).soft(0.0).set("scale", 1));
    let raw = base(70).soft(0.0).with(|of| of.l2norm = false);
    list.add(Quick, "edge/without-l2norm", F32_BF16, &raw);
    for (beta, tokens) in [(0.0, 40), (1.0, 90)] {
        let call = base(tokens).soft(0.0).initial().with(|of| of.beta = Some(beta));
        list.add(Standard, &format!("edge/beta-{beta}"), F32, &call);
    }
}

fn properties(list: &mut List) {
    let call = Kda::new(200, 2, 64).batch(2).value_heads(4).soft(-2.0).initial();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    let parts = Property::Continuation(vec![100, 63, 37]);
    list.property(Quick, "property/continuation-100-63-37", F32_BF16, parts, &call);
    let parts = Property::Continuation(vec![64, 65, 71]);
    let logits = Kda::new(200, 2, 60).logits("safe", 0.0, 2.0);
    list.property(Standard, "property/continuation-64-65-71-safe", ALL, parts, &logits);
}

/// Gradients: Kimi Linear's heads, both kinds of gates up to saturation, and the cases shared with `gated_delta`.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Recurrent<Kda>| Backward { op: OP.op, call };
    let model = |tokens, heads| Kda::new(tokens, heads, 128);
    list.add(Quick, "kimi/t130-h2", ALL, &of(model(130, 2).logits("safe", 0.0, 1.0).initial()));
    let many = model(300, 6).logits("plain", 0.0, 1.0);
    list.add(Standard, "kimi/t300-h6", F32_BF16, &of(many.initial()));
    for (gate, heads) in [("safe", 8), ("plain", 16)] {
        let call = model(130, heads).logits(gate, 0.0, 1.0).initial();
        list.add(Standard, &format!("kimi/{gate}-t130-h{heads}"), BF16, &of(call));
    }
    for gate in ["plain", "safe"] {
        let base = |mean, deviation| Kda::new(70, 2, 64).logits(gate, mean, deviation).initial();
        for mean in [-8.0, 8.0] {
            let name = format!("gate/{gate}-logits{mean}");
            list.add(Quick, &name, F32_BF16, &of(base(mean, 0.5)));
        }
        list.add(Quick, &format!("gate/{gate}-normal8"), F32_BF16, &of(base(0.0, 8.0)));
        let mixed = base(-1.0, 1.0).with(|of| (of.bias, of.value_heads) = (Some(1.5), 4));
        list.add(Quick, &format!("gate/{gate}-bias-hv4"), F32_BF16, &of(mixed));
    }
    let bound = Kda::new(40, 1, 32).logits("safe", 0.0, 2.0).set("lower_bound", -0.5);
    list.add(Quick, "gate/safe-bound-0.5", F32, &of(bound.initial()));
    gradient_edges(&mut list, OP.op, Kda::new);
    // Each channel decays by e^-40 over the sequence, but the state avoids the decaying channel at each token.
    let aside = Kda::new(16, 2, 64).decay(Decay::AlternateHalves).initial();
    list.add(Quick, "edge/false-decay-bound", F32_BF16, &of(aside));
    list.done()
}

/// Cases of the gradient that `kda` and `gated_delta` share; `new` is a call of T tokens and some heads of K = V channels.
pub(super) fn gradient_edges(
    list: &mut List,
    op: &'static str,
    new: fn(usize, usize, usize) -> Recurrent<Kda>,
) {
    let of = |call: Recurrent<Kda>| Backward { op, call };
    let base = |tokens| new(tokens, 2, 64).soft(0.0).initial();
    // Chunks have 16 or 32 tokens; the last one may be short.
    for (tokens, tier) in [
        (1, Quick),
        (2, Standard),
        (15, Standard),
        (16, Quick),
        (17, Quick),
        (65, Quick),
        (129, Standard),
    ] {
        list.add(tier, &format!("edge/t{tokens}"), F32_BF16, &of(base(tokens)));
    }
    list.add(Quick, "edge/no-state", F32_BF16, &of(new(50, 2, 64).soft(0.0)));
    let doubled = new(90, 2, 64).logits("plain", 0.0, 1.0).set("allow_neg_eigval", true);
    list.add(Quick, "edge/negative-eigenvalues", F32_BF16, &of(doubled.initial()));
    for (decay, tier) in [(-5.0, Standard), (-20.0, Quick), (-40.0, Standard)] {
        let fast = base(90).decay(Decay::Constant(decay));
        list.add(tier, &format!("edge/fast-gates{decay}"), F32_BF16, &of(fast));
    }
    list.add(Quick, "edge/slow-gates", ALL, &of(base(200).decay(Decay::Constant(-1e-5))));
    list.add(Quick, "edge/no-decay", F32_BF16, &of(base(130).decay(Decay::Constant(0.0))));
    list.add(Standard, "edge/slow-gates-t1500", F32_BF16, &of(base(1500).soft(-7.0)));
    let mixed = Decay::Mixed(&[0.0, -1e-4, -0.1, -5.0, -20.0]);
    list.add(Quick, "edge/mixed-gates", F32_BF16, &of(base(130).decay(mixed)));
    let wide = new(100, 2, 128).value_heads(4).decay(mixed).initial();
    list.add(Standard, "edge/mixed-gates-d128", F32_BF16, &of(wide));
    // One token in 37 clears the state: tokens before it have no gradient from outputs after it.
    list.add(Quick, "edge/cliffs", F32_BF16, &of(base(100).decay(Decay::Clears(-80.0))));
    let reflections = |call: Recurrent<Kda>| {
        call.decay(Decay::Constant(0.0)).with(|of| of.beta = Some(2.0)).initial()
    };
    list.add(Quick, "edge/reflections", F32_BF16, &of(reflections(base(130))));
    list.add(Standard, "edge/reflections-d128", F32_BF16, &of(reflections(new(130, 2, 128))));
    for (name, values, tier) in [("large", 3e4, Quick), ("small", 1e-5, Standard)] {
        let call = new(60, 2, 128).soft(-1.0).with(|of| of.values = values);
        list.add(tier, &format!("edge/{name}-values"), F32_BF16, &of(call));
    }
    for beta in [0.0, 1.0] {
        let call = base(40).with(|of| of.beta = Some(beta));
        list.add(Standard, &format!("edge/beta-{beta}"), F32, &of(call));
    }
    for (dim, tier) in [(48, Quick), (128, Standard)] {
        let call = new(60, 2, dim).value_heads(4).with(|of| of.gate_dtype = Some(DType::F32));
        list.add(tier, &format!("edge/f32-gates-d{dim}"), BF16, &of(call.soft(-1.0).initial()));
    }
    for (dim, tier) in [(64, Quick), (128, Standard)] {
        let call = new(50, 2, dim).soft(0.0).initial().with(|of| of.state = DType::Bf16);
        list.add(tier, &format!("edge/bf16-state-d{dim}"), HALVES, &of(call));
    }
    list.add(Quick, "edge/gva-h2-hv6", F32_BF16, &of(base(50).value_heads(6)));
    let odd = new(70, 2, 33).value_dim(20).soft(0.0).initial();
    list.add(Quick, "edge/k33-v20", ALL, &of(odd));
    for (key_dim, value_dim, heads) in [(1, 1, 2), (16, 200, 1), (256, 64, 1), (128, 64, 2)] {
        let call = new(40, heads, key_dim).value_dim(value_dim).soft(0.0).initial();
        let name = format!("edge/k{key_dim}-v{value_dim}");
        list.add(Standard, &name, F32_BF16, &of(call));
    }
    let lengths = [5, 0, 1, 64, 0, 33];
    let varlen = |dim| new(0, 2, dim).packed(&lengths).soft(0.0);
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &of(varlen(48).initial()));
    list.add(Quick, "edge/varlen-no-state", F32, &of(varlen(48).soft(-3.0)));
    let logits = varlen(128).value_heads(4).logits("plain", 0.0, 1.0).initial();
    list.add(Standard, "edge/varlen-d128", F32_BF16, &of(logits));
    list.add(Standard, "edge/no-tokens", F32, &of(base(0).batch(2)));
    list.add(Standard, "edge/no-batch", F32, &of(base(5).batch(0)));
    list.add(Standard, "edge/scale-1", F32, &of(base(50).set("scale", 1)));
    let raw = base(70).with(|of| of.l2norm = false);
    list.add(Quick, "edge/without-l2norm", F32_BF16, &of(raw));
    let call = new(100, 2, 64).batch(2).value_heads(4).logits("plain", -1.0, 1.0).initial();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &of(call));
}

/// Distribution of the log decays in `g`.
#[derive(Clone, Copy)]
pub(super) enum Decay {
    /// The same for every token and channel.
    Constant(f64),
    /// `-softplus(N(0, 1) + shift)`.
    Soft(f64),
    /// One of these for each.
    Mixed(&'static [f64]),
    /// -0.05, but this value in every channel of every 37th token.
    Clears(f64),
    /// -5 for the lower half of the channels at even tokens, for the upper half at odd ones, while keys of strength 2
    /// swap the first channel of each half, so that its state is never in the decaying half.
    AlternateHalves,
}

#[derive(Clone, Copy)]
pub(super) enum Gates {
    Decay(Decay),
    /// Logits N(mean, deviation) of this kind of gate.
    Logits(&'static str, f64, f64),
}

/// A call of kda, or of gated_delta.
#[derive(Clone)]
pub(super) struct Kda {
    /// Whether there is one decay per value head, as in gated_delta.
    pub(super) per_head: bool,
    heads: usize,
    value_heads: usize,
    dim: usize,
    value_dim: usize,
    gates: Gates,
    /// Storage type of `g`, if it differs from that of `q`.
    pub(super) gate_dtype: Option<DType>,
    /// Added to the logits with either sign; also enables `dt_bias`.
    pub(super) bias: Option<f64>,
    pub(super) beta: Option<f64>,
    /// Standard deviation of the values.
    pub(super) values: f64,
    pub(super) l2norm: bool,
    /// Storage of the initial state.
    pub(super) state: DType,
}

impl Kda {
    pub(super) fn new(tokens: usize, heads: usize, dim: usize) -> Recurrent<Self> {
        let of = Self {
            per_head: false,
            heads,
            value_heads: heads,
            dim,
            value_dim: dim,
            gates: Gates::Decay(Decay::Soft(0.0)),
            gate_dtype: None,
            bias: None,
            beta: None,
            values: 1.0,
            l2norm: true,
            state: DType::F32,
        };
        Recurrent::new(tokens, of)
    }

    /// The log decay or logit of a channel of a token, with channels of all heads numbered consecutively.
    fn gate(&self, draw: &mut TensorRng, index: usize) -> f64 {
        let gates = if self.per_head { 1 } else { self.dim };
        let (token, channel) = (index / (self.value_heads * gates), index % gates);
        match self.gates {
            Gates::Logits(_, mean, deviation) => mean + deviation * draw.normal(),
            Gates::Decay(Decay::Constant(decay)) => decay,
            Gates::Decay(Decay::Soft(shift)) => -(draw.normal() + shift).exp().ln_1p(),
            Gates::Decay(Decay::Mixed(decays)) => decays[draw.below(decays.len())],
            Gates::Decay(Decay::Clears(decay)) if token % 37 == 36 => decay,
            Gates::Decay(Decay::Clears(_)) => -0.05,
            Gates::Decay(Decay::AlternateHalves) => {
                if (channel < self.dim / 2) == (token % 2 == 0) { -5.0 } else { 0.0 }
            }
        }
    }
}

impl Recurrent<Kda> {
    pub(super) fn value_heads(self, value_heads: usize) -> Self {
        self.with(|of| of.value_heads = value_heads)
    }

    pub(super) fn value_dim(self, value_dim: usize) -> Self {
        self.with(|of| of.value_dim = value_dim)
    }

    pub(super) fn decay(self, decay: Decay) -> Self {
        self.with(|of| of.gates = Gates::Decay(decay))
    }

    pub(super) fn soft(self, shift: f64) -> Self {
        self.decay(Decay::Soft(shift))
    }

    pub(super) fn logits(self, gate: &'static str, mean: f64, deviation: f64) -> Self {
        let gates = Gates::Logits(gate, mean, deviation);
        self.with(|of| (of.gates, of.bias) = (gates, Some(0.5)))
    }
}

impl Recurrence for Kda {
    fn draw(&self, of: &Sequences, draw: &mut TensorRng, dtype: DType) -> TensorMap {
        let (heads, dim) = (self.heads, self.dim);
        let (own, values) = (self.value_heads, self.value_dim);
        let shape = |rest: &[usize]| of.shape(rest);
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        // Without normalization, keys longer than 1 would make the recurrence diverge.
        let scale = if self.l2norm { 1.0 } else { 0.7 * (dim as f64).powf(-0.5) };
        put("q", draw.normals(&shape(&[heads, dim]), dtype, 1.0));
        let mut key = draw.normals(&shape(&[heads, dim]), dtype, scale);
        let mut beta = draw.uniforms(&shape(&[own]), dtype, 0.0, 1.0);
        if let Gates::Logits(..) = self.gates {
            beta = draw.normals(&shape(&[own]), dtype, 2.0);
            put("A_log", draw.uniforms(&[own], DType::F32, -1.0, 1.0));
        }
        if let Some(value) = self.beta {
            beta = draw.tensor(&shape(&[own]), dtype, |_| value);
        }
        if let Gates::Decay(Decay::AlternateHalves) = self.gates {
            key = swapping_keys(key.shape(), dim).cast(dtype);
            beta = draw.tensor(&shape(&[own]), dtype, |_| 2.0);
        }
        put("k", key);
        put("beta", beta);
        let steps = matches!(self.gates, Gates::Decay(Decay::AlternateHalves));
        put(
            "v",
            draw.normals(&shape(&[own, values]), dtype, if steps { 0.01 } else { self.values }),
        );
        let mut index = 0;
        let gates: &[usize] = if self.per_head { &[own] } else { &[own, dim] };
        let gate = draw.tensor(&shape(gates), self.gate_dtype.unwrap_or(dtype), |draw| {
            index += 1;
            self.gate(draw, index - 1)
        });
        put("g", gate);
        if let (Gates::Logits(..), Some(bias)) = (self.gates, self.bias) {
            let sign = |draw: &mut TensorRng| if draw.below(2) == 0 { bias } else { -bias };
            put("dt_bias", draw.tensor(gates, DType::F32, sign));
        }
        inputs.extend(of.states(draw, &[own, dim, values], self.state, 1.0));
        inputs
    }

    fn set(&self, settings: &mut Settings) {
        if self.l2norm {
            settings.set("l2norm", true);
        }
        match self.gates {
            Gates::Logits(gate, ..) if !self.per_head => settings.set("gate", gate),
            _ => {}
        }
    }
}

/// Unit keys that, at strength 2, swap the first channels of the two halves: `I - 2 k k^T` with `k = (1, -1) / sqrt 2`.
fn swapping_keys(shape: &[usize], dim: usize) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    for row in values.chunks_mut(dim) {
        row[0] = std::f64::consts::FRAC_1_SQRT_2;
        row[dim / 2] = -std::f64::consts::FRAC_1_SQRT_2;
    }
    Tensor::new(shape, values)
}
