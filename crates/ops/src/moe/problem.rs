//! The contract of the op: its table, its problem and the checks of a call.

use super::MoeOptions;
use super::route::route;
use crate::settings::refused;
use crate::spec::{setting, tensor};
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, SettingKind};

pub(super) const ACTIVATIONS: &[&str] = &["swiglu", "relu_squared", "clamped_swiglu"];
pub(super) const SCORES: &[&str] = &["softmax_of_chosen", "softmax_of_all", "sigmoid"];

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "moe",
    summary: "routed experts: o = residual + scale * sum over a token's chosen experts of weight * W_down act(W_gate_up x)",
    inputs: &[
        tensor("x", "[T, H]", true, "tokens, normalised already"),
        tensor("logits", "[T, E]", true, "router logits, f32"),
        tensor(
            "correction",
            "[E]",
            false,
            "f32, added to sigmoid scores for the top-k choice, not to the weights",
        ),
        tensor(
            "w_gate_up",
            "[L, 2I, H]",
            true,
            "gate and up projections: I rows of gates, then I of ups ([L, I, H], ups only, for relu_squared); in x's type, or in e4m3, i8 or u4 (two per byte, the first in the low half) with x in bf16",
        ),
        tensor("w_down", "[L, H, I]", true, "in w_gate_up's type"),
        tensor(
            "gate_up_scale",
            "[L, G, 2I or I]",
            false,
            "f32 scales of quantized w_gate_up, required for e4m3, i8 and u4: per row (G is 1), or per group of `w_group` columns (G is H / w_group, rounded up)",
        ),
        tensor("down_scale", "[L, G, H]", false, "the same of w_down, whose columns are I"),
        tensor(
            "gate_up_offset",
            "[L, G, 2I or I]",
            false,
            "f32 offsets of u4 weights: a weight is scale * w - offset; without them the offset is 8 * scale",
        ),
        tensor("down_offset", "[L, G, H]", false, "the same of w_down; both or neither"),
        tensor(
            "gate_up_bias",
            "[L, 2I]",
            false,
            "f32, added to gates and ups; with down_bias, for clamped_swiglu, which needs them",
        ),
        tensor("down_bias", "[L, H]", false, "f32, added to an expert's down projection"),
        tensor("residual", "[T, H]", false, "f32; none: 0"),
    ],
    outputs: &[
        tensor("o", "[T, H]", true, "f32 with a residual, otherwise in x's type"),
        tensor(
            "chosen",
            "[T, K]",
            true,
            "i32, the top_k of the E by falling score, the lower of equal ones first; then the shared experts",
        ),
        tensor("weights", "[T, K]", true, "f32, weights of the experts in `chosen`"),
    ],
    settings: &[
        setting("top_k", SettingKind::Count, "required", "experts of a token, 1 to E"),
        setting(
            "activation",
            SettingKind::Choice(ACTIVATIONS),
            "swiglu",
            "swiglu: silu(gate) * up; relu_squared: max(0, up)^2, without gates (Nemotron); clamped_swiglu: g sigmoid(alpha g) (u + 1), g = min(gate, limit) and u the up between -limit and limit (gpt-oss)",
        ),
        setting("limit", SettingKind::Number, "7", "of clamped_swiglu, above 0"),
        setting("alpha", SettingKind::Number, "1.702", "of clamped_swiglu"),
        setting(
            "score",
            SettingKind::Choice(SCORES),
            "softmax_of_chosen",
            "softmax_of_chosen: the largest logits, and the softmax over them (Granite); softmax_of_all: the same, weighed by the softmax over all experts (Jamba); sigmoid: chosen by sigmoid + correction, weighed by the sigmoid alone (Kimi-Linear)",
        ),
        setting(
            "renormalise",
            SettingKind::Bool,
            "true",
            "whether sigmoid scores are divided by their sum over the chosen + sum_eps",
        ),
        setting(
            "sum_eps",
            SettingKind::Number,
            "1e-20",
            "added to the sum of sigmoid scores that they are divided by",
        ),
        setting(
            "weight_scale",
            SettingKind::Number,
            "1",
            "factor of the router weights (routed_scaling_factor)",
        ),
        setting("scale", SettingKind::Number, "1", "factor of the sum over experts"),
        setting(
            "w_group",
            SettingKind::Count,
            "128",
            "group size of the scales, in columns; a multiple of 32",
        ),
        setting(
            "experts_first",
            SettingKind::Count,
            "weights of all E",
            "expert parallelism: the first of the L local experts; contributions of other experts are left out",
        ),
        setting(
            "always",
            SettingKind::Count,
            "0",
            "shared experts, which every token takes in addition to its top_k, with weight 1: they have no logits and follow the E routed ones, so that L is E + always; not with experts_first",
        ),
    ],
};

