//! The contract of the op: its table, its problem and the checks of a call.

use super::convolution::ACTIVATIONS as CONV_ACTIVATIONS;
use super::{Convolution, LinearOptions, OutputType};
use crate::settings::refused;
use crate::spec::{setting, tensor};
use crate::{DType, Dim, Inputs, OpError, OpSpec, OutputSpec, Problem, SettingKind, Tensor};

pub(super) const ACTIVATIONS: &[&str] = &["none", "swiglu", "relu_squared"];
pub(super) const OUT: &[&str] = &["storage", "f32"];
/// Names of the outputs that the columns can be split into.
pub(super) const OUTPUTS: [&str; 6] = ["o", "o1", "o2", "o3", "o4", "o5"];

/// The op's table.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "linear",
    summary: "projection: o = residual + scale * act(rms(x) W^T + bias), its columns into one output or several",
    inputs: &[
        tensor("x", "[T, K]", true, "in the storage type, or f32; rows are independent"),
        tensor(
            "w",
            "[N, K]",
            true,
            "f32, bf16 or f16: the storage type; or e4m3, i8 or u4 (two per byte, the first in the low half), with bf16 storage; for swiglu the rows of the gates, then those of the ups",
        ),
        tensor(
            "w_scale",
            "[G, N]",
            false,
            "scales of quantized w, required for e4m3 (f32), i8 and u4 (f32, bf16 or f16): per row (G is 1), or per group of `w_group` columns (G is K / w_group, rounded up)",
        ),
        tensor(
            "w_zero",
            "[G, N]",
            false,
            "u8 zero points of u4 weights: a weight is w_scale * (w - w_zero); 8 without it",
        ),
        tensor(
            "w_offset",
            "[G, N]",
            false,
            "f32 offsets of u4 weights, instead of w_zero: a weight is w_scale * w - w_offset",
        ),
        tensor(
            "x_order",
            "[K]",
            false,
            "i32: the column of x, normalised, for each column of w in u4 or i8, for weights whose columns were sorted by group (act-order)",
        ),
        tensor("norm", "[K]", false, "RMSNorm weight of x, f32 or storage; absent: no norm"),
        tensor("bias", "[N]", false, "f32 or storage"),
        tensor("residual", "[T, M]", false, "f32; added last"),
        tensor(
            "conv_weight",
            "[C, W]",
            false,
            "taps of a causal convolution's decode step over C of the columns, each row the next token of a different sequence; W in 2..4, the newest token last; f32 or storage",
        ),
        tensor("conv_bias", "[C]", false, "f32 or storage"),
        tensor("initial_state", "[slots, C, W - 1]", false, "f32, the tokens before, newest last"),
        tensor("state_indices", "[T]", false, "i32 slot of each row; negative is padding"),
    ],
    outputs: &[
        tensor("o", "[T, M] or the first width of it", true, "M is N, and N / 2 with swiglu"),
        tensor("o1", "[T, width]", false, "the columns after those of `o`, and so on to `o5`"),
        tensor("o2", "[T, width]", false, "with `split`"),
        tensor("o3", "[T, width]", false, "with `split`"),
        tensor("o4", "[T, width]", false, "with `split`"),
        tensor("o5", "[T, width]", false, "with `split`"),
        tensor("final_state", "like initial_state", false, "f32; with `conv_weight`"),
    ],
    settings: &[
        setting(
            "activation",
            SettingKind::Choice(ACTIVATIONS),
            "none",
            "swiglu: silu(gate) * up; relu_squared: max(0, up)^2",
        ),
        setting(
            "w_group",
            SettingKind::Count,
            "128",
            "group size of w_scale, in columns; a multiple of 32, of 16 for w in i8",
        ),
        setting(
            "scale",
            SettingKind::Number,
            "1",
            "factor of the result, before the residual is added",
        ),
        setting("eps", SettingKind::Number, "1e-5", "added to the mean square of x; above 0"),
        setting(
            "norm_groups",
            SettingKind::Count,
            "1",
            "equal parts of K that are normalised separately",
        ),
        setting(
            "out",
            SettingKind::Choice(OUT),
            "storage, f32 with a residual",
            "type of the outputs",
        ),
        setting(
            "split",
            SettingKind::Counts,
            "M",
            "widths of the outputs that the M columns go to, six at most; not with a residual",
        ),
        setting("conv_first", SettingKind::Count, "0", "the first of the convolved columns"),
        setting(
            "conv_activation",
            SettingKind::Choice(CONV_ACTIVATIONS),
            "none",
            "activation of convolved columns; rows of padding are 0",
        ),
    ],
};

