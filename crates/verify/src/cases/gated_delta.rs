use super::OpCases;
use super::kda::{Decay, Kda, gradient_edges};
use super::list::{ALL, BF16, Backward, F32, F32_BF16, List, Recurrent};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, Shared, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property};
use ops::DType;

pub(super) const OP: OpCases = OpCases { op: "gated_delta", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "gated_delta_backward", cases: backward, layout: Layout::WHOLE };

const LAYOUT: Layout = Layout {
    heads: ("v", 2),
    shared: ("q", 2),
    whole_groups: false,
    tensors: &[
        ("q", &[Batch, Tokens, Shared, Whole]),
        ("k", &[Batch, Tokens, Shared, Whole]),
        ("v", &[Batch, Tokens, Head, Whole]),
        ("g", &[Batch, Tokens, Head]),
        ("beta", &[Batch, Tokens, Head]),
        ("A_log", &[Head]),
        ("dt_bias", &[Head]),
        ("initial_state", &[Batch, Head, Whole, Whole]),
        ("o", &[Batch, Tokens, Head, Whole]),
        ("final_state", &[Batch, Head, Whole, Whole]),
    ],
};

/// A call with one decay per value head.
fn call(tokens: usize, heads: usize, dim: usize) -> Recurrent<Kda> {
    Kda::new(tokens, heads, dim).with(|of| of.per_head = true)
}

/// [`call`] with logits of Qwen3-Next's gate.
fn logits(of: Recurrent<Kda>, mean: f64, deviation: f64) -> Recurrent<Kda> {
    of.logits("plain", mean, deviation)
}

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    suites(&mut list);
    gates(&mut list);
    edges(&mut list);
    let whole = call(200, 2, 64).batch(2).value_heads(4).soft(-2.0).initial();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &whole);
    let parts = Property::Continuation(vec![100, 63, 37]);
    list.property(Quick, "property/continuation-100-63-37", F32_BF16, parts, &whole);
    let parts = Property::Continuation(vec![64, 65, 71]);
    let of_logits = logits(call(200, 2, 60), 0.0, 2.0);
    list.property(Standard, "property/continuation-64-65-71", ALL, parts, &of_logits);
    list.done()
}

/// Gradients: Qwen3-Next's heads, its gate up to saturation, and what `kda` has too.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Recurrent<Kda>| Backward { op: OP.op, call };
    let model = |tokens, heads| call(tokens, heads, 128).value_heads(2 * heads);
    let small = logits(model(100, 1), 0.0, 1.0);
    list.add(Quick, "qwen3-next/t100-h1", ALL, &of(small.initial()));
    let many = logits(model(200, 3), 0.0, 1.0);
    list.add(Standard, "qwen3-next/t200-h3", F32_BF16, &of(many.initial()));
    let base = |mean, deviation| logits(call(70, 2, 64), mean, deviation).initial();
    for mean in [-8.0, 8.0] {
        list.add(Quick, &format!("gate/logits{mean}"), F32_BF16, &of(base(mean, 0.5)));
    }
    list.add(Quick, "gate/normal8", F32_BF16, &of(base(0.0, 8.0)));
    let mixed = base(-1.0, 1.0).with(|of| of.bias = Some(1.5)).value_heads(4);
    list.add(Quick, "gate/bias-hv4", F32_BF16, &of(mixed));
    gradient_edges(&mut list, OP.op, call);
    list.done()
}

