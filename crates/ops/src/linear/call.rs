//! The typed call of `linear`: a field for each tensor and option.

use super::problem::{ACTIVATIONS, OUT, OUTPUTS, listed};
use super::{LinearOp, Norm, SCALED, convolution};
use crate::op::call_tensors;
use crate::settings::refused;
use crate::{CallTensors, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "linear";

/// Type of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputType {
    /// The storage type.
    Storage,
    /// float32.
    F32,
}

/// Options of a `linear` call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearOptions {
    /// SwiGLU: the first half of the columns gates the second.
    pub swiglu: bool,
    /// Squared ReLU.
    pub squared: bool,
    /// Group size of `w_scale`, in columns of w, if a row has several scales.
    pub w_group: usize,
    /// Factor of the result, before the residual is added.
    pub scale: f64,
    /// Groups and epsilon of the RMSNorm of x.
    pub norm: Norm,
    /// Type of the outputs. If `None`, the storage type, or f32 with a residual.
    pub out: Option<OutputType>,
    /// Widths of the outputs, up to the first 0; all 0 for a single output.
    pub split: [usize; OUTPUTS.len()],
    /// First of the convolved columns.
    pub conv_first: usize,
    /// Whether silu is applied to convolved columns.
    pub conv_silu: bool,
}

impl Default for LinearOptions {
    fn default() -> Self {
        Self {
            swiglu: false,
            squared: false,
            w_group: SCALED,
            scale: 1.0,
            norm: Norm { groups: 1, eps: 1e-5 },
            out: None,
            split: [0; OUTPUTS.len()],
            conv_first: 0,
            conv_silu: false,
        }
    }
}

impl LinearOptions {
    pub(super) fn widths(&self) -> &[usize] {
        let count = self.split.iter().take_while(|width| **width > 0).count();
        &self.split[..count]
    }
}

impl Options for LinearOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        let default = Self::default();
        let widths = settings.counts(OP, "split")?.unwrap_or_default();
        let mut split = [0; OUTPUTS.len()];
        match split.get_mut(..widths.len()) {
            Some(split) => split.copy_from_slice(&widths),
            None => {
                let wanted = format!("at most {} widths", OUTPUTS.len());
                return Err(refused(OP, "split", listed(&widths), wanted));
            }
        }
        let activation = settings.choice(OP, "activation", ACTIVATIONS)?;
        Ok(Self {
            swiglu: activation == Some("swiglu"),
            squared: activation == Some("relu_squared"),
            w_group: settings.count(OP, "w_group")?.unwrap_or(default.w_group),
            scale: settings.number(OP, "scale")?.unwrap_or(default.scale),
            norm: Norm {
                groups: settings.count(OP, "norm_groups")?.unwrap_or(default.norm.groups),
                eps: settings.number(OP, "eps")?.unwrap_or(default.norm.eps),
            },
            out: settings.choice(OP, "out", OUT)?.map(|out| match out {
                "f32" => OutputType::F32,
                _ => OutputType::Storage,
            }),
            split,
            conv_first: settings.count(OP, "conv_first")?.unwrap_or(0),
            conv_silu: settings.choice(OP, "conv_activation", convolution::ACTIVATIONS)?
                == Some("silu"),
        })
    }

    fn key(&self, key: &mut Key) {
        let flags = [self.swiglu, self.conv_silu, self.squared];
        key.word(flags.into_iter().rev().fold(0, |all, flag| 2 * all + u64::from(flag)));
        key.number(self.scale);
        key.number(self.norm.eps);
        key.word(self.norm.groups as u64);
        key.word(self.w_group as u64);
        key.word(self.out.map_or(0, |out| out as u64 + 1));
        self.split.iter().for_each(|width| key.word(*width as u64));
        key.word(self.conv_first as u64);
    }
}

/// RMSNorm of x in the prologue.
#[derive(Debug, Clone, Copy)]
pub struct NormPrologue<'a> {
    /// `[K]`.
    pub weight: &'a Tensor,
    /// Groups and epsilon.
    pub norm: Norm,
}

/// One decode step of a causal convolution over some of the columns in the epilogue; each row is the next token of a different
/// sequence.
#[derive(Debug, Clone, Copy)]
pub struct ConvStep<'a> {
    /// Taps `[C, W]`, the newest token last.
    pub weight: &'a Tensor,
    /// `[C]`.
    pub bias: Option<&'a Tensor>,
    /// First of the convolved columns.
    pub first: usize,
    /// Whether silu is applied to the sums.
    pub silu: bool,
    /// Previous tokens `[slots, C, W - 1]`, f32, the newest last.
    pub states: States<'a>,
}