/// Scoring function: how logits determine the choice and the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The largest logits are chosen; weights are the softmax over these.
    SoftmaxOfChosen,
    /// The largest logits are chosen; weights are their values in the softmax over all experts.
    SoftmaxOfAll,
    /// Chosen by sigmoid + correction; weights are the sigmoids, divided by their sum where `renormalise`.
    Sigmoid {
        /// Whether weights are divided by their sum + `sum_eps`.
        renormalise: bool,
    },
}

/// Clamped SwiGLU (gpt-oss): `g sigmoid(alpha g) (u + 1)` with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clamp {
    /// Above 0.
    pub limit: f64,
    /// Factor in the sigmoid.
    pub alpha: f64,
}

/// Quantized weights of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizedExperts {
    /// e4m3, i8 or u4.
    pub dtype: DType,
    /// Scales per row of w_gate_up and of w_down: 1, or one for each group of [`Self::group`] columns.
    pub scales_per_row: [usize; 2],
    /// Group size, in columns, if a row has several scales.
    pub group: usize,
    /// Whether offsets are given.
    pub offset: bool,
}

impl QuantizedExperts {
    /// Columns per scale, in rows of `columns` columns with `scales` scales each.
    pub fn columns_of(&self, scales: usize, columns: usize) -> usize {
        if scales == 1 { columns } else { self.group }
    }

    /// Checks quantized weights, their scales and offsets; `None` if the weights have a storage type.
    fn parse(
        inputs: Inputs<'_>,
        options: &MoeOptions,
        [experts, hidden, inner]: [usize; 3],
    ) -> Result<Option<Self>, OpError> {
        let dtype = inputs.tensor("w_gate_up").dtype();
        if inputs.tensor("w_down").dtype() != dtype {
            return Err(inputs.dtype_error("w_down", &format!("{dtype}, like `w_gate_up`")));
        }
        let is_quantized = matches!(dtype, DType::E4m3 | DType::I8 | DType::U4);
        if options.w_group == 0 || !options.w_group.is_multiple_of(GROUPED) {
            let wanted = format!("a multiple of {GROUPED}");
            return Err(refused(SPEC.name, "w_group", options.w_group, wanted));
        }
        let ups = if options.gated { 2 * inner } else { inner };
        let of = [("w_gate_up", ups, hidden), ("w_down", hidden, inner)];
        let mut scales_per_row = [1; 2];
        for ((w, rows, columns), scales) in of.into_iter().zip(&mut scales_per_row) {
            let [scale, offset] = scale_names(w);
            if !is_quantized {
                if let Some(given) = [scale, offset].into_iter().find(|of| inputs.get(of).is_some())
                {
                    return Err(inputs.value_error(given, "is for weights in e4m3, i8 or u4"));
                }
                continue;
            }
            if dtype == DType::U4 && !columns.is_multiple_of(2) {
                let shape = "rows of an even length, of which two share a byte";
                return Err(inputs.shape_error(w, shape));
            }
            if inputs.get(scale).is_none() {
                let shape = "[E, G, rows], for weights in e4m3, i8 or u4";
                return Err(OpError::MissingTensor { op: SPEC.name, tensor: scale, shape });
            }
            let (e, n) = (Dim::fixed("E", experts), Dim::fixed("rows", rows));
            let [_, given, _] = inputs.dims(scale, [e, Dim::free("G"), n])?;
            let groups = columns.div_ceil(options.w_group);
            if given != 1 && given != groups {
                return Err(inputs.shape_error(scale, &format!("[E, 1 or {groups}, {rows}]")));
            }
            if inputs.get(offset).is_some() {
                if dtype != DType::U4 {
                    return Err(inputs.value_error(offset, "is for weights in u4"));
                }
                inputs.dims(offset, [e, Dim::fixed("G", given), n])?;
            }
            for name in [scale, offset] {
                if inputs.get(name).is_some_and(|tensor| tensor.dtype() != DType::F32) {
                    return Err(inputs.dtype_error(name, "f32"));
                }
            }
            *scales = given;
        }
        let offset = inputs.get("gate_up_offset").is_some();
        if offset != inputs.get("down_offset").is_some() {
            let (there, missing) = if offset {
                ("gate_up_offset", "down_offset")
            } else {
                ("down_offset", "gate_up_offset")
            };
            return Err(inputs.value_error(there, format!("comes without `{missing}`")));
        }
        let group = options.w_group;
        Ok(is_quantized.then_some(Self { dtype, scales_per_row, group, offset }))
    }
}

/// Names of the tensors with the scales and offsets of `w_gate_up` or `w_down`.
pub fn scale_names(w: &str) -> [&'static str; 2] {
    match w {
        "w_gate_up" => ["gate_up_scale", "gate_up_offset"],
        _ => ["down_scale", "down_offset"],
    }
}