/// fla's chunk, varlen and decode suites, and the heads of Qwen3-Next: 16 key heads, 32 value heads, width 128.
fn suites(list: &mut List) {
    for (batch, tokens, heads, value_heads, dim, tier) in [
        (1, 63, 1, 1, 64, Quick),
        (2, 500, 3, 3, 60, Standard),
        (2, 1000, 2, 8, 128, Standard),
        (3, 1024, 4, 4, 100, Full),
    ] {
        let name = format!("fla/chunk-b{batch}-t{tokens}-h{heads}-hv{value_heads}-d{dim}");
        let call = call(tokens, heads, dim).batch(batch).value_heads(value_heads);
        list.add(tier, &name, ALL, &logits(call, 0.0, 1.0).initial());
    }
    let varlen = |lengths: &[usize], dim| call(0, 2, dim).packed(lengths).soft(0.0).initial();
    list.add(Quick, "fla/varlen-15", ALL, &varlen(&[15], 64));
    list.add(Standard, "fla/varlen-256-500-1000", F32_BF16, &varlen(&[256, 244, 500], 60));
    let uneven = [15, 85, 200, 900, 800];
    list.add(Standard, "fla/varlen-15-100-300-1200-2000", BF16, &varlen(&uneven, 64));
    for (batch, tier) in [(7, Quick), (16, Standard)] {
        // Unused slots contain 1e30, so that reading or writing one is detected.
        let decode = logits(call(1, 4, 64).batch(batch).value_heads(8), 0.0, 1.0);
        list.add(tier, &format!("fla/decode-pool-b{batch}"), F32_BF16, &decode.pool(2 * batch));
    }
    for (tokens, tier) in [(1, Quick), (17, Quick), (97, Standard), (1024, Full)] {
        let call = logits(call(tokens, 16, 128).value_heads(32), 0.0, 1.0).initial();
        list.add(tier, &format!("qwen3-next/layer-t{tokens}"), BF16, &call);
    }
}

/// Logits and biases that saturate gates, and write strengths twice as large.
fn gates(list: &mut List) {
    let base = |mean, deviation| logits(call(70, 2, 64), mean, deviation).initial();
    for mean in [-8.0, 0.0, 8.0] {
        list.add(Standard, &format!("gate/logits{mean}"), F32, &base(mean, 0.0));
    }
    list.add(Quick, "gate/normal8", F32_BF16, &base(0.0, 8.0));
    for bias in [-8.0, 8.0] {
        let call = base(0.0, 1.0).with(|of| of.bias = Some(bias));
        list.add(Standard, &format!("gate/bias{bias}"), F32, &call);
    }
    let mixed = base(-1.0, 1.0).with(|of| of.bias = Some(1.5)).value_heads(4);
    list.add(Quick, "gate/bias-hv4", F32, &mixed);
    let doubled = logits(call(90, 2, 64), 0.0, 1.0).set("allow_neg_eigval", true);
    list.add(Quick, "edge/negative-eigenvalues", F32_BF16, &doubled.initial());
}

/// Heads of the models' width, and wider ones.
fn wide(list: &mut List) {
    let wide = |tokens| call(tokens, 2, 128).value_heads(4);
    list.add(Standard, "edge/slow-gates-t2000-d128", F32_BF16, &wide(2000).soft(-7.0).initial());
    let mixed = Decay::Mixed(&[0.0, -1e-4, -0.1, -5.0, -40.0]);
    list.add(Quick, "edge/mixed-gates-d128", F32_BF16, &wide(200).decay(mixed).initial());
    let reflections = wide(130).decay(Decay::Constant(0.0)).with(|of| of.beta = Some(2.0));
    list.add(Standard, "edge/reflections-d128", F32_BF16, &reflections.initial());
    let uneven = [64, 1, 0, 200, 63, 129];
    let pool = wide(0).packed(&uneven).soft(-1.0).pool(9);
    list.add(Standard, "edge/varlen-pool-d128", F32_BF16, &pool.padded());
    // Long enough for `chunk.hopper` to prepare later chunks while it scans the first ones.
    let beside = call(2600, 1, 128).value_heads(3).soft(-3.0).initial();
    list.add(Standard, "edge/beside-the-walk-t2600-hv3", BF16, &beside);
    let uneven = [1700, 0, 40, 1100, 2300];
    let pool = call(0, 2, 64).packed(&uneven).soft(-1.0).pool(8);
    list.add(Standard, "edge/beside-the-walk-varlen-pool", BF16, &pool.padded());
    list.add(Standard, "edge/k128-v64-hv4", F32_BF16, &wide(100).value_dim(64).soft(0.0).initial());
    let long = call(8192, 1, 128).value_heads(2).soft(-3.0).initial();
    list.add(Full, "edge/t8192-d128", BF16, &long);
    list.add(Standard, "edge/k64-v256", F32_BF16, &call(100, 2, 64).value_dim(256).soft(0.0));
    list.add(Standard, "edge/k256-v64", F32_BF16, &call(80, 1, 256).value_dim(64).soft(0.0));
}