/// RMSNorm of x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Number of equal parts of K that are normalised separately.
    pub groups: usize,
    /// Added to the mean square.
    pub eps: f64,
}

/// Default group size of weight scales, in columns.
pub const SCALED: usize = 128;

/// Group sizes are a multiple of this, and of half of it for i8.
const GROUPED: usize = 32;

/// Granularity of the scales of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scales {
    /// A scale for each row of w.
    Rows,
    /// A scale for each group of [`LinearProblem::w_group`] columns of each row.
    Groups,
}

/// A checked call of `linear`, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearProblem {
    /// Storage type, to which x is rounded before the product: that of the weights, or bf16 if they are quantized.
    pub dtype: DType,
    /// Type of the weights: `dtype`, or e4m3, i8 or u4.
    pub w_dtype: DType,
    /// Scales of quantized weights; `None` for weights in `dtype`.
    pub scales: Option<Scales>,
    /// Type of the scales.
    pub scale_dtype: DType,
    /// Group size, in columns, if `scales` are of groups.
    pub w_group: usize,
    /// Whether weights have zero points.
    pub zeros: bool,
    /// Whether offsets are subtracted from scaled weights.
    pub offsets: bool,
    /// Whether `x_order` permutes the columns of x.
    pub ordered: bool,
    /// Type of x: `dtype` or f32.
    pub x_dtype: DType,
    /// Rows of x, T.
    pub tokens: usize,
    /// Width of x, K; above 0.
    pub inputs: usize,
    /// Rows of the weights, N.
    pub outputs: usize,
    /// SwiGLU: the first half of N gates the second.
    pub swiglu: bool,
    /// Squared ReLU.
    pub squared: bool,
    /// Factor of the result, before the residual is added.
    pub scale: f64,
    /// RMSNorm of x, if a `norm` is given.
    pub norm: Option<Norm>,
    /// Whether the weights of the norm are f32.
    pub norm_f32: bool,
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether a residual is added.
    pub residual: bool,
    /// Type of the outputs: `dtype` or f32.
    pub out: DType,
    /// Widths of the outputs, at least one and at most six, none of them 0 unless N is; their sum is M.
    pub widths: Vec<usize>,
    /// The convolution step, if there is one.
    pub convolution: Option<Convolution>,
    /// Bytes of all tensors given.
    input_bytes: f64,
}

impl LinearProblem {
    /// Columns of all outputs, M.
    pub fn columns(&self) -> usize {
        if self.swiglu { self.outputs / 2 } else { self.outputs }
    }

