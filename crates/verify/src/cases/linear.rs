mod integers;

use super::OpCases;
use super::list::{ALL, BF16, Call, F32, F32_BF16, HALVES, List};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{QueryTokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::linear::{SCALED, Scales};
use ops::{DType, E4m3, Settings, Tensor, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "linear", cases, layout: LAYOUT };

/// Only rows of x are split: the widths of the outputs are settings, and swiglu pairs columns that are far apart.
const LAYOUT: Layout = Layout {
    heads: ("x", 0),
    shared: ("x", 0),
    whole_groups: false,
    tensors: &[
        ("x", &[QueryTokens, Whole]),
        ("w", &[Whole, Whole]),
        ("w_scale", &[Whole, Whole]),
        ("w_zero", &[Whole, Whole]),
        ("w_offset", &[Whole, Whole]),
        ("x_order", &[Whole]),
        ("norm", &[Whole]),
        ("bias", &[Whole]),
        ("residual", &[QueryTokens, Whole]),
        ("o", &[QueryTokens, Whole]),
        ("o1", &[QueryTokens, Whole]),
        ("o2", &[QueryTokens, Whole]),
        ("o3", &[QueryTokens, Whole]),
        ("o4", &[QueryTokens, Whole]),
        ("o5", &[QueryTokens, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    layers(&mut list);
    models(&mut list);
    prefill(&mut list);
    convolved(&mut list);
    narrow(&mut list);
    phases(&mut list);
    integers::list(&mut list);
    edges(&mut list);
    let call = Projection::new(33, 264, 200).norm(1).swiglu().residual();
    list.property(Quick, "property/same-bits", F32_BF16, Property::SameBits, &call);
    list.done()
}

/// Every projection of a Granite or Kimi layer with reduced sizes: prologues and epilogues do not depend on them.
fn layers(list: &mut List) {
    for tokens in [1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65] {
        let tier = if [1, 8, 33].contains(&tokens) { Quick } else { Standard };
        let name = |layer: &str| format!("granite/{layer}-t{tokens}");
        let in_proj = Projection::new(tokens, 256, 520).norm(1).wide().split("256,256,8");
        list.add(tier, &name("in-proj"), ALL, &in_proj);
        let out_proj = Projection::new(tokens, 512, 256).residual().scale(0.22);
        list.add(tier, &name("out-proj"), ALL, &out_proj);
        list.add(
            tier,
            &name("gate-up"),
            ALL,
            &Projection::new(tokens, 256, 640).norm(1).wide().swiglu(),
        );
        let up = Projection::new(tokens, 256, 648).norm(1).wide().squared();
        list.add(tier, &format!("nemotron/up-t{tokens}"), ALL, &up);
        let down = Projection::new(tokens, 320, 256).residual().scale(0.22);
        list.add(tier, &name("down"), F32_BF16, &down);
        let head = Projection::new(tokens, 256, 1000).norm(1).wide().scale(0.125).out("f32");
        list.add(tier, &name("head"), F32_BF16, &head);
    }
    for tokens in [1, 21, 130] {
        let kda = Projection::new(tokens, 288, 800).norm(1).wide().split("256,256,256,16,8,8");
        list.add(Standard, &format!("kimi/kda-projections-t{tokens}"), F32_BF16, &kda);
        let mla = Projection::new(tokens, 288, 264).split("200,64");
        list.add(Standard, &format!("kimi/kv-a-t{tokens}"), F32_BF16, &mla);
    }
    let norm = Projection::new(5, 512, 264).norm(2);
    list.add(Quick, "granite/two-groups", ALL, &norm);
    list.add(Standard, "granite/two-groups-t65", F32_BF16, &Projection { tokens: 65, ..norm });
}

/// The depths of Granite 4.0-H micro and tiny and of Kimi-Linear, with an eighth of the weights' rows: generating and
/// reading all of them would take minutes, and `bench` compares its calls of whole shapes with the reference.
fn models(list: &mut List) {
    for tokens in [1, 8, 33, 130] {
        let name = |layer: &str| format!("{layer}-t{tokens}");
        let in_proj = Projection::new(tokens, 2048, 1064).norm(1).wide().split("512,544,8");
        list.add(Full, &name("h-micro/in-proj"), BF16, &in_proj);
        let out_proj = Projection::new(tokens, 4096, 256).residual().scale(0.22);
        list.add(Full, &name("h-micro/out-proj"), BF16, &out_proj);
        let gate_up = Projection::new(tokens, 2048, 2048).norm(1).wide().swiglu();
        list.add(Full, &name("h-micro/gate-up"), BF16, &gate_up);
        let down = Projection::new(tokens, 8192, 256).residual().scale(0.22);
        list.add(Full, &name("h-micro/down"), BF16, &down);
        let tiny = Projection::new(tokens, 1536, 800).norm(1).wide().split("384,400,16");
        list.add(Full, &name("h-tiny/in-proj"), BF16, &tiny);
        let kda = Projection::new(tokens, 2304, 1576).norm(1).wide();
        list.add(
            Full,
            &name("kimi-linear/kda-projections"),
            BF16,
            &kda.split("512,512,512,16,16,8"),
        );
        let dense = Projection::new(tokens, 2304, 2304).norm(1).wide().swiglu();
        list.add(Full, &name("kimi-linear/dense-gate-up"), BF16, &dense);
    }
}

/// Enough tiles that each block of a persistent kernel has several, and that the last ones are partial.
fn prefill(list: &mut List) {
    let split = Projection::new(2100, 72, 4360).split("4000,352,8");
    list.add(Full, "prefill/split", HALVES, &split);
    let residual = Projection::new(2100, 72, 4360).residual().scale(0.22);
    list.add(Full, "prefill/residual", BF16, &residual);
    list.add(Full, "prefill/swiglu", BF16, &Projection::new(2100, 72, 8720).swiglu());
    list.add(Full, "prefill/squared", BF16, &Projection::new(2100, 72, 4360).squared());
    // A depth that the blocks of a cluster share (split-K).
    list.add(Full, "prefill/few-tiles", HALVES, &Projection::new(300, 2056, 520).residual());
}

/// Decoding tokens whose channels are convolved with earlier ones.
fn convolved(list: &mut List) {
    for tokens in [1, 2, 8, 9, 16, 32, 33] {
        let tier = if [1, 9].contains(&tokens) { Quick } else { Standard };
        let call = Projection::new(tokens, 256, 520).norm(1).wide().split("256,256,8");
        let call = call.convolved(256, 256, 4).set("conv_activation", "silu");
        list.add(tier, &format!("conv/in-proj-t{tokens}"), ALL, &call);
    }
    // Channels that start and end inside a tile, of every width, without an activation, some rows padding.
    for width in [2, 3, 4] {
        let call = Projection::new(5, 72, 328).bias().scale(0.5).convolved(13, 301, width).padded();
        list.add(Quick, &format!("conv/padded-w{width}"), ALL, &call);
    }
    let whole = Projection { stored: true, ..Projection::new(3, 64, 40).convolved(0, 40, 4) };
    list.add(Standard, "conv/all-columns", ALL, &whole.out("f32"));
    let none = Projection::new(0, 64, 48).convolved(8, 16, 4);
    list.add(Standard, "conv/no-tokens", F32_BF16, &none);
    let micro = Projection::new(1, 2048, 1064).norm(1).wide().convolved(512, 544, 4);
    list.add(Full, "h-micro/in-proj-conv", BF16, &micro.set("conv_activation", "silu"));
}

/// e4m3 weights with scales per row and per group: every projection of a layer, and depths that end inside a group.
fn narrow(list: &mut List) {
    for (scales, word) in [(Scales::Rows, "rows"), (Scales::Groups, "groups")] {
        for tokens in [1, 2, 7, 8, 9, 16, 17, 32, 33, 130] {
            let tier = if [1, 8, 33].contains(&tokens) { Quick } else { Standard };
            let name = |layer: &str| format!("e4m3-{word}/{layer}-t{tokens}");
            let of = |inputs, outputs| Projection::new(tokens, inputs, outputs).narrow(scales);
            let in_proj = of(256, 520).norm(1).wide().split("256,256,8");
            list.add(tier, &name("in-proj"), BF16, &in_proj);
            list.add(tier, &name("out-proj"), BF16, &of(512, 256).residual().scale(0.22));
            list.add(tier, &name("gate-up"), BF16, &of(256, 640).norm(1).wide().swiglu());
            list.add(tier, &name("up-squared"), BF16, &of(256, 648).norm(1).wide().squared());
            list.add(tier, &name("down"), BF16, &of(1200, 264).residual().scale(0.22));
            let conv = of(256, 520).norm(1).wide().split("256,256,8").convolved(256, 256, 4);
            list.add(tier, &name("conv"), BF16, &conv.set("conv_activation", "silu"));
        }
        for tokens in [1, 8, 32] {
            let name = |layer: &str| format!("e4m3-{word}/h-micro-{layer}-t{tokens}");
            let of = |inputs, outputs| Projection::new(tokens, inputs, outputs).narrow(scales);
            list.add(Full, &name("in-proj"), BF16, &of(2048, 1064).norm(1).wide());
            list.add(Full, &name("out-proj"), BF16, &of(4096, 256).residual().scale(0.22));
            list.add(Full, &name("gate-up"), BF16, &of(2048, 2048).norm(1).wide().swiglu());
            list.add(Full, &name("down"), BF16, &of(8192, 256).residual().scale(0.22));
        }
        // More columns per block than fit in the partial sums of tiles, on GPUs of about 132 SMs.
        for [tokens, inputs, outputs] in [[8, 4096, 8448], [32, 2048, 10_560]] {
            let call = Projection::new(tokens, inputs, outputs).narrow(scales);
            list.add(Full, &format!("e4m3-{word}/many-columns-t{tokens}"), BF16, &call);
        }
        // Rows beyond the range of float16.
        for tokens in [1, 7, 9] {
            let call = Projection { rows: FAR, ..Projection::new(tokens, 288, 136).narrow(scales) };
            list.add(Quick, &format!("e4m3-{word}/far-rows-t{tokens}"), BF16, &call);
        }
        // Sizes that are not multiples of anything.
        for [tokens, inputs, outputs] in [[3, 1, 40], [5, 33, 65], [40, 140, 130]] {
            let call = Projection::new(tokens, inputs, outputs).norm(1).bias().narrow(scales);
            list.add(Quick, &format!("e4m3-{word}/k{inputs}-n{outputs}"), BF16, &call);
        }
    }
    for tokens in [8, 16, 48] {
        list.add(Quick, &format!("e4m3/every-number-t{tokens}"), BF16, &EveryE4m3Value { tokens });
    }
}

/// One row, as persistent kernels take it.
fn phases(list: &mut List) {
    let of = |inputs, outputs| Projection::new(1, inputs, outputs).narrow(Scales::Rows);
    a_layer(list, "phase", of);
    // K = 1536: only six of the eight warps have work.
    list.add(
        Standard,
        "phase/k1536-split",
        BF16,
        &of(1536, 208).norm(1).wide().split("2,62,8,136"),
    );
    list.add(Quick, "phase/k3072-out", BF16, &of(3072, 264).norm(1).residual().scale(0.22));
    list.add(Full, "phase/k2048-many", BF16, &of(2048, 16_384).norm(1).wide().swiglu());
    let far = |rows| Projection { rows, ..of(8192, 136) };
    list.add(Quick, "phase/far-below", BF16, &far([1e-20; 3]));
    list.add(Quick, "phase/far-above", BF16, &far([1e18; 3]));
    // After attention.
    for [inputs, outputs] in [[1536, 520], [2048, 264]] {
        let name = format!("phase/k{inputs}-plain");
        list.add(Quick, &name, BF16, &of(inputs, outputs).residual().scale(0.22));
    }
    // Routers: blocks with no column, one or several.
    for [inputs, outputs] in [[1536, 64], [2048, 256], [1536, 512], [2304, 256]] {
        let router = Projection::new(1, inputs, outputs).set("out", "f32");
        list.add(Quick, &format!("phase/router-k{inputs}-n{outputs}"), BF16, &router.scale(0.5));
    }
}

/// The projections of a layer for one row, with their prologues and epilogues: blocks with no column, one or many.
fn a_layer(list: &mut List, word: &str, of: impl Fn(usize, usize) -> Projection) {
    let mut add = |tier, name: &str, call: Projection| {
        list.add(tier, &format!("{word}/{name}"), BF16, &call);
    };
    add(Quick, "k2048-few", of(2048, 16).norm(1).wide());
    add(Standard, "k2048-split", of(2048, 208).norm(1).wide().split("2,62,8,136"));
    // Taps for the only used slot of a pool, and channels that start and end inside a block's columns.
    let conv = of(2048, 1064).norm(1).wide().split("512,544,8").convolved(512, 544, 4).padded();
    add(Standard, "k2048-conv", conv.set("conv_activation", "silu"));
    add(Standard, "k2048-swiglu", of(2048, 352).norm(1).wide().swiglu());
    add(Quick, "k4096-out", of(4096, 264).norm(1).residual().scale(0.22));
    // Several pipeline stages of weights per block.
    add(Standard, "k8192-down", of(8192, 1064).residual().scale(0.22));
}

/// Standard deviations beyond the range of float16, for scales of quantized weights.
const FAR: [f64; 3] = [1e-20, 1e9, 1e18];

/// Every value of e4m3 as a weight, alone in a product: tokens are rows of the identity matrix, and each row of w has
/// the values of one exponent, with a scale that makes them as large as the others.
#[derive(Clone)]
struct EveryE4m3Value {
    tokens: usize,
}

impl Call for EveryE4m3Value {
    fn draw(&self, _: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let unit = (0..self.tokens * 16).map(|at| f64::from(u8::from(at / 16 % 16 == at % 16)));
        let x = Tensor::new(&[self.tokens, 16], unit.collect::<Vec<_>>()).cast(dtype);
        let number = |at: u8| E4m3::from_bits(at >> 4 << 3 | at & 7 | (at & 8) << 4);
        // A zero instead of NaN.
        let numbers = (0..=u8::MAX).map(number);
        let numbers = numbers.map(|number| if number.is_nan() { E4m3::default() } else { number });
        let w = Tensor::new(&[16, 16], numbers.collect::<Vec<_>>());
        let factors = (0..16).map(|exponent: i32| 2f32.powi(7 - exponent.max(1)));
        let factors = Tensor::new(&[1, 16], factors.collect::<Vec<_>>());
        let tensors = [("x", x), ("w", w), ("w_scale", factors)];
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
        (TensorMap::from(tensors), Settings::new().with("out", "f32"))
    }
}

fn edges(list: &mut List) {
    // Sizes that are not multiples of anything, of which some run on the CPU only and some need only a width of 8.
    for [tokens, inputs, outputs] in [[3, 1, 40], [2, 7, 5], [5, 33, 65], [4, 100, 130]] {
        let call = Projection::new(tokens, inputs, outputs).norm(1).bias();
        list.add(Quick, &format!("edge/k{inputs}-n{outputs}"), F32_BF16, &call);
    }
    for [tokens, inputs, outputs] in [[1, 8, 8], [3, 24, 40], [64, 1000, 72], [129, 136, 328]] {
        let call = Projection::new(tokens, inputs, outputs).bias();
        list.add(Quick, &format!("edge/t{tokens}-k{inputs}-n{outputs}"), ALL, &call);
    }
    list.add(Quick, "edge/bias-swiglu", ALL, &Projection::new(6, 64, 176).bias().swiglu());
    let squared = Projection::new(9, 64, 176).bias().squared();
    list.add(Quick, "edge/bias-squared-split", ALL, &squared.clone().split("96,80").scale(0.5));
    list.add(Quick, "edge/squared-residual", ALL, &squared.residual());
    list.add(Quick, "edge/swiglu-residual", ALL, &Projection::new(9, 64, 176).swiglu().residual());
    let swiglu_split = Projection::new(10, 72, 400).swiglu().split("8,96,48,32,8,8");
    list.add(Quick, "edge/swiglu-split", ALL, &swiglu_split);
    list.add(Quick, "edge/odd-split", F32_BF16, &Projection::new(3, 64, 200).split("1,63,7,129"));
    let stored = Projection { stored: true, ..Projection::new(9, 96, 88).norm(3).bias() };
    list.add(Quick, "edge/stored-norm-and-bias", ALL, &stored);
    // Rows of magnitudes a million times apart: their products fit in the storage type, and normalized they are of one
    // magnitude.
    let uneven = Projection { rows: [1e-3, 1.0, 1e3], ..Projection::new(19, 256, 136) };
    list.add(Quick, "edge/uneven-rows", ALL, &uneven);
    list.add(Quick, "edge/uneven-rows-norm", ALL, &uneven.clone().norm(1));
    // Rows with a mean square below eps, so that eps determines the result.
    list.add(Quick, "edge/eps-decides", F32_BF16, &uneven.norm(1).eps(1e-2));
    // A long depth of one sign: intermediate rounding makes sums too small.
    let long = Projection { positive: true, ..Projection::new(3, 8192, 24) };
    list.add(Standard, "edge/long-sums", ALL, &long);
    list.add(Standard, "edge/no-tokens", F32_BF16, &Projection::new(0, 64, 48).norm(1));
    list.add(Standard, "edge/no-outputs", F32, &Projection::new(4, 64, 0));
}

/// A call of linear.
#[derive(Clone)]
struct Projection {
    tokens: usize,
    inputs: usize,
    outputs: usize,
    norm: bool,
    bias: bool,
    /// Norm and bias in w's type instead of f32.
    stored: bool,
    residual: bool,
    /// x in f32.
    wide: bool,
    /// Standard deviations of the rows of x, cyclic.
    rows: [f64; 3],
    positive: bool,
    /// e4m3 weights.
    scales: Option<Scales>,
    /// Integer weights.
    integers: Option<integers::Form>,
    /// Channels and width of a convolution.
    convolution: Option<[usize; 2]>,
    /// Every third row is padding, and the states are in a pool.
    padded: bool,
    settings: Settings,
}

impl Projection {
    fn new(tokens: usize, inputs: usize, outputs: usize) -> Self {
        Self {
            tokens,
            inputs,
            outputs,
            norm: false,
            bias: false,
            stored: false,
            residual: false,
            wide: false,
            rows: [1.0; 3],
            positive: false,
            scales: None,
            integers: None,
            convolution: None,
            padded: false,
            settings: Settings::new(),
        }
    }

    fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.settings.set(name, value);
        self
    }

    fn norm(self, groups: usize) -> Self {
        Self { norm: true, ..self.set("norm_groups", groups) }
    }

    fn eps(self, eps: f64) -> Self {
        self.set("eps", eps)
    }

    fn bias(self) -> Self {
        Self { bias: true, ..self }
    }

    fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    fn residual(self) -> Self {
        Self { residual: true, ..self }
    }

    fn swiglu(self) -> Self {
        self.set("activation", "swiglu")
    }

    fn squared(self) -> Self {
        self.set("activation", "relu_squared")
    }

    fn scale(self, scale: f64) -> Self {
        self.set("scale", scale)
    }

    fn split(self, widths: &str) -> Self {
        self.set("split", widths)
    }

    fn convolved(self, first: usize, channels: usize, width: usize) -> Self {
        Self { convolution: Some([channels, width]), ..self.set("conv_first", first) }
    }

    fn padded(self) -> Self {
        Self { padded: true, ..self }
    }

    fn narrow(self, scales: Scales) -> Self {
        Self { scales: Some(scales), ..self }
    }

    fn out(self, out: &str) -> Self {
        self.set("out", out)
    }

    /// Rows of x.
    fn x(&self, draw: &mut TensorRng, dtype: DType) -> Tensor {
        let mut at = 0;
        draw.tensor(&[self.tokens, self.inputs], dtype, |draw| {
            let scale = self.rows[at / self.inputs % 3];
            at += 1;
            if self.positive { draw.uniform(0.5, 1.5) } else { draw.normal() * scale }
        })
    }
}

impl Call for Projection {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let (tokens, inputs, outputs) = (self.tokens, self.inputs, self.outputs);
        let columns = match self.settings.iter().any(|(_, value)| value == "swiglu") {
            true => outputs / 2,
            false => outputs,
        };
        let mut tensors = TensorMap::new();
        let mut put = |name: &str, tensor| tensors.insert(name.to_owned(), tensor);
        put("x", self.x(draw, if self.wide { DType::F32 } else { dtype }));
        let deviation = (inputs as f64).powf(-0.5);
        if let Some(form) = self.integers {
            form.draw(draw, [outputs, inputs], &mut put);
        } else if let Some(scales) = self.scales {
            // From the smallest values to the largest that are not clipped; scales twice as large in one row as in
            // another.
            put("w", draw.normals(&[outputs, inputs], DType::E4m3, 60.0));
            let groups = if scales == Scales::Rows { 1 } else { inputs.div_ceil(SCALED) };
            let (low, high) = (deviation / 80.0, deviation / 40.0);
            put("w_scale", draw.uniforms(&[groups, outputs], DType::F32, low, high));
        } else {
            put(
                "w",
                match self.positive {
                    true => draw.uniforms(&[outputs, inputs], dtype, 0.0, 2.0 * deviation),
                    false => draw.normals(&[outputs, inputs], dtype, deviation),
                },
            );
        }
        let around = if self.stored { dtype } else { DType::F32 };
        if self.norm {
            put("norm", draw.uniforms(&[inputs], around, 0.5, 1.5));
        }
        if self.bias {
            put("bias", draw.normals(&[outputs], around, 1.0));
        }
        if self.residual {
            put("residual", draw.normals(&[tokens, columns], DType::F32, 1.0));
        }
        if let Some([channels, width]) = self.convolution {
            put("conv_weight", draw.normals(&[channels, width], around, 0.5));
            if !self.stored {
                put("conv_bias", draw.normals(&[channels], around, 1.0));
            }
            let slots = if self.padded { tokens + 2 } else { tokens };
            put("initial_state", draw.normals(&[slots, channels, width - 1], DType::F32, 1.0));
            if self.padded {
                // From the last slot down, so that rows and slots have different orders.
                let slot = |row: usize| if row % 3 == 1 { -1 } else { (slots - 1 - row) as i32 };
                put("state_indices", Tensor::new(&[tokens], (0..tokens).map(slot).collect()));
            }
        }
        (tensors, self.settings.clone())
    }
}