fn edges(list: &mut List) {
    let base = |tokens| call(tokens, 2, 64);
    list.add(Quick, "edge/t1", ALL, &base(1).soft(0.0).initial());
    list.add(Quick, "edge/t1-no-state", F32, &base(1).soft(0.0));
    for tokens in [15, 17, 63, 64, 65, 129] {
        let tier = if tokens == 65 { Quick } else { Standard };
        list.add(tier, &format!("edge/t{tokens}"), F32_BF16, &base(tokens).soft(0.0).initial());
    }
    // Almost no decay: the first token's state remains until the end.
    list.add(Quick, "edge/slow-gates", ALL, &base(200).decay(Decay::Constant(-1e-5)).initial());
    list.add(Quick, "edge/no-decay", F32, &base(130).decay(Decay::Constant(0.0)).initial());
    list.add(Standard, "edge/slow-gates-t1500", F32_BF16, &base(1500).soft(-7.0).initial());
    // Values far from 1, beyond the range of a type narrower than the storage type.
    for (name, values, tier) in [("large", 3e4, Quick), ("small", 1e-5, Standard)] {
        let call = call(150, 2, 128).soft(-1.0).with(|of| of.values = values);
        list.add(tier, &format!("edge/{name}-values"), F32_BF16, &call);
    }
    wide(list);
    // e^-20 per token: after five of them e^-G exceeds float32.
    for (decay, tier) in [(-5.0, Quick), (-20.0, Quick), (-40.0, Standard)] {
        let fast = base(90).decay(Decay::Constant(decay)).initial();
        list.add(tier, &format!("edge/fast-gates{decay}"), F32_BF16, &fast);
    }
    let mixed = Decay::Mixed(&[0.0, -1e-4, -0.1, -5.0, -20.0]);
    list.add(Quick, "edge/mixed-gates", F32_BF16, &base(130).decay(mixed).initial());
    // One wiped token in 37: earlier tokens must vanish, later ones must not.
    list.add(Standard, "edge/cliffs", F32_BF16, &base(200).decay(Decay::Clears(-80.0)).initial());
    // Reflections: nothing decays, and rounded keys rotate the state a little with every token.
    let reflections = base(130).decay(Decay::Constant(0.0)).with(|of| of.beta = Some(2.0));
    list.add(Quick, "edge/reflections", F32_BF16, &reflections.initial());
    for beta in [0.0, 1e-3, 0.999, 1.0] {
        let call = base(60).soft(0.0).initial().with(|of| of.beta = Some(beta));
        list.add(Standard, &format!("edge/beta-{beta}"), F32, &call);
    }
    for dim in [48, 128] {
        let f32_gates =
            call(130, 2, dim).value_heads(4).with(|of| of.gate_dtype = Some(DType::F32));
        list.add(Quick, &format!("edge/f32-gates-d{dim}"), BF16, &f32_gates.soft(-1.0).initial());
    }
    let state = base(64).soft(0.0).initial().with(|of| of.state = DType::Bf16);
    list.add(Standard, "edge/bf16-state", BF16, &state);
    list.add(Quick, "edge/gva-h2-hv6", F32_BF16, &base(50).value_heads(6).soft(0.0).initial());
    list.add(Quick, "edge/k33-v20", ALL, &call(70, 2, 33).value_dim(20).soft(0.0).initial());
    list.add(Standard, "edge/k16-v200", F32, &call(70, 1, 16).value_dim(200).soft(0.0));
    list.add(Standard, "edge/k1-v1", F32, &call(40, 1, 1).soft(0.0).initial());
    let lengths = [5, 0, 1, 64, 0, 33];
    let varlen = call(0, 2, 48).packed(&lengths).soft(0.0).initial();
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &varlen);
    list.add(Quick, "edge/varlen-no-state", F32, &call(0, 2, 48).packed(&lengths).soft(-3.0));
    let pool = call(0, 2, 32).packed(&lengths).soft(0.0).pool(9);
    list.add(Quick, "edge/varlen-pool-padding", F32_BF16, &pool.padded());
    list.add(Standard, "edge/no-tokens", F32, &base(0).batch(2).soft(0.0).initial());
    list.add(Standard, "edge/scale-1", F32, &base(50).soft(0.0).set("scale", 1));
    let raw = base(70).soft(0.0).with(|of| of.l2norm = false);
    list.add(Quick, "edge/without-l2norm", F32_BF16, &raw);
}