    /// Reads a call.
    ///
    /// # Errors
    /// [`OpError`] naming the tensor or setting.
    pub(super) fn parse(inputs: Inputs<'_>, options: &LinearOptions) -> Result<Self, OpError> {
        let w_dtype = inputs.tensor("w").dtype();
        let narrow = matches!(w_dtype, DType::E4m3 | DType::I8 | DType::U4);
        let dtype = if narrow { DType::Bf16 } else { inputs.storage("w")? };
        let [tokens, depth] = inputs.dims("x", [Dim::free("T"), Dim::free("K")])?;
        if depth == 0 {
            return Err(inputs.shape_error("x", "[T, K] with a K above 0"));
        }
        let [outputs, _] = inputs.dims("w", [Dim::free("N"), Dim::fixed("K", depth)])?;
        let x_dtype = inputs.storage("x")?;
        for name in ["x", "norm", "bias"] {
            let fits = |found| found == dtype || found == DType::F32;
            if inputs.get(name).is_some_and(|tensor| !fits(tensor.dtype())) {
                let either = if dtype == DType::F32 { "" } else { "f32 or " };
                let like =
                    if narrow { format!("with `w` in {w_dtype}") } else { "like `w`".to_owned() };
                return Err(inputs.dtype_error(name, &format!("{either}{dtype} {like}")));
            }
        }
        if w_dtype == DType::U4 && !depth.is_multiple_of(2) {
            return Err(inputs.shape_error("w", "[N, K] with an even K, of which two share a byte"));
        }
        let scales = scales(inputs, options, narrow.then_some(w_dtype), [outputs, depth])?;
        let swiglu = options.swiglu;
        if swiglu && !outputs.is_multiple_of(2) {
            return Err(inputs.shape_error("w", "[N, K] with an even N for swiglu"));
        }
        let columns = if swiglu { outputs / 2 } else { outputs };
        if inputs.get("norm").is_some() {
            inputs.dims("norm", [Dim::fixed("K", depth)])?;
        }
        if inputs.get("bias").is_some() {
            inputs.dims("bias", [Dim::fixed("N", outputs)])?;
        }
        let residual = inputs.get("residual").is_some();
        if residual {
            inputs.dims("residual", [Dim::fixed("T", tokens), Dim::fixed("M", columns)])?;
            if inputs.tensor("residual").dtype() != DType::F32 {
                return Err(inputs.dtype_error("residual", "f32"));
            }
        }
        let norm = norm(options, depth)?;
        let convolution = Convolution::parse(inputs, options, dtype, [tokens, columns])?;
        let LinearOptions { swiglu, squared, .. } = *options;
        if convolution.is_some() && (swiglu || squared || residual) {
            let what = "needs columns of a product alone, without an activation and `residual`";
            return Err(inputs.value_error("conv_weight", what));
        }
        Ok(Self {
            dtype,
            w_dtype,
            scales,
            scale_dtype: inputs.get("w_scale").map_or(DType::F32, Tensor::dtype),
            w_group: options.w_group,
            zeros: inputs.get("w_zero").is_some(),
            offsets: inputs.get("w_offset").is_some(),
            ordered: ordered(inputs, w_dtype, depth)?,
            x_dtype,
            tokens,
            inputs: depth,
            outputs,
            swiglu,
            squared,
            scale: options.scale,
            norm: inputs.get("norm").map(|_| norm),
            norm_f32: inputs.get("norm").is_some_and(|weight| weight.dtype() == DType::F32),
            bias: inputs.get("bias").is_some(),
            residual,
            out: out(options, dtype, residual)?,
            widths: widths(options, columns, residual)?,
            convolution,
            input_bytes: inputs.bytes(),
        })
    }
}

fn scales(
    inputs: Inputs<'_>,
    options: &LinearOptions,
    narrow: Option<DType>,
    [outputs, depth]: [usize; 2],
) -> Result<Option<Scales>, OpError> {
    let group = options.w_group;
    let least = if narrow == Some(DType::I8) { GROUPED / 2 } else { GROUPED };
    if group == 0 || !group.is_multiple_of(least) {
        return Err(refused(SPEC.name, "w_group", group, format!("a multiple of {least}")));
    }
    const BELOW: [(&str, DType); 2] = [("w_zero", DType::U8), ("w_offset", DType::F32)];
    let mut below = BELOW.iter().filter(|(name, _)| inputs.get(name).is_some());
    let below = match [below.next(), below.next()] {
        [Some((name, _)), _] if narrow != Some(DType::U4) => {
            return Err(inputs.value_error(name, "is for weights in u4"));
        }
        [_, Some((name, _))] => {
            return Err(inputs.value_error(name, "is given in addition to `w_zero`"));
        }
        [below, None] => below,
    };
    let Some(narrow) = narrow else {
        return match inputs.get("w_scale") {
            Some(_) => Err(inputs.value_error("w_scale", "is for weights in e4m3, i8 or u4")),
            None => Ok(None),
        };
    };
    let Some(given) = inputs.get("w_scale") else {
        let shape = "[G, N], for weights in e4m3, i8 or u4";
        return Err(OpError::MissingTensor { op: SPEC.name, tensor: "w_scale", shape });
    };
    let wanted = if narrow == DType::E4m3 { "f32" } else { "f32, bf16 or f16" };
    let halves = narrow != DType::E4m3 && matches!(given.dtype(), DType::Bf16 | DType::F16);
    if given.dtype() != DType::F32 && !halves {
        return Err(inputs.dtype_error("w_scale", wanted));
    }
    let groups = depth.div_ceil(group);
    let sizes = inputs.dims("w_scale", [Dim::free("G"), Dim::fixed("N", outputs)])?;
    if let Some((name, wanted)) = below {
        inputs.dims(name, [Dim::fixed("G", sizes[0]), Dim::fixed("N", outputs)])?;
        if inputs.tensor(name).dtype() != *wanted {
            return Err(inputs.dtype_error(name, &wanted.to_string()));
        }
    }
    match sizes {
        [1, _] => Ok(Some(Scales::Rows)),
        [given, _] if given == groups => Ok(Some(Scales::Groups)),
        _ => Err(inputs.shape_error("w_scale", &format!("[1 or {groups}, N={outputs}]"))),
    }
}

