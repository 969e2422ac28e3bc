use super::OpCases;
use super::list::{
    ALL, BF16, Backward, F16, F32, F32_BF16, HALVES, List, Recurrence, Recurrent, Sequences,
};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, Shared, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "ssd", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "ssd_backward", cases: backward, layout: Layout::WHOLE };

const LAYOUT: Layout = Layout {
    heads: ("x", 2),
    shared: ("B", 2),
    whole_groups: false,
    tensors: &[
        ("x", &[Batch, Tokens, Head, Whole]),
        ("dt", &[Batch, Tokens, Head]),
        ("A", &[Head]),
        ("B", &[Batch, Tokens, Shared, Whole]),
        ("C", &[Batch, Tokens, Shared, Whole]),
        ("D", &[Head]),
        ("D", &[Head, Whole]),
        ("z", &[Batch, Tokens, Head, Whole]),
        ("dt_bias", &[Head]),
        ("initial_state", &[Batch, Head, Whole, Whole]),
        ("o", &[Batch, Tokens, Head, Whole]),
        ("final_state", &[Batch, Head, Whole, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    state_update(&mut list);
    varlen(&mut list);
    chunk(&mut list);
    ungated(&mut list);
    edges(&mut list);
    persistent_kernels(&mut list);
    bf16_states(&mut list);
    let call = Ssd::new(200, 4, 32, 64).batch(2).groups(2).every_part().initial();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    let parts = Property::Continuation(vec![90, 33, 77]);
    list.property(Quick, "property/continuation-90-33-77", F32_BF16, parts, &call);
    let parts = Property::Continuation(vec![128, 100, 72]);
    let plain = Ssd::new(300, 2, 64, 128);
    list.property(Standard, "property/continuation-128-100-72", ALL, parts, &plain);
    list.done()
}

/// mamba's selective_state_update: one token, dim = H P, with state indices into a poisoned pool.
fn state_update(list: &mut List) {
    for (dim, head_dim) in [(2048, 64), (2064, 48), (4096, 64)] {
        for state in [16, 32, 64] {
            let heads = dim / head_dim;
            for groups in [1, 2, 4].into_iter().filter(|groups| heads % groups == 0) {
                let name = format!("mamba/update-dim{dim}-n{state}-g{groups}");
                let call = Ssd::new(1, heads, head_dim, state).batch(2).groups(groups);
                let tier = match (dim, state, groups) {
                    (2064, 16, 1) | (2048, 32, 4) => Quick,
                    (4096, 64, _) => Full,
                    _ => Standard,
                };
                let dtypes = if tier == Standard { F32_BF16 } else { ALL };
                list.add(tier, &name, dtypes, &call.every_part().pool(5));
            }
        }
    }
}

/// mamba's combined scan over 300 sequences; chunks of 64 and 128 must give the same.
fn varlen(list: &mut List) {
    // Lengths 0 to 18, the same on every machine.
    let lengths: Vec<usize> = (0..300).map(|index| index * 7 % 19).collect();
    for (groups, chunk) in [(1, 64), (2, 128), (8, 64), (8, 128)] {
        let name = format!("mamba/varlen-300-g{groups}of8-chunk{chunk}");
        let call = Ssd::new(0, 8, 64, 64).groups(groups).packed(&lengths).every_part();
        let call = call.set("chunk_size", chunk);
        list.add(Standard, &name, F32_BF16, &call);
    }
    let alone = Ssd::new(0, 4, 32, 32).packed(&lengths[..20]);
    list.add(Quick, "mamba/varlen-20-no-state", F32, &alone);
    let few = Ssd::new(0, 4, 32, 32).packed(&lengths[..40]).every_part().initial();
    list.add(Quick, "mamba/varlen-40-g1of4", F32_BF16, &few.set("chunk_size", 64));
}

/// The chunked form with the models' sizes: N 128, P 64.
fn chunk(list: &mut List) {
    let model = |tokens, heads| Ssd::new(tokens, heads, 64, 128).every_part();
    list.add(Quick, "mamba/chunk-t130-h2", ALL, &model(130, 2).initial());
    list.add(Standard, "mamba/chunk-t257-h8-g1", ALL, &model(257, 8).initial());
    list.add(Standard, "mamba/chunk-t1000-h4-g2", F32_BF16, &model(1000, 4).groups(2));
    list.add(Full, "mamba/chunk-b2-t2048-h8", F32_BF16, &model(2048, 8).batch(2).initial());
    list.add(Standard, "granite/t512-h48-n128", BF16, &model(512, 48).initial());
    // Long and few sequences: GPU kernels split these into segments whose states are computed first, and some segments
    // are past a sequence's end.
    let long = [700, 0, 65, 1200, 3].as_slice();
    list.add(Standard, "mamba/varlen-long-h2", BF16, &model(0, 2).packed(long).initial());
    let slow = model(1500, 1).with(|of| of.rate = (1e-5, 1e-3));
    list.add(Standard, "mamba/chunk-t1500-h1-slow", F32_BF16, &slow.initial());
    for (chunk, tier) in [(16, Quick), (64, Standard), (256, Standard), (1000, Standard)] {
        let call = model(150, 2).set("chunk_size", chunk);
        list.add(tier, &format!("mamba/chunk{chunk}-t150"), F32, &call);
    }
}

/// The models' shapes without a gate: chunk and segment boundaries, all kinds of decay.
fn ungated(list: &mut List) {
    let base = |tokens, heads, state| {
        Ssd::new(tokens, heads, 64, state).every_part().with(|of| of.gate = false)
    };
    for tokens in [17, 63, 64, 65, 127, 128, 129, 300] {
        let tier = if tokens == 129 { Quick } else { Standard };
        let call = base(tokens, 4, 128).groups(2).initial();
        list.add(tier, &format!("ungated/t{tokens}-h4-g2"), HALVES, &call);
    }
    list.add(Standard, "ungated/t257-h8-n64", HALVES, &base(257, 8, 64).batch(2).initial());
    list.add(Standard, "ungated/t200-no-state", BF16, &base(200, 2, 128));
    let per_channel = base(130, 4, 128).initial().with(|of| of.skip = Some(true));
    list.add(Standard, "ungated/skip-per-channel", HALVES, &per_channel);
    list.add(Standard, "ungated/plain", BF16, &Ssd::new(150, 2, 64, 128));
    // Ends before, at and after a chunk's end, sequences of zero and one token, padding, and unused slots.
    let lengths = [63, 0, 1, 64, 65, 0, 129, 200];
    let varlen = base(0, 4, 128).groups(2).packed(&lengths);
    list.add(Quick, "ungated/varlen", HALVES, &varlen.clone().initial());
    let pool = varlen.clone().pool(11).padded();
    list.add(Standard, "ungated/varlen-pool-padding", HALVES, &pool);
    // Long and few: some segments are past a sequence's end.
    list.add(Standard, "ungated/t2000-h2", HALVES, &base(2000, 2, 128).initial());
    let long = [700, 0, 65, 1200, 3];
    list.add(Standard, "ungated/varlen-long-h2", BF16, &base(0, 2, 128).packed(&long).initial());
    let pool = base(0, 2, 64).packed(&long).pool(7).padded();
    list.add(Standard, "ungated/varlen-long-pool-padding", BF16, &pool);
    for (name, rate) in [
        ("slow", (1e-5, 1e-3)),
        ("none", (0.0, 0.0)),
        ("fast", (50.0, 200.0)),
        ("mixed", (1e-4, 20.0)),
    ] {
        let call = base(1500, 2, 128).initial().with(|of| of.rate = rate);
        list.add(Standard, &format!("ungated/decay-{name}-t1500"), BF16, &call);
    }
    let parts = Property::Continuation(vec![128, 100, 72, 64]);
    let call = base(364, 4, 128).batch(2).initial();
    list.property(Standard, "ungated/continuation-128-100-72-64", BF16, parts, &call);
    list.property(Standard, "ungated/same-bits", BF16, Property::SameBits, &call);
}

/// One token of one sequence, the call of persistent kernels: fewer rows than warps, and several iterations of all
/// warps.
fn persistent_kernels(list: &mut List) {
    let of = |heads| Ssd::new(1, heads, 64, 128);
    list.add(Quick, "phase/h4-g2-pool", BF16, &of(4).groups(2).every_part().pool(3));
    list.add(Quick, "phase/h3-p20-plain", BF16, &Ssd::new(1, 3, 20, 128).initial());
    list.add(Standard, "phase/h64-pool", BF16, &of(64).every_part().pool(2));
    let skip = of(96).groups(8).every_part().initial().with(|of| of.skip = Some(true));
    list.add(Standard, "phase/h96-skip-per-channel", BF16, &skip);
    let given = of(8).every_part().pool(2).set("dt_softplus", false).set("dt_min", 0.01);
    list.add(Standard, "phase/h8-dt-clamped", BF16, &given.set("dt_max", 0.5));
}

/// bfloat16 states with the models' sizes and with sizes that no vector divides.
fn bf16_states(list: &mut List) {
    let base = |tokens, heads| Ssd::new(tokens, heads, 64, 128).every_part().narrow();
    let step = base(1, 8).batch(6).groups(2).pool(9).padded();
    list.add(Quick, "bf16-state/update-pool-padding", HALVES, &step);
    list.add(Quick, "bf16-state/t130-g2", HALVES, &base(130, 4).groups(2).initial());
    list.add(Standard, "bf16-state/t130-no-state", HALVES, &base(130, 4));
    // Long and few: segments' states stay float32, the initial and the final ones do not.
    list.add(Standard, "bf16-state/t2000-h2", BF16, &base(2000, 2).initial());
    let varlen = base(0, 4).packed(&[63, 0, 1, 64, 65, 0, 129, 200]);
    list.add(Quick, "bf16-state/varlen-pool-padding", BF16, &varlen.clone().pool(11).padded());
    list.add(Standard, "bf16-state/varlen-no-state", BF16, &varlen);
    for state in [20, 33, 34, 256] {
        let odd = Ssd::new(3, 3, 20, state).batch(2).every_part().narrow().pool(4);
        list.add(Standard, &format!("bf16-state/p20-n{state}"), HALVES, &odd);
    }
    let parts = Property::Continuation(vec![128, 100, 72]);
    list.property(Standard, "bf16-state/continuation-128-100-72", BF16, parts, &base(300, 2));
}

fn edges(list: &mut List) {
    let base = |tokens| Ssd::new(tokens, 4, 32, 32).groups(2).every_part().initial();
    list.add(Quick, "edge/t1", ALL, &base(1));
    for tokens in [2, 15, 63, 64, 65, 129] {
        let tier = if tokens == 65 { Quick } else { Standard };
        list.add(tier, &format!("edge/t{tokens}"), F32_BF16, &base(tokens));
    }
    list.add(Quick, "edge/no-skip-no-gate", F32_BF16, &Ssd::new(70, 2, 32, 32));
    list.add(Quick, "edge/skip-per-channel", F32, &base(40).with(|of| of.skip = Some(true)));
    list.add(Quick, "edge/p20-n33", ALL, &Ssd::new(70, 3, 20, 33).every_part().initial());
    list.add(Standard, "edge/p1-n1", F32, &Ssd::new(70, 3, 1, 1).every_part().initial());
    list.add(Standard, "edge/p80-n256", F32_BF16, &Ssd::new(70, 2, 80, 256).every_part());
    // Step sizes: clamped at both ends, beyond the softplus's linear range at 20, without softplus.
    let clamp = |low, high| base(80).set("dt_min", low).set("dt_max", high);
    list.add(Quick, "edge/dt-clamped", F32_BF16, &clamp(0.3, 0.8));
    list.add(Standard, "edge/dt-all-at-one-end", F32, &clamp(0.5, 0.5));
    list.add(Quick, "edge/dt-over-20", F32_BF16, &base(60).with(|of| of.dt = (22.0, 3.0)));
    list.add(Standard, "edge/dt-far-below-zero", F32, &base(60).with(|of| of.dt = (-15.0, 1.0)));
    let given =
        base(60).with(|of| of.dt = (0.5, 0.1)).set("dt_softplus", false).set("dt_min", 0.01);
    list.add(Quick, "edge/dt-without-softplus", F32, &given);
    // Almost no decay, and none: the first token's state remains until the end. And immediate decay.
    list.add(Quick, "edge/slow-decay", ALL, &base(200).with(|of| of.rate = (1e-5, 1e-4)));
    list.add(Quick, "edge/no-decay", F32, &base(130).with(|of| of.rate = (0.0, 0.0)));
    list.add(Quick, "edge/fast-decay", F32_BF16, &base(130).with(|of| of.rate = (50.0, 200.0)));
    list.add(Standard, "edge/slow-decay-t1500", F32, &base(1500).with(|of| of.rate = (1e-5, 1e-4)));
    list.add(Standard, "edge/mixed-decay", F16, &base(150).with(|of| of.rate = (1e-4, 20.0)));
    list.add(Standard, "edge/head-each-group", F32_BF16, &base(70).groups(4));
    let lengths = [5, 0, 1, 64, 0, 133];
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &base(0).packed(&lengths));
    let pool = base(0).packed(&lengths).pool(8).padded();
    list.add(Quick, "edge/varlen-pool-padding", F32_BF16, &pool);
    list.add(Standard, "edge/no-tokens", F32, &base(0).batch(2));
    list.add(Standard, "edge/no-batch", F32, &base(5).batch(0));
}

/// Gradients: mamba's forward suite, the models' sizes, packed sequences, and extreme decays and step sizes.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Recurrent<Ssd>| Backward { op: OP.op, call };
    let base = |tokens| Ssd::new(tokens, 4, 32, 32).groups(2).every_part().initial();
    for (tokens, tier) in
        [(1, Quick), (2, Standard), (63, Standard), (64, Quick), (65, Standard), (129, Quick)]
    {
        list.add(tier, &format!("edge/t{tokens}"), ALL, &of(base(tokens)));
    }
    let model = Ssd::new(130, 2, 64, 128).every_part().initial();
    list.add(Quick, "mamba/t130-h2", ALL, &of(model));
    list.add(Standard, "mamba/t200-h8-g1", F32_BF16, &of(Ssd::new(200, 8, 64, 128).every_part()));
    list.add(Quick, "edge/plain", F32_BF16, &of(Ssd::new(70, 2, 32, 32)));
    list.add(Quick, "edge/skip-per-channel", F32, &of(base(40).with(|of| of.skip = Some(true))));
    list.add(Quick, "edge/p20-n33", F32_BF16, &of(Ssd::new(70, 3, 20, 33).every_part().initial()));
    list.add(Standard, "edge/p1-n1", F32, &of(Ssd::new(70, 3, 1, 1).every_part().initial()));
    list.add(Standard, "edge/head-each-group", F32_BF16, &of(base(70).groups(4)));
    let clamp = |low, high| base(80).set("dt_min", low).set("dt_max", high);
    list.add(Quick, "edge/dt-clamped", F32_BF16, &of(clamp(0.3, 0.8)));
    list.add(Quick, "edge/dt-over-20", F32_BF16, &of(base(60).with(|of| of.dt = (22.0, 3.0))));
    let low = base(60).with(|of| of.dt = (-15.0, 1.0));
    list.add(Standard, "edge/dt-far-below-zero", F32, &of(low));
    let given =
        base(60).with(|of| of.dt = (0.5, 0.1)).set("dt_softplus", false).set("dt_min", 0.01);
    list.add(Quick, "edge/dt-without-softplus", F32, &of(given));
    for (name, rate) in [
        ("slow", (1e-5, 1e-4)),
        ("none", (0.0, 0.0)),
        ("fast", (50.0, 200.0)),
        ("mixed", (1e-4, 20.0)),
    ] {
        let call = base(150).with(|of| of.rate = rate);
        list.add(Quick, &format!("edge/decay-{name}"), F32_BF16, &of(call));
    }
    let lengths = [5, 0, 1, 64, 0, 133];
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &of(base(0).packed(&lengths)));
    list.add(Standard, "edge/no-tokens", F32, &of(base(0).batch(2)));
    list.add(Standard, "edge/no-batch", F32, &of(base(5).batch(0)));
    ungated_gradients(&mut list);
    let call = of(Ssd::new(150, 8, 16, 24).batch(2).every_part().initial());
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// Gradients of the models' sizes without a gate, which MMA kernels compute in chunks of 64 tokens.
fn ungated_gradients(list: &mut List) {
    let of = |call: Recurrent<Ssd>| Backward { op: OP.op, call };
    let base =
        |tokens, heads| Ssd::new(tokens, heads, 64, 128).every_part().with(|of| of.gate = false);
    for tokens in [1, 2, 17, 63, 64, 65, 129] {
        let tier = if tokens == 65 { Quick } else { Standard };
        let call = base(tokens, 8).groups(2).batch(2).initial();
        list.add(tier, &format!("ungated/t{tokens}-h8-g2"), HALVES, &of(call));
    }
    list.add(Standard, "ungated/t1000-h4-g4", HALVES, &of(base(1000, 4).groups(4).initial()));
    // Few chunks and many heads of a group: its heads are divided among blocks, also unevenly.
    list.add(Standard, "ungated/t130-h16-g1", HALVES, &of(base(130, 16).initial()));
    list.add(Standard, "ungated/t65-h9-g1", HALVES, &of(base(65, 9).initial()));
    list.add(Standard, "ungated/no-state", HALVES, &of(base(200, 8)));
    list.add(Standard, "ungated/plain", HALVES, &of(Ssd::new(200, 8, 64, 128).groups(2)));
    let without_bias = base(100, 8).initial().with(|of| of.bias = false);
    list.add(Standard, "ungated/no-bias", HALVES, &of(without_bias));
    let per_channel = base(130, 8).initial().with(|of| of.skip = Some(true));
    list.add(Standard, "ungated/skip-per-channel", HALVES, &of(per_channel));
    list.add(Standard, "ungated/bf16-state", HALVES, &of(base(130, 8).initial().narrow()));
    let clamped = base(130, 8).initial().set("dt_min", 0.3).set("dt_max", 0.8);
    list.add(Standard, "ungated/dt-clamped", HALVES, &of(clamped));
    // Ends before, at and after a chunk's end, sequences of zero and one token, and unused slots.
    let varlen = base(0, 8).groups(2).packed(&[63, 0, 1, 64, 65, 0, 129, 70]);
    list.add(Quick, "ungated/varlen", HALVES, &of(varlen.clone().initial()));
    list.add(Standard, "ungated/varlen-no-state", HALVES, &of(varlen));
    for (name, rate) in [
        ("slow", (1e-5, 1e-3)),
        ("none", (0.0, 0.0)),
        ("fast", (50.0, 200.0)),
        ("mixed", (1e-4, 20.0)),
    ] {
        let call = base(150, 16).groups(2).initial().with(|of| of.rate = rate);
        list.add(Standard, &format!("ungated/decay-{name}"), HALVES, &of(call));
    }
    let call = of(base(150, 8).batch(2).initial());
    list.property(Standard, "ungated/same-bits", BF16, Property::SameBits, &call);
}

/// A call of ssd.
#[derive(Clone)]
struct Ssd {
    heads: usize,
    groups: usize,
    head_dim: usize,
    state_dim: usize,
    /// D, and whether it has one weight per channel.
    skip: Option<bool>,
    gate: bool,
    bias: bool,
    /// Mean and deviation of the raw step sizes.
    dt: (f64, f64),
    /// Range of -A.
    rate: (f64, f64),
    /// Whether states are bfloat16.
    narrow: bool,
}

impl Ssd {
    fn new(tokens: usize, heads: usize, head_dim: usize, state_dim: usize) -> Recurrent<Self> {
        let of = Self {
            heads,
            groups: 1,
            head_dim,
            state_dim,
            skip: None,
            gate: false,
            bias: false,
            dt: (-1.0, 1.0),
            rate: (0.1, 2.0),
            narrow: false,
        };
        Recurrent::new(tokens, of)
    }
}

impl Recurrent<Ssd> {
    fn groups(self, groups: usize) -> Self {
        self.with(|of| of.groups = groups)
    }

    /// With bfloat16 states.
    fn narrow(self) -> Self {
        self.with(|of| of.narrow = true).set("state_dtype", "bf16")
    }

    /// With D, z and dt_bias.
    fn every_part(self) -> Self {
        self.with(|of| (of.skip, of.gate, of.bias) = (Some(false), true, true))
    }
}

impl Recurrence for Ssd {
    fn draw(&self, of: &Sequences, draw: &mut TensorRng, dtype: DType) -> TensorMap {
        let Self { heads, head_dim, state_dim, .. } = *self;
        let state_dtype = if self.narrow { DType::Bf16 } else { DType::F32 };
        let values = of.shape(&[heads, head_dim]);
        let projection = of.shape(&[self.groups, state_dim]);
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        put("x", draw.normals(&values, dtype, 1.0));
        put("B", draw.normals(&projection, dtype, 1.0));
        put("C", draw.normals(&projection, dtype, 1.0));
        let (mean, deviation) = self.dt;
        put("dt", draw.tensor(&of.shape(&[heads]), dtype, |draw| mean + deviation * draw.normal()));
        put("A", draw.uniforms(&[heads], DType::F32, -self.rate.1, -self.rate.0));
        if let Some(per_channel) = self.skip {
            let shape = if per_channel { vec![heads, head_dim] } else { vec![heads] };
            put("D", draw.normals(&shape, DType::F32, 1.0));
        }
        if self.gate {
            put("z", draw.normals(&values, dtype, 1.0));
        }
        if self.bias {
            put("dt_bias", draw.normals(&[heads], DType::F32, 1.0));
        }
        inputs.extend(of.states(draw, &[heads, head_dim, state_dim], state_dtype, 1.0));
        inputs
    }
}
