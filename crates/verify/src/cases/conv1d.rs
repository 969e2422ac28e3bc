use super::OpCases;
use super::list::{
    ALL, Backward, F32, F32_BF16, HALVES, List, Recurrence, Recurrent, Sequences, integers,
};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{Batch, Head, Tokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::{DType, Settings, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "conv1d", cases, layout: LAYOUT };

pub(super) const BACKWARD: OpCases =
    OpCases { op: "conv1d_backward", cases: backward, layout: Layout::WHOLE };

const LAYOUT: Layout = Layout {
    heads: ("x", 2),
    shared: ("x", 2),
    whole_groups: false,
    tensors: &[
        ("x", &[Batch, Tokens, Head]),
        ("weight", &[Head, Whole]),
        ("bias", &[Head]),
        ("initial_state", &[Batch, Head, Whole]),
        ("o", &[Batch, Tokens, Head]),
        ("final_state", &[Batch, Head, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    forward(&mut list);
    update(&mut list);
    edges(&mut list);
    for width in [2, 4] {
        let call = Conv::new(100, 70, width).batch(2).silu().holding(width - 1);
        let parts = Property::Continuation(vec![50, 1, 2, 47]);
        let name = format!("property/continuation-50-1-2-47-w{width}");
        list.property(Quick, &name, F32_BF16, parts, &call);
    }
    let call = Conv::new(300, 200, 4).batch(2).silu().holding(5);
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// causal-conv1d's forward suite: widths 2 to 4, T 1 to 4096, 64 and 4128 channels, with and without SiLU.
fn forward(list: &mut List) {
    for width in [2, 3, 4] {
        for (tokens, tier) in [
            (1, Quick),
            (2, Standard),
            (8, Standard),
            (129, Quick),
            (151, Standard),
            (1134, Standard),
            (4096, Standard),
        ] {
            let plain = Conv::new(tokens, 64, width).batch(2);
            list.add(tier, &format!("causal-conv1d/w{width}-t{tokens}-c64"), ALL, &plain);
            let silu = Conv::new(tokens, 64, width).silu().holding(width - 1);
            let name = format!("causal-conv1d/w{width}-t{tokens}-c64-silu-state");
            list.add(Standard.max(tier), &name, F32_BF16, &silu);
        }
        let wide = |tokens| Conv::new(tokens, 4128, width).silu();
        list.add(Standard, &format!("causal-conv1d/w{width}-t151-c4128"), ALL, &wide(151));
        list.add(Full, &format!("causal-conv1d/w{width}-t1134-c4128"), F32_BF16, &wide(1134));
        let lengths = [3, 129, 0, 1, 151, 2];
        let varlen = Conv::new(0, 64, width).packed(&lengths).silu();
        list.add(Quick, &format!("causal-conv1d/varlen-w{width}"), F32_BF16, &varlen);
        let pool = varlen.pool(9).holding(width - 1).padded();
        list.add(Quick, &format!("causal-conv1d/varlen-padding-w{width}"), ALL, &pool);
        let first = Conv::new(151, 64, width).batch(2).silu().with(|of| of.channel_first = true);
        list.add(Standard, &format!("causal-conv1d/channel-first-w{width}"), ALL, &first);
    }
}

/// causal-conv1d's update suite: one token, states longer than needed, state indices with -1 padding, ring buffers.
fn update(list: &mut List) {
    for width in [2, 3, 4] {
        let update = Conv::new(1, 2064, width).batch(3).silu();
        let pool = update.clone().pool(7).holding(width - 1).padded();
        list.add(Quick, &format!("causal-conv1d/update-w{width}-padding"), F32_BF16, &pool);
        let ring = update.clone().holding(width + 2).with(|of| of.ring = true);
        list.add(Quick, &format!("causal-conv1d/update-w{width}-ring"), F32, &ring);
        let long = update.holding(width + 3);
        list.add(Standard, &format!("causal-conv1d/update-w{width}-long-state"), ALL, &long);
    }
    // States as in transformers: W tokens, in the model's type.
    for (name, batch, channels) in [("", 3, 2064), ("-b130", 130, 96)] {
        let update = Conv::new(1, channels, 4).batch(batch).silu().holding(4);
        let narrow = update.with(|of| of.narrow_states = true);
        list.add(Quick, &format!("transformers/update{name}"), HALVES, &narrow);
    }
    let speculative =
        Conv::new(5, 100, 4).batch(3).silu().pool(8).holding(7).with(|of| of.ring = true);
    list.add(Standard, "causal-conv1d/update-t5-ring-pool", ALL, &speculative);
}

fn edges(list: &mut List) {
    let base = |tokens| Conv::new(tokens, 33, 4).silu().holding(3);
    list.add(Quick, "edge/c33-t70", ALL, &base(70));
    // Fewer tokens than taps: part of the old state remains.
    for tokens in [1, 2, 3] {
        list.add(Quick, &format!("edge/t{tokens}-w4"), F32_BF16, &base(tokens));
    }
    list.add(Quick, "edge/long-state-t2", F32, &Conv::new(2, 40, 4).holding(8));
    list.add(Standard, "edge/c1", F32, &Conv::new(50, 1, 3).silu());
    list.add(Quick, "edge/no-bias", F32, &base(40).with(|of| of.bias = false));
    // Only the sum over taps, without bias and activation.
    list.add(Quick, "edge/plain", ALL, &Conv::new(70, 33, 4).with(|of| of.bias = false));
    list.add(Quick, "edge/large-values", F32_BF16, &base(40).with(|of| of.scale = 40.0));
    list.add(Quick, "edge/varlen-empty-sequence", ALL, &base(0).packed(&[0, 2, 0, 30, 1]));
    list.add(Standard, "edge/no-tokens", F32, &base(0).batch(2));
    list.add(Standard, "edge/no-batch", F32, &base(4).batch(0));
}

/// Gradients: causal-conv1d's forward suite, packed sequences with and without states, sums over many tokens, and the edge cases.
fn backward() -> Vec<Case> {
    let mut list = List::new(BACKWARD.op);
    let of = |call: Recurrent<Conv>| Backward { op: OP.op, call };
    for width in [2, 3, 4] {
        for (tokens, tier) in [(1, Quick), (2, Quick), (129, Quick), (1134, Standard)] {
            let name = |what: &str| format!("causal-conv1d/w{width}-t{tokens}-c70{what}");
            let plain = Conv::new(tokens, 70, width).batch(2);
            list.add(tier, &name(""), F32_BF16, &of(plain.clone()));
            let silu = plain.silu();
            let first = silu.clone().with(|of| of.channel_first = true);
            list.add(tier, &name("-silu-channel-first"), F32_BF16, &of(first));
            list.add(tier, &name("-silu-state"), ALL, &of(silu.holding(width - 1)));
        }
        let varlen = Conv::new(0, 64, width).packed(&[3, 129, 0, 1, 300, 2]).silu();
        list.add(Quick, &format!("causal-conv1d/varlen-w{width}"), ALL, &of(varlen.clone()));
        let name = format!("causal-conv1d/varlen-state-w{width}");
        list.add(Quick, &name, F32_BF16, &of(varlen.holding(width - 1)));
        let wide = Conv::new(151, 4128, width).silu();
        list.add(Standard, &format!("causal-conv1d/w{width}-t151-c4128"), F32_BF16, &of(wide));
    }
    let base = |tokens| Conv::new(tokens, 33, 4).silu();
    list.add(Quick, "edge/long-state-t2", F32, &of(base(2).holding(8)));
    list.add(Quick, "edge/long-state-t300", F32, &of(base(300).holding(8)));
    list.add(Quick, "edge/no-bias", F32_BF16, &of(base(40).with(|of| of.bias = false)));
    let large = base(40).with(|of| of.scale = 40.0);
    list.add(Quick, "edge/large-values", F32_BF16, &of(large));
    list.add(Quick, "edge/c1", F32, &of(Conv::new(50, 1, 3).silu()));
    list.add(Quick, "edge/no-tokens", F32, &of(base(0).batch(2).holding(3)));
    list.add(Quick, "edge/no-batch", F32, &of(base(4).batch(0)));
    let call = of(Conv::new(600, 200, 4).batch(2).silu().holding(5));
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// A call of conv1d.
#[derive(Clone)]
struct Conv {
    channels: usize,
    width: usize,
    bias: bool,
    /// Tokens per state.
    state: usize,
    /// Whether states are in x's type.
    narrow_states: bool,
    ring: bool,
    channel_first: bool,
    /// Deviation of x.
    scale: f64,
}

impl Conv {
    fn new(tokens: usize, channels: usize, width: usize) -> Recurrent<Self> {
        let of = Self {
            channels,
            width,
            bias: true,
            state: 0,
            narrow_states: false,
            ring: false,
            channel_first: false,
            scale: 1.0,
        };
        Recurrent::new(tokens, of)
    }
}

impl Recurrent<Conv> {
    fn silu(self) -> Self {
        self.set("activation", "silu")
    }

    /// Sequences start from states of this many tokens.
    fn holding(self, tokens: usize) -> Self {
        self.initial().with(|of| of.state = tokens)
    }
}

impl Recurrence for Conv {
    fn draw(&self, of: &Sequences, draw: &mut TensorRng, dtype: DType) -> TensorMap {
        let channels = self.channels;
        let shape = match self.channel_first && !of.are_packed() {
            true => vec![of.batch, channels, of.tokens],
            false => of.shape(&[channels]),
        };
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| inputs.insert(name.to_owned(), tensor);
        put("x", draw.normals(&shape, dtype, self.scale));
        put("weight", draw.normals(&[channels, self.width], dtype, 0.5));
        if self.bias {
            put("bias", draw.normals(&[channels], dtype, 0.5));
        }
        let kept = if self.narrow_states { dtype } else { DType::F32 };
        inputs.extend(of.states(draw, &[channels, self.state], kept, self.scale));
        if self.ring {
            let seen: Vec<i32> = (0..of.batch).map(|_| draw.below(50) as i32).collect();
            inputs.insert("state_positions".to_owned(), integers(&seen));
        }
        inputs
    }

    fn set(&self, settings: &mut Settings) {
        if self.channel_first {
            settings.set("layout", "channel_first");
        }
    }
}
