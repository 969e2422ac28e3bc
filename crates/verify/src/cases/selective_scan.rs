use super::OpCases;
use super::list::{ALL, BF16, F32, F32_BF16, List, Recurrence, Recurrent, Sequences};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, Shared, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "selective_scan", cases, layout: LAYOUT };

const LAYOUT: Layout = Layout {
    heads: ("u", 2),
    shared: ("B", 2),
    whole_groups: false,
    tensors: &[
        ("u", &[Batch, Tokens, Head]),
        ("delta", &[Batch, Tokens, Head]),
        ("A", &[Head, Whole]),
        ("B", &[Batch, Tokens, Shared, Whole]),
        ("C", &[Batch, Tokens, Shared, Whole]),
        ("D", &[Head]),
        ("z", &[Batch, Tokens, Head]),
        ("delta_bias", &[Head]),
        ("initial_state", &[Batch, Head, Whole]),
        ("o", &[Batch, Tokens, Head]),
        ("final_state", &[Batch, Head, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    mamba(&mut list);
    edges(&mut list);
    let call = Scan::new(200, 96, 16).batch(2).groups(2).every_part().initial();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    let parts = Property::Continuation(vec![90, 33, 77]);
    list.property(Quick, "property/continuation-90-33-77", F32_BF16, parts, &call);
    let parts = Property::Continuation(vec![128, 9, 163]);
    let plain = Scan::new(300, 40, 17);
    list.property(Standard, "property/continuation-128-9-163", ALL, parts, &plain);
    list.done()
}

/// Shapes of mamba_ssm's own tests, and of the models.
fn mamba(list: &mut List) {
    for state in [16, 32, 64] {
        let update = Scan::new(1, 2048, state).batch(2).every_part().pool(5);
        let (tier, dtypes) = if state == 16 { (Quick, ALL) } else { (Standard, F32_BF16) };
        list.add(tier, &format!("mamba/update-dim2048-n{state}"), dtypes, &update);
    }
    for tokens in [8, 128, 512] {
        let scan = Scan::new(tokens, 24, 8).batch(2);
        let tier = if tokens == 128 { Quick } else { Standard };
        list.add(tier, &format!("mamba/scan-dim24-t{tokens}"), F32_BF16, &scan);
        let scan = scan.groups(2).every_part().initial();
        list.add(Standard, &format!("mamba/scan-dim24-t{tokens}-g2"), ALL, &scan);
    }
    let model = |tokens, channels| Scan::new(tokens, channels, 16).every_part();
    list.add(Standard, "mamba-130m/t300", F32_BF16, &model(300, 1536).initial());
    list.add(Full, "jamba/t1000", F32_BF16, &model(1000, 8192).initial());
    let lengths: Vec<usize> = (0..40).map(|index| index * 7 % 19).collect();
    let varlen = Scan::new(0, 64, 16).packed(&lengths).every_part();
    list.add(Quick, "mamba/varlen-40", F32_BF16, &varlen.clone().initial());
    list.add(Standard, "mamba/varlen-40-no-state", F32, &varlen);
}

fn edges(list: &mut List) {
    let base = |tokens| Scan::new(tokens, 48, 16).groups(2).every_part().initial();
    list.add(Quick, "edge/t1", ALL, &base(1));
    for tokens in [2, 15, 64, 65] {
        let tier = if tokens == 65 { Quick } else { Standard };
        list.add(tier, &format!("edge/t{tokens}"), F32_BF16, &base(tokens));
    }
    list.add(Quick, "edge/no-skip-no-gate", F32_BF16, &Scan::new(70, 32, 16));
    let sized = |channels, state| Scan::new(70, channels, state).every_part().initial();
    list.add(Quick, "edge/e33-n17", ALL, &sized(33, 17));
    list.add(Quick, "edge/e1-n1", F32, &sized(1, 1));
    list.add(Quick, "edge/e7-n256", F32_BF16, &sized(7, 256));
    list.add(Standard, "edge/e130-n1", F32_BF16, &sized(130, 1));
    list.add(Standard, "edge/channel-each-group", F32_BF16, &sized(20, 16).groups(20));
    // Step sizes: beyond the softplus's linear range at 20, close to zero, and without softplus, some of them below 0.
    list.add(Quick, "edge/delta-over-20", F32_BF16, &base(60).with(|of| of.delta = (22.0, 3.0)));
    list.add(
        Standard,
        "edge/delta-far-below-zero",
        F32,
        &base(60).with(|of| of.delta = (-15.0, 1.0)),
    );
    let given = base(60).with(|of| of.delta = (0.5, 0.1)).set("delta_softplus", false);
    list.add(Quick, "edge/delta-without-softplus", F32, &given);
    let grows = base(20).with(|of| (of.delta, of.rate) = ((0.0, 0.3), (0.0, 0.1)));
    list.add(Standard, "edge/delta-below-zero", F32, &grows.set("delta_softplus", false));
    // Almost no decay, and none: the first token's state remains until the end. And immediate decay.
    list.add(Quick, "edge/slow-decay", ALL, &base(200).with(|of| of.rate = (1e-5, 1e-4)));
    list.add(Quick, "edge/no-decay", F32, &base(130).with(|of| of.rate = (0.0, 0.0)));
    list.add(Quick, "edge/fast-decay", F32_BF16, &base(130).with(|of| of.rate = (50.0, 200.0)));
    list.add(Standard, "edge/slow-decay-t4096", ALL, &base(4096).with(|of| of.rate = (1e-5, 1e-4)));
    list.add(Standard, "edge/mixed-decay", BF16, &base(150).with(|of| of.rate = (1e-4, 20.0)));
    let lengths = [5, 0, 1, 64, 0, 133];
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &base(0).packed(&lengths));
    let pool = base(0).packed(&lengths).pool(8).padded();
    list.add(Quick, "edge/varlen-pool-padding", F32_BF16, &pool);
    let steps = base(1).batch(7).pool(11).padded();
    list.add(Quick, "edge/steps-pool-padding", F32_BF16, &steps);
    list.add(Standard, "edge/no-tokens", F32, &base(0).batch(2));
    list.add(Standard, "edge/no-batch", F32, &base(5).batch(0));
}

/// A call of selective_scan.
#[derive(Clone)]
struct Scan {
    channels: usize,
    groups: usize,
    state_dim: usize,
    /// Whether D, z and delta_bias are given.
    every_part: bool,
    /// Mean and deviation of the raw step sizes.
    delta: (f64, f64),
    /// Range of -A.
    rate: (f64, f64),
}

impl Scan {
    fn new(tokens: usize, channels: usize, state_dim: usize) -> Recurrent<Self> {
        let (delta, rate) = ((-1.0, 1.0), (0.1, 2.0));
        let of = Self { channels, groups: 1, state_dim, every_part: false, delta, rate };
        Recurrent::new(tokens, of)
    }
}

impl Recurrent<Scan> {
    fn groups(self, groups: usize) -> Self {
        self.with(|of| of.groups = groups)
    }

    fn every_part(self) -> Self {
        self.with(|of| of.every_part = true)
    }
}

impl Recurrence for Scan {
    fn draw(&self, of: &Sequences, draw: &mut TensorRng, dtype: DType) -> TensorMap {
        let by_channel = of.shape(&[self.channels]);
        let projection = of.shape(&[self.groups, self.state_dim]);
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        put("u", draw.normals(&by_channel, dtype, 1.0));
        put("B", draw.normals(&projection, dtype, 1.0));
        put("C", draw.normals(&projection, dtype, 1.0));
        let (mean, deviation) = self.delta;
        put("delta", draw.tensor(&by_channel, dtype, |draw| mean + deviation * draw.normal()));
        let state = [self.channels, self.state_dim];
        put("A", draw.uniforms(&state, DType::F32, -self.rate.1, -self.rate.0));
        if self.every_part {
            put("D", draw.normals(&[self.channels], DType::F32, 1.0));
            put("z", draw.normals(&by_channel, dtype, 1.0));
            put("delta_bias", draw.normals(&[self.channels], DType::F32, 0.3));
        }
        inputs.extend(of.states(draw, &state, DType::F32, 1.0));
        inputs
    }
}
