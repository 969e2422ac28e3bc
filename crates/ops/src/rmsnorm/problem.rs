//! The contract of the op: its table, its problem and the checks of a call.

use super::RmsNormOptions;
use crate::settings::refused;
use crate::spec::tensor;
use crate::{
    DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, SettingKind, SettingSpec, Tensor,
};

pub(super) const ACTIVATIONS: &[&str] = &["silu", "sigmoid"];
pub(super) const OUTPUT_TYPES: &[&str] = &["bf16", "f16"];

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "rmsnorm",
    summary: "RMSNorm over groups of channels, plain or gated: y = x / sqrt(mean x^2 + eps) * weight",
    inputs: &[
        tensor("x", "[B, T, G, D]", true, "G groups of D channels: each is normalised alone"),
        tensor("gate", "[B, T, G, D]", false, "in x's type; none: no gate"),
        tensor("weight", "[D] or [G, D]", false, "f32, x's type or o's; none: 1"),
    ],
    outputs: &[tensor("o", "[B, T, G, D]", true, "y, in x's type or that of `out`")],
    settings: &[
        SettingSpec {
            name: "activation",
            kind: SettingKind::Choice(ACTIVATIONS),
            default: "silu",
            about: "activation of the gate",
        },
        SettingSpec {
            name: "norm_before_gate",
            kind: SettingKind::Bool,
            default: "false",
            about: "false: x is gated, then normalised (Mamba-2, Granite); true: the other way round (KDA)",
        },
        SettingSpec {
            name: "eps",
            kind: SettingKind::Number,
            default: "1e-5",
            about: "added to the mean square; above 0",
        },
        SettingSpec {
            name: "out",
            kind: SettingKind::Choice(OUTPUT_TYPES),
            default: "x's type",
            about: "16-bit type of o, for x in f32: the norm between an f32 residual stream and a 16-bit product",
        },
    ],
};

/// Activation of the gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Activation {
    /// g / (1 + e^-g).
    #[default]
    Silu,
    /// 1 / (1 + e^-g).
    Sigmoid,
}

/// A checked call of `rmsnorm`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNormProblem {
    /// Storage type of x and gate.
    pub x_dtype: DType,
    /// Storage type of o: that of x, or a 16-bit type if x is f32.
    pub out: DType,
    /// Sequences, B.
    pub batch: usize,
    /// Tokens of each, T.
    pub tokens: usize,
    /// Groups of a token, G.
    pub groups: usize,
    /// Channels of a group, D, over which the mean is taken.
    pub channels: usize,
    /// Activation of the gate, if there is one.
    pub gate: Option<Activation>,
    /// Whether the gate multiplies the normalised values; otherwise it multiplies x before the norm.
    pub norm_before_gate: bool,
    /// Type of the weights; they are 1 if `None`.
    pub weight: Option<DType>,
    /// Whether the weights are `[G, D]`; otherwise `[D]`, shared by the groups, or absent.
    pub weight_per_group: bool,
    /// Added to the mean square.
    pub eps: f64,
    /// Bytes of all tensors given.
    input_bytes: f64,
}

impl RmsNormProblem {
    /// Rows that are normalised, B T G.
    pub fn rows(&self) -> usize {
        self.batch * self.tokens * self.groups
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &RmsNormOptions) -> Result<Self, OpError> {
        let dtype = inputs.storage("x")?;
        let dims = [Dim::free("B"), Dim::free("T"), Dim::free("G"), Dim::free("D")];
        let [batch, tokens, groups, channels] = inputs.dims("x", dims)?;
        inputs.same_storage(&["gate"], dtype)?;
        if inputs.get("gate").is_some() {
            let like_x = [("B", batch), ("T", tokens), ("G", groups), ("D", channels)];
            inputs.dims("gate", like_x.map(|(name, size)| Dim::fixed(name, size)))?;
        }
        let out = out_type(options, dtype)?;
        let eps = options.eps;
        if eps <= 0.0 {
            return Err(refused(SPEC.name, "eps", eps, "a number above 0"));
        }
        Ok(Self {
            x_dtype: dtype,
            out,
            batch,
            tokens,
            groups,
            channels,
            gate: inputs.get("gate").map(|_| options.activation),
            norm_before_gate: options.norm_before_gate,
            weight: inputs.get("weight").map(Tensor::dtype),
            weight_per_group: weight_per_group(inputs, [dtype, out], (groups, channels))?,
            eps,
            input_bytes: inputs.bytes(),
        })
    }
}

/// The type of o.
fn out_type(options: &RmsNormOptions, dtype: DType) -> Result<DType, OpError> {
    let out = options.out.unwrap_or(dtype);
    if out == dtype || dtype == DType::F32 {
        return Ok(out);
    }
    let wanted = format!("{dtype} like `x`, for only f32 is rounded to another type");
    Err(refused(SPEC.name, "out", out, wanted))
}

/// Checks the weight; `types` are those of x and o.
fn weight_per_group(
    inputs: Inputs<'_>,
    types: [DType; 2],
    (groups, channels): (usize, usize),
) -> Result<bool, OpError> {
    let Some(weight) = inputs.get("weight") else { return Ok(false) };
    if weight.dtype() != DType::F32 && !types.contains(&weight.dtype()) {
        let [_, out] = types;
        let like = if out == types[0] { "x" } else { "o" };
        return Err(inputs.dtype_error("weight", &format!("f32 or {out} like `{like}`")));
    }
    let per_group = weight.shape().len() > 1;
    if per_group {
        inputs.dims("weight", [Dim::fixed("G", groups), Dim::fixed("D", channels)])?;
    } else {
        inputs.dims("weight", [Dim::fixed("D", channels)])?;
    }
    Ok(per_group)
}

impl Problem for RmsNormProblem {
    /// The type that results are rounded to.
    fn dtype(&self) -> DType {
        self.out
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let sizes = [self.batch, self.tokens, self.groups, self.channels];
        ["B", "T", "G", "D"].into_iter().zip(sizes.map(|size| size as u64)).collect()
    }

    /// Two for the mean square, one for its root, one for the weight and one for the gate; activations are not counted.
    fn flops(&self) -> f64 {
        let per_element = if self.gate.is_some() { 5 } else { 4 };
        (per_element * self.rows() * self.channels) as f64
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + (self.rows() * self.channels * self.out.bytes()) as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let shape = vec![self.batch, self.tokens, self.groups, self.channels];
        vec![OutputSpec { name: "o", shape, dtype: self.out }]
    }
}