/// Epilogue of the product.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// None: the columns are the outputs.
    Identity,
    /// SwiGLU, `silu(gate) * up`: the first half of the columns is the gate.
    SwiGlu,
    /// Squared ReLU.
    SquaredRelu,
    /// Adds the residual `[T, M]`, f32.
    Residual(&'a Tensor),
    /// A convolution step over some of the columns.
    ConvStep(ConvStep<'a>),
}

/// Linear projection with a fused prologue (RMSNorm) and epilogue (bias, activation, scale, residual, convolution step).
#[derive(Debug, Clone, Copy)]
pub struct LinearCall<'a> {
    /// Input `[T, K]`.
    pub x: &'a Tensor,
    /// Weights `[N, K]`.
    pub w: &'a Tensor,
    /// Scales of quantized w: per row `[1, N]`, or per group `[ceil(K / w_group), N]`.
    pub w_scale: Option<&'a Tensor>,
    /// Zero points of u4 weights, u8, shaped like `w_scale`: a weight is w_scale * (w - w_zero).
    pub w_zero: Option<&'a Tensor>,
    /// Offsets of u4 weights, f32, shaped like `w_scale`: a weight is w_scale * w - w_offset. Excludes `w_zero`.
    pub w_offset: Option<&'a Tensor>,
    /// Group size of `w_scale`, in columns of w, if a row has several scales.
    pub w_group: usize,
    /// Permutation of the columns of x, `[K]`, i32: column k of w (i8 or u4) multiplies column `x_order[k]` of x (act-order).
    pub x_order: Option<&'a Tensor>,
    /// Bias `[N]`.
    pub bias: Option<&'a Tensor>,
    /// RMSNorm of x.
    pub norm: Option<NormPrologue<'a>>,
    /// Factor of the result, before a residual is added.
    pub scale: f64,
    /// Epilogue.
    pub epilogue: Epilogue<'a>,
    /// Type of the outputs. If `None`, the storage type, or f32 with a residual.
    pub out: Option<OutputType>,
    /// Widths of the outputs, up to the first 0; all 0 for a single output.
    pub split: [usize; OUTPUTS.len()],
    /// Outputs on a GPU, each `[T, width]`.
    pub outputs: [Option<&'a Tensor>; OUTPUTS.len()],
}

impl<'a> LinearCall<'a> {
    /// `x W^T`.
    pub fn new(x: &'a Tensor, w: &'a Tensor) -> Self {
        let (split, outputs) = ([0; OUTPUTS.len()], [None; OUTPUTS.len()]);
        Self {
            x,
            w,
            w_scale: None,
            w_zero: None,
            w_offset: None,
            w_group: SCALED,
            x_order: None,
            bias: None,
            norm: None,
            scale: 1.0,
            epilogue: Epilogue::Identity,
            out: None,
            split,
            outputs,
        }
    }

    /// Writes the columns into these GPU tensors, each `[T, width]`.
    ///
    /// # Panics
    /// When there are more than six.
    #[must_use]
    pub fn into(mut self, outputs: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let mut count = 0;
        for output in outputs {
            self.outputs[count] = Some(output);
            self.split[count] = output.shape().last().copied().unwrap_or(0);
            count += 1;
        }
        if count == 1 {
            self.split[0] = 0;
        }
        self
    }
}

impl Typed for LinearCall<'_> {
    type Family = LinearOp;

    fn call_tensors(&self) -> CallTensors<'_, LinearOp> {
        let default = LinearOptions::default();
        let Self { scale, out, split, epilogue, w_group, .. } = *self;
        let norm = self.norm.map_or(default.norm, |norm| norm.norm);
        let swiglu = matches!(epilogue, Epilogue::SwiGlu);
        let squared = matches!(epilogue, Epilogue::SquaredRelu);
        let options =
            LinearOptions { swiglu, squared, w_group, scale, norm, out, split, ..default };
        let (options, convolved) = match epilogue {
            Epilogue::ConvStep(convolved) => {
                let ConvStep { first: conv_first, silu: conv_silu, .. } = convolved;
                (LinearOptions { conv_first, conv_silu, ..options }, Some(convolved))
            }
            _ => (options, None),
        };
        let residual = match epilogue {
            Epilogue::Residual(residual) => Some(residual),
            _ => None,
        };
        let [o, o1, o2, o3, o4, o5] = self.outputs;
        let mut given = call_tensors!(LinearOp, options, {
            "x": self.x,
            "w": self.w,
            "w_scale": self.w_scale,
            "w_zero": self.w_zero,
            "w_offset": self.w_offset,
            "x_order": self.x_order,
            "bias": self.bias,
            "norm": self.norm.map(|norm| norm.weight),
            "residual": residual,
            "conv_weight": convolved.map(|convolved| convolved.weight),
            "conv_bias": convolved.and_then(|convolved| convolved.bias),
        } -> { "o": o, "o1": o1, "o2": o2, "o3": o3, "o4": o4, "o5": o5 });
        if let Some(convolved) = &convolved {
            given.states(&convolved.states);
        }
        given
    }
}