/// Group sizes are a multiple of this.
const GROUPED: usize = 32;

/// A checked call of `moe`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeProblem {
    /// Storage type of x, and of the experts' weights unless they are quantized.
    pub dtype: DType,
    /// Quantized weights: e4m3, i8 or u4.
    pub quantized: Option<QuantizedExperts>,
    /// Tokens, T.
    pub tokens: usize,
    /// Channels of a token, H.
    pub hidden: usize,
    /// Routed experts, E.
    pub experts: usize,
    /// First local expert.
    pub first: usize,
    /// Number of local experts, L: E + `always`, or fewer under expert parallelism.
    pub held: usize,
    /// Shared experts, from E on, which every token takes with weight 1; they have no logits.
    pub always: usize,
    /// Channels of an expert, I.
    pub intermediate: usize,
    /// Experts that a token chooses.
    pub top_k: usize,
    /// SwiGLU experts, `silu(gate) * up`; squared ReLU without gates if false.
    pub gated: bool,
    /// Clamped SwiGLU, with biases.
    pub clamp: Option<Clamp>,
    /// Scoring function of the router.
    pub score: Score,
    /// Added to the sum that renormalises sigmoid scores.
    pub sum_eps: f64,
    /// Factor of the router weights.
    pub weight_scale: f64,
    /// Factor of the sum over experts.
    pub scale: f64,
    /// Whether a residual is added, which makes `o` float32.
    pub residual: bool,
    /// Local experts that some token of this call chose: only their weights must be read. An upper bound if the logits are on a GPU.
    pub experts_read: usize,
    /// Pairs of a token and a local expert it chose; an upper bound if the logits are on a GPU.
    pub pairs_held: usize,
}

impl MoeProblem {
    /// Experts per token: routed and shared.
    pub fn of_token(&self) -> usize {
        self.top_k + self.always
    }

    /// Pairs of a token and an expert of it.
    pub fn pairs(&self) -> usize {
        self.tokens * self.of_token()
    }

    /// The index of an expert among the local ones; `None` for the others.
    pub fn place_of(&self, expert: usize) -> Option<usize> {
        expert.checked_sub(self.first).filter(|place| *place < self.held)
    }

    /// Rows of an expert's `w_gate_up`.
    pub fn ups(&self) -> usize {
        if self.gated { 2 * self.intermediate } else { self.intermediate }
    }

    /// Storage type of `o`.
    pub fn out_dtype(&self) -> DType {
        if self.residual { DType::F32 } else { self.dtype }
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &MoeOptions) -> Result<Self, OpError> {
        let dtype = inputs.storage("x")?;
        let [tokens, hidden] = inputs.dims("x", [Dim::free("T"), Dim::free("H")])?;
        let [_, experts] = inputs.dims("logits", [Dim::fixed("T", tokens), Dim::free("E")])?;
        let MoeOptions {
            top_k,
            gated,
            clamp,
            score,
            sum_eps,
            weight_scale,
            scale,
            experts_first,
            always,
            w_group: _,
        } = *options;
        if experts_first.is_some() && always > 0 {
            return Err(refused(SPEC.name, "always", always, "0 with experts_first"));
        }
        let (e, h) = (Dim::fixed("E", experts), Dim::fixed("H", hidden));
        let all = match always {
            0 => e,
            _ => Dim::fixed("E + always", experts.saturating_add(always)),
        };
        let here = experts_first.map_or(all, |_| Dim::free("L"));
        let [held, _, intermediate] = inputs.dims("w_down", [here, h, Dim::free("I")])?;
        let here = experts_first.map_or(all, |_| Dim::fixed("L", held));
        let ups = match options.gated {
            true => Dim::fixed("2I", 2 * intermediate),
            false => Dim::fixed("I", intermediate),
        };
        inputs.dims("w_gate_up", [here, ups, h])?;
        for (name, of) in [("gate_up_bias", ups), ("down_bias", h)] {
            match (clamp, inputs.get(name).is_some()) {
                (Some(_), true) => drop(inputs.dims(name, [here, of])?),
                (None, false) => {}
                (Some(_), false) => {
                    let shape = "[L, rows], for clamped_swiglu";
                    return Err(OpError::MissingTensor { op: SPEC.name, tensor: name, shape });
                }
                (None, true) => return Err(inputs.value_error(name, "is for clamped_swiglu")),
            }
        }
        if let Some(Clamp { limit, .. }) = clamp.filter(|clamp| clamp.limit <= 0.0) {
            return Err(refused(SPEC.name, "limit", limit.to_string(), "a number above 0"));
        }
        let quantized = QuantizedExperts::parse(inputs, options, [held, hidden, intermediate])?;
        match quantized {
            None => inputs.same_storage(&["w_gate_up", "w_down"], dtype)?,
            Some(quantized) if dtype != DType::Bf16 => {
                return Err(
                    inputs.dtype_error("x", &format!("bf16 with weights in {}", quantized.dtype))
                );
            }
            Some(_) => {}
        }
        let first = experts_first.unwrap_or(0);
        if experts_first.is_some() && first.saturating_add(held) > experts {
            let wanted = format!("such that {held} of the {experts} experts come from there on");
            return Err(refused(SPEC.name, "experts_first", first.to_string(), wanted));
        }
        for name in ["logits", "correction", "residual", "gate_up_bias", "down_bias"] {
            if inputs.get(name).is_some_and(|tensor| tensor.dtype() != DType::F32) {
                return Err(inputs.dtype_error(name, "f32"));
            }
        }
        if inputs.get("residual").is_some() {
            inputs.dims("residual", [Dim::fixed("T", tokens), h])?;
        }
        let known = top_k.filter(|top_k| (1..=experts).contains(top_k));
        let Some(top_k) = known else {
            let value = top_k.map_or("missing".to_owned(), |value| value.to_string());
            let wanted = format!("1 to the {experts} experts of `logits`");
            return Err(refused(SPEC.name, "top_k", value, wanted));
        };
        if inputs.get("correction").is_some() {
            inputs.dims("correction", [e])?;
            if !matches!(score, Score::Sigmoid { .. }) {
                let what = "is added to sigmoid scores, and this call has none: give score=sigmoid";
                return Err(inputs.value_error("correction", what));
            }
        }
        let mut problem = Self {
            dtype,
            quantized,
            tokens,
            hidden,
            experts,
            first,
            held,
            always,
            intermediate,
            top_k,
            gated,
            clamp,
            score,
            sum_eps,
            weight_scale,
            scale,
            residual: inputs.get("residual").is_some(),
            experts_read: 0,
            pairs_held: 0,
        };
        (problem.experts_read, problem.pairs_held) = count_held_and_read(&problem, inputs);
        Ok(problem)
    }
}

