//! A call of `linear` in its own words.

use super::problem::{ACTIVATIONS, OUT, OUTPUTS, listed};
use super::{LinearOp, Norm, SCALED, convolution};
use crate::op::given;
use crate::settings::refused;
use crate::{Given, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "linear";

/// Type of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Out {
    /// That of the weights.
    Storage,
    /// float32.
    F32,
}

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearOptions {
    /// Whether the first half of the columns gates the second.
    pub swiglu: bool,
    /// Whether columns are squared, those below 0 as 0.
    pub squared: bool,
    /// Columns of w with a factor of their own, where a row has several.
    pub w_group: usize,
    /// Factor of what is added to the residual.
    pub scale: f64,
    /// How x is normalised where there is a norm.
    pub norm: Norm,
    /// Type of the outputs; the weights', and f32 beside a residual, where it is none.
    pub out: Option<Out>,
    /// Widths of the outputs, up to the first 0; all columns go to one where there are none.
    pub split: [usize; OUTPUTS.len()],
    /// The first of the convolved columns.
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
                "f32" => Out::F32,
                _ => Out::Storage,
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

/// RMSNorm of x before it is multiplied.
#[derive(Debug, Clone, Copy)]
pub struct Normed<'a> {
    /// `[K]`.
    pub weight: &'a Tensor,
    /// Groups and epsilon.
    pub norm: Norm,
}

/// A causal convolution's step over some of the columns, each row the next token of a sequence of its own.
#[derive(Debug, Clone, Copy)]
pub struct Convolved<'a> {
    /// Taps `[C, W]`, the newest token last.
    pub weight: &'a Tensor,
    /// `[C]`.
    pub bias: Option<&'a Tensor>,
    /// The first of the columns.
    pub first: usize,
    /// Whether silu is applied to the sums.
    pub silu: bool,
    /// The tokens before `[slots, C, W - 1]`.
    pub states: States<'a>,
}

/// What becomes of the columns of a product.
#[derive(Debug, Clone, Copy)]
pub enum Finish<'a> {
    /// They are the outputs.
    Stored,
    /// The first half gates the second, `silu(gate) * up`.
    Gated,
    /// They are squared, those below 0 as 0.
    Squared,
    /// They are added to `[T, M]` in f32.
    Added(&'a Tensor),
    /// Some of them are convolved.
    Convolved(Convolved<'a>),
}

/// A projection, with what stands around it.
#[derive(Debug, Clone, Copy)]
pub struct LinearCall<'a> {
    /// `[T, K]`.
    pub x: &'a Tensor,
    /// `[N, K]`.
    pub w: &'a Tensor,
    /// Factors of w in e4m3, i8 or u4, `[1, N]`, or `[K / w_group, N]` rounded up.
    pub w_scale: Option<&'a Tensor>,
    /// Zero points of w in u4, shaped as its factors.
    pub w_zero: Option<&'a Tensor>,
    /// What is subtracted from w in u4 times its factors, in the place of zero points, shaped as these.
    pub w_offset: Option<&'a Tensor>,
    /// Columns of w with a factor of their own, where a row has several.
    pub w_group: usize,
    /// Which column of x each of w in u4 or i8 is multiplied with, `[K]`.
    pub x_order: Option<&'a Tensor>,
    /// `[N]`.
    pub bias: Option<&'a Tensor>,
    /// RMSNorm of x; none: x as it is.
    pub norm: Option<Normed<'a>>,
    /// Factor of the columns.
    pub scale: f64,
    /// What becomes of them.
    pub finish: Finish<'a>,
    /// Type of the outputs; the weights', and f32 beside a residual, where it is none.
    pub out: Option<Out>,
    /// Widths of the outputs, up to the first 0; all columns go to one where there are none.
    pub split: [usize; OUTPUTS.len()],
    /// Where each output goes on a GPU.
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
            finish: Finish::Stored,
            out: None,
            split,
            outputs,
        }
    }

    /// The same, its columns into these tensors `[T, width]` on a GPU.
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

    fn given(&self) -> Given<'_, LinearOp> {
        let default = LinearOptions::default();
        let Self { scale, out, split, finish, w_group, .. } = *self;
        let norm = self.norm.map_or(default.norm, |norm| norm.norm);
        let swiglu = matches!(finish, Finish::Gated);
        let squared = matches!(finish, Finish::Squared);
        let options =
            LinearOptions { swiglu, squared, w_group, scale, norm, out, split, ..default };
        let (options, convolved) = match finish {
            Finish::Convolved(convolved) => {
                let Convolved { first: conv_first, silu: conv_silu, .. } = convolved;
                (LinearOptions { conv_first, conv_silu, ..options }, Some(convolved))
            }
            _ => (options, None),
        };
        let residual = match finish {
            Finish::Added(residual) => Some(residual),
            _ => None,
        };
        let [o, o1, o2, o3, o4, o5] = self.outputs;
        let mut given = given!(LinearOp, options, {
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
