//! The contract of the op: its table, its problem and the checks of a call.

use super::SamplingOptions;
use crate::settings::refused;
use crate::spec::{setting, tensor};
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, SettingKind};

/// Values per row of `controls`: temperature, top-p, min-p, and the repetition, presence and frequency penalties.
pub const CONTROLS: usize = 6;
/// The bit of a word of `counts` that marks a token of the prompt; the other bits count how often it was generated.
pub const IN_PROMPT: i32 = i32::MIN;
/// The result of a row without a valid token: a logit is NaN or plus infinity, or no token is allowed.
pub const NONE: i32 = -1;
/// Maximum of `top_logprobs`.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "sampling",
    summary: "the next token of each row of logits: penalties, mask, temperature, top-k, top-p, min-p, and a draw that a seed repeats",
    inputs: &[
        tensor("logits", "[R, V]", true, "f32; minus infinity is never chosen"),
        tensor(
            "controls",
            "[R, 6]",
            true,
            "f32: temperature (0: the largest logit), top-p (1: all), min-p (0: all), repetition penalty (1: none), presence and frequency penalty (0: none)",
        ),
        tensor("top_k", "[R]", true, "i32; 0: all"),
        tensor("seed", "[R, 2]", true, "i32: low and high word"),
        tensor(
            "draw",
            "[R]",
            true,
            "i32: index of the draw in the seed's random stream, for example the token's position",
        ),
        tensor(
            "mask",
            "[R, ceil(V / 32)]",
            false,
            "i32: a bit per token, lowest first; 0 forbids it",
        ),
        tensor(
            "counts",
            "[S, V]",
            false,
            "i32: how often each token was generated; the sign bit is set for tokens of the prompt",
        ),
        tensor(
            "slots",
            "[R]",
            false,
            "i32: the row of `counts` for each row of logits, -1 for none; absent: the same row",
        ),
    ],
    outputs: &[
        tensor("token", "[R]", true, "i32; -1 where none can be chosen"),
        tensor(
            "logprob",
            "[R]",
            false,
            "f32, with top_logprobs: the log-probability of the token by the logits as given",
        ),
        tensor(
            "top_tokens",
            "[R, top_logprobs]",
            false,
            "i32, most probable first, the lower of equal ones first",
        ),
        tensor("top_logprobs", "[R, top_logprobs]", false, "f32, their log-probabilities"),
    ],
    settings: &[setting(
        "top_logprobs",
        SettingKind::Count,
        "0",
        "number of most probable tokens to return with their log-probabilities, at most 20; 0: none, and no `logprob` either",
    )],
};

/// A checked call of `sampling`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingProblem {
    /// Rows of logits, R.
    pub rows: usize,
    /// Tokens to choose from, V.
    pub vocabulary: usize,
    /// Whether a mask is given.
    pub masked: bool,
    /// Rows of `counts`, if given.
    pub counted: Option<usize>,
    /// Number of most probable tokens to return per row.
    pub top_logprobs: usize,
    /// Bytes of all tensors that are read once.
    input_bytes: f64,
}

impl SamplingProblem {
    /// Words of a row of the mask.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.div_ceil(32)
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &SamplingOptions) -> Result<Self, OpError> {
        let [rows, vocabulary] = inputs.dims("logits", [Dim::free("R"), Dim::free("V")])?;
        let r = Dim::fixed("R", rows);
        inputs.dims("controls", [r, Dim::fixed("numbers", CONTROLS)])?;
        inputs.dims("top_k", [r])?;
        inputs.dims("seed", [r, Dim::fixed("words", 2)])?;
        inputs.dims("draw", [r])?;
        for name in ["logits", "controls"] {
            if inputs.tensor(name).dtype() != DType::F32 {
                return Err(inputs.dtype_error(name, "f32"));
            }
        }
        for name in ["top_k", "seed", "draw", "mask", "counts", "slots"] {
            if inputs.get(name).is_some_and(|tensor| tensor.dtype() != DType::I32) {
                return Err(inputs.dtype_error(name, "i32"));
            }
        }
        if vocabulary == 0 {
            return Err(inputs.shape_error("logits", "[R, V] with one token or more"));
        }
        if inputs.get("mask").is_some() {
            inputs.dims("mask", [r, Dim::fixed("ceil(V / 32)", vocabulary.div_ceil(32))])?;
        }
        let counted = counted(inputs, [rows, vocabulary])?;
        let most = MAX_TOP_LOGPROBS.min(vocabulary);
        let top_logprobs = options.top_logprobs;
        if top_logprobs > most {
            let wanted = format!("at most {most}");
            return Err(refused(SPEC.name, "top_logprobs", top_logprobs, wanted));
        }
        // Only the rows of `counts` in use are read.
        let pool = counted.map_or(0, |slots| slots.saturating_sub(rows) * vocabulary * 4) as f64;
        let input_bytes = inputs.bytes() - pool;
        let masked = inputs.get("mask").is_some();
        Ok(Self { rows, vocabulary, masked, counted, top_logprobs, input_bytes })
    }
}

/// Checks `counts` and `slots`; returns the number of rows of `counts`, `None` without them.
fn counted(inputs: Inputs<'_>, [rows, vocabulary]: [usize; 2]) -> Result<Option<usize>, OpError> {
    let Some(slots) = inputs.get("slots") else {
        if inputs.get("counts").is_some() {
            let (r, v) = (Dim::fixed("R", rows), Dim::fixed("V", vocabulary));
            inputs.dims("counts", [r, v])?;
            return Ok(Some(rows));
        }
        return Ok(None);
    };
    if inputs.get("counts").is_none() {
        return Err(inputs.value_error("slots", "names rows of `counts`, which is missing"));
    }
    inputs.dims("slots", [Dim::fixed("R", rows)])?;
    let [count, _] = inputs.dims("counts", [Dim::free("S"), Dim::fixed("V", vocabulary)])?;
    let out_of_range = |slot: &&i32| **slot >= count as i32 || **slot < -1;
    if let Some(slot) = slots.view::<i32>().unwrap_or_default().iter().find(out_of_range) {
        let what = format!("names row {slot} of `counts`, which has {count}");
        return Err(inputs.value_error("slots", what));
    }
    Ok(Some(count))
}

impl Problem for SamplingProblem {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        vec![("R", self.rows as u64), ("V", self.vocabulary as u64)]
    }

    /// One operation per token, its exponential; comparisons are not counted.
    fn flops(&self) -> f64 {
        (self.rows * self.vocabulary) as f64
    }

    fn bytes(&self) -> f64 {
        let output_bytes = if self.top_logprobs > 0 { 8 + 8 * self.top_logprobs } else { 4 };
        self.input_bytes + (self.rows * output_bytes) as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let (rows, top) = (self.rows, self.top_logprobs);
        let of = |name, shape, dtype| OutputSpec { name, shape, dtype };
        let mut outputs = vec![of("token", vec![rows], DType::I32)];
        if top > 0 {
            outputs.push(of("logprob", vec![rows], DType::F32));
            outputs.push(of("top_tokens", vec![rows, top], DType::I32));
            outputs.push(of("top_logprobs", vec![rows, top], DType::F32));
        }
        outputs
    }
}