fn ordered(inputs: Inputs<'_>, w_dtype: DType, depth: usize) -> Result<bool, OpError> {
    let Some(order) = inputs.get("x_order") else { return Ok(false) };
    if !matches!(w_dtype, DType::I8 | DType::U4) {
        return Err(inputs.value_error("x_order", "is for weights in i8 or u4"));
    }
    inputs.dims("x_order", [Dim::fixed("K", depth)])?;
    if order.dtype() != DType::I32 {
        return Err(inputs.dtype_error("x_order", "i32"));
    }
    let inside = |column: &i32| usize::try_from(*column).is_ok_and(|column| column < depth);
    match order.view::<i32>().is_none_or(|order| order.iter().all(inside)) {
        true => Ok(true),
        false => Err(inputs.value_error("x_order", format!("has a column outside of K={depth}"))),
    }
}

fn norm(options: &LinearOptions, depth: usize) -> Result<Norm, OpError> {
    let Norm { groups, eps } = options.norm;
    if eps <= 0.0 {
        return Err(refused(SPEC.name, "eps", eps, "a number above 0"));
    }
    if groups == 0 || !depth.is_multiple_of(groups) {
        return Err(refused(SPEC.name, "norm_groups", groups, format!("a divisor of K={depth}")));
    }
    Ok(options.norm)
}

fn out(options: &LinearOptions, dtype: DType, residual: bool) -> Result<DType, OpError> {
    match options.out {
        Some(OutputType::F32) => Ok(DType::F32),
        Some(OutputType::Storage) if residual => {
            let wanted = "f32, as the `residual` that is added is";
            Err(refused(SPEC.name, "out", "storage", wanted))
        }
        None if residual => Ok(DType::F32),
        _ => Ok(dtype),
    }
}

fn widths(options: &LinearOptions, columns: usize, residual: bool) -> Result<Vec<usize>, OpError> {
    let widths = options.widths();
    if widths.is_empty() {
        return Ok(vec![columns]);
    }
    let wanted = if residual {
        "no split with a `residual`".to_owned()
    } else if widths.iter().sum::<usize>() != columns {
        format!("widths that sum up to M={columns}")
    } else {
        return Ok(widths.to_vec());
    };
    Err(refused(SPEC.name, "split", listed(widths), wanted))
}

/// Widths as a setting's value: `4096,64`.
pub(super) fn listed(widths: &[usize]) -> String {
    widths.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

impl Problem for LinearProblem {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        let sizes = [self.tokens, self.inputs, self.outputs];
        ["T", "K", "N"].into_iter().zip(sizes.map(|size| size as u64)).collect()
    }

    /// 2 T N K: the product alone. The prologue and epilogue take a few operations per element.
    fn flops(&self) -> f64 {
        2.0 * self.tokens as f64 * self.inputs as f64 * self.outputs as f64
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + self.outputs().iter().map(OutputSpec::bytes).sum::<usize>() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        let spec = |(name, width): (&'static str, &usize)| OutputSpec {
            name,
            shape: vec![self.tokens, *width],
            dtype: self.out,
        };
        let state = self.convolution.as_ref().map(Convolution::final_state);
        OUTPUTS.into_iter().zip(&self.widths).map(spec).chain(state).collect()
    }
}
