//! The contract of the op: its table, its problem, and the checks between the two.

use super::MoeOptions;
use super::route::route;
use crate::op::{setting, tensor};
use crate::settings::refused;
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, SettingKind};

pub(super) const ACTIVATIONS: &[&str] = &["swiglu", "relu_squared"];
pub(super) const SCORES: &[&str] = &["softmax_of_chosen", "sigmoid"];

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "moe",
    summary: "routed experts: o = residual + scale * sum over a token's chosen experts of weight * W_down act(W_gate_up x)",
    inputs: &[
        tensor("x", "[T, H]", true, "tokens, normalised already"),
        tensor("logits", "[T, E]", true, "the router's, f32"),
        tensor("correction", "[E]", false, "f32, added to sigmoid scores for the choice alone"),
        tensor(
            "w_gate_up",
            "[E, 2I, H]",
            true,
            "of each expert I rows of gates, then I of ups; [E, I, H], ups alone, for relu_squared",
        ),
        tensor("w_down", "[E, H, I]", true, "in x's type, as w_gate_up"),
        tensor("residual", "[T, H]", false, "f32; none: 0"),
    ],
    outputs: &[
        tensor("o", "[T, H]", true, "f32 with a residual, otherwise in x's type"),
        tensor("chosen", "[T, top_k]", true, "i32, most wanted first; of equal ones the lower"),
        tensor("weights", "[T, top_k]", true, "f32, what the chosen experts' results are times"),
    ],
    settings: &[
        setting("top_k", SettingKind::Count, "required", "experts of a token, 1 to E"),
        setting(
            "activation",
            SettingKind::Choice(ACTIVATIONS),
            "swiglu",
            "swiglu: silu(gate) * up; relu_squared: max(0, up)^2, without gates (Nemotron)",
        ),
        setting(
            "score",
            SettingKind::Choice(SCORES),
            "softmax_of_chosen",
            "softmax_of_chosen: the largest logits, and the softmax over them (Granite); sigmoid: chosen by sigmoid + correction, weighed by the sigmoid alone (Kimi-Linear)",
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
            "what weights are times (routed_scaling_factor)",
        ),
        setting("scale", SettingKind::Number, "1", "what the sum over experts is times"),
    ],
};

/// How logits become a choice and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The largest logits are chosen; weights are the softmax over these.
    SoftmaxOfChosen,
    /// Chosen by sigmoid + correction; weights are the sigmoids, divided by their sum where `renormalise`.
    Sigmoid {
        /// Whether weights are divided by their sum + `sum_eps`.
        renormalise: bool,
    },
}

/// One call, apart from the choice of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeProblem {
    /// Storage type of x and the experts' weights.
    pub dtype: DType,
    /// Tokens, T.
    pub tokens: usize,
    /// Channels of a token, H.
    pub hidden: usize,
    /// Experts, E.
    pub experts: usize,
    /// Channels of an expert, I.
    pub intermediate: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Whether an expert has gates, `silu(gate) * up`; else ups are squared, those below 0 as 0.
    pub gated: bool,
    /// How they are chosen and weighed.
    pub score: Score,
    /// Added to the sum that sigmoids are divided by.
    pub sum_eps: f64,
    /// What weights are times.
    pub weight_scale: f64,
    /// What the sum over experts is times.
    pub scale: f64,
    /// Whether a residual is added, which makes `o` float32.
    pub residual: bool,
    /// Experts that some token of this call chose: only their weights must be read. As many as can be where the logits lie
    /// on a device.
    pub experts_read: usize,
}

impl MoeProblem {
    /// Pairs of a token and an expert it chose.
    pub fn pairs(&self) -> usize {
        self.tokens * self.top_k
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
        inputs.same_storage(&["w_gate_up", "w_down"], dtype)?;
        let (e, h) = (Dim::fixed("E", experts), Dim::fixed("H", hidden));
        let [_, _, intermediate] = inputs.dims("w_down", [e, h, Dim::free("I")])?;
        let ups = match options.gated {
            true => Dim::fixed("2I", 2 * intermediate),
            false => Dim::fixed("I", intermediate),
        };
        inputs.dims("w_gate_up", [e, ups, h])?;
        for name in ["logits", "correction", "residual"] {
            if inputs.get(name).is_some_and(|tensor| tensor.dtype() != DType::F32) {
                return Err(inputs.dtype_error(name, "f32"));
            }
        }
        if inputs.get("residual").is_some() {
            inputs.dims("residual", [Dim::fixed("T", tokens), h])?;
        }
        let MoeOptions { top_k, gated, score, sum_eps, weight_scale, scale } = *options;
        let known = top_k.filter(|top_k| (1..=experts).contains(top_k));
        let Some(top_k) = known else {
            let value = top_k.map_or("missing".to_owned(), |value| value.to_string());
            let wanted = format!("1 to the {experts} experts of `logits`");
            return Err(refused(SPEC.name, "top_k", value, wanted));
        };
        if inputs.get("correction").is_some() {
            inputs.dims("correction", [e])?;
            if score == Score::SoftmaxOfChosen {
                let what = "is added to sigmoid scores, and this call has none: give score=sigmoid";
                return Err(inputs.value_error("correction", what));
            }
        }
        let mut problem = Self {
            dtype,
            tokens,
            hidden,
            experts,
            intermediate,
            top_k,
            gated,
            score,
            sum_eps,
            weight_scale,
            scale,
            residual: inputs.get("residual").is_some(),
            experts_read: 0,
        };
        problem.experts_read = experts_read(&problem, inputs);
        Ok(problem)
    }
}

fn experts_read(problem: &MoeProblem, inputs: Inputs<'_>) -> usize {
    if inputs.tensor("logits").buffer().is_some() {
        return problem.experts.min(problem.pairs());
    }
    let mut read = vec![false; problem.experts];
    for expert in route(problem, inputs).chosen {
        read[expert as usize] = true;
    }
    read.into_iter().filter(|read| *read).count()
}

impl Problem for MoeProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let sizes = [self.tokens, self.hidden, self.experts, self.intermediate, self.top_k];
        ["T", "H", "E", "I", "K"].into_iter().zip(sizes.map(|size| size as u64)).collect()
    }

    /// A product of H x I for each gate, up and way down of each chosen expert of each token; the router's choice is not counted.
    fn flops(&self) -> f64 {
        2.0 * self.pairs() as f64 * self.hidden as f64 * (self.ups() + self.intermediate) as f64
    }

    /// Weights of the experts that were chosen, once; x, logits, residual and outputs once.
    fn bytes(&self) -> f64 {
        let stored = self.experts_read * (self.ups() + self.intermediate) * self.hidden;
        let x = self.tokens * self.hidden;
        let wide = self.tokens * self.experts + if self.residual { x } else { 0 };
        ((stored + x) * self.dtype.bytes() + wide * DType::F32.bytes()) as f64
            + (x * self.out_dtype().bytes() + 2 * self.pairs() * DType::F32.bytes()) as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let chosen = vec![self.tokens, self.top_k];
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