/// [`MoeProblem::experts_read`] and [`MoeProblem::pairs_held`].
fn count_held_and_read(problem: &MoeProblem, inputs: Inputs<'_>) -> (usize, usize) {
    if inputs.tensor("logits").buffer().is_some() {
        let pairs = problem.tokens * problem.of_token().min(problem.held);
        return (problem.held.min(pairs), pairs);
    }
    let mut of_expert = vec![0usize; problem.held];
    for expert in route(problem, inputs).chosen {
        if let Some(place) = problem.place_of(expert as usize) {
            of_expert[place] += 1;
        }
    }
    (of_expert.iter().filter(|pairs| **pairs > 0).count(), of_expert.iter().sum())
}

impl Problem for MoeProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let sizes = [self.tokens, self.hidden, self.experts, self.intermediate, self.top_k];
        ["T", "H", "E", "I", "K"].into_iter().zip(sizes.map(|size| size as u64)).collect()
    }

    /// A product of H x I for the gate, up and down projection of each pair of a token and a local expert; the router's choice is
    /// not counted.
    fn flops(&self) -> f64 {
        2.0 * self.pairs_held as f64 * self.hidden as f64 * (self.ups() + self.intermediate) as f64
    }

    /// Weights of the chosen local experts, with their scales and offsets, once; x, logits, residual and outputs once.
    fn bytes(&self) -> f64 {
        let (i, h) = (self.intermediate, self.hidden);
        let rows = self.ups() + i; // of H values each; the down projection counted transposed
        let of_expert = match self.quantized {
            None => rows * h * self.dtype.bytes(),
            Some(QuantizedExperts { dtype, scales_per_row: [up, down], offset, .. }) => {
                let each = DType::F32.bytes() * if offset { 2 } else { 1 };
                dtype.bytes_of(rows * h) + (self.ups() * up + h * down) * each
            }
        };
        let biases = if self.clamp.is_some() { self.ups() + h } else { 0 };
        let of_expert = of_expert + biases * DType::F32.bytes();
        let x = self.tokens * h;
        let wide = self.tokens * self.experts + if self.residual { x } else { 0 };
        (self.experts_read * of_expert + x * self.dtype.bytes() + wide * DType::F32.bytes()) as f64
            + (x * self.out_dtype().bytes() + 2 * self.pairs() * DType::F32.bytes()) as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let chosen = vec![self.tokens, self.of_token()];
        vec![
            OutputSpec {
                name: "o",
                shape: vec![self.tokens, self.hidden],
                dtype: self.out_dtype(),
            },
            OutputSpec { name: "chosen", shape: chosen.clone(), dtype: DType::I32 },
            OutputSpec { name: "weights", shape: chosen, dtype: DType::F32 },
        ]
    }
}
