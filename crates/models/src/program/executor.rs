//! The interface between layer programs and backends: weights, states and calls.

use super::MixerError;
use crate::engine::LogitsSelection;
use crate::layers::{Experts, GatedMlp};
use crate::params::{ParamId, Projection, RowRange};
use crate::{Architecture, ModelError, Rope};
use ops::attention::Mask;
use ops::conv1d::{Activation, Conv1dCall, Conv1dOptions};
use ops::linear::{Norm, NormPrologue};
use ops::{DType, OpError, States, Tensor, Typed, rmsnorm};
use std::ops::Range;

/// A backend: its types of weights, and the executor of a step.
pub(crate) trait Backend: Sized + 'static {
    /// `y = x W^T (+ bias)`.
    type Projection: Send;
    /// One matrix per head.
    type Heads: Send;
    /// Routed experts, without their router.
    type Experts: Send;
    /// One step.
    type Run<'a>: Executor<Self>;
}

/// The states of one op in one layer, one row per slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateId(pub(crate) usize);

/// The keys and values of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheId(pub(crate) usize);

/// The location of a cache's values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Values {
    /// A separate pool, `[kv_heads, dim]` per token.
    Separate([usize; 2]),
    /// The first channels of the keys.
    InKeys(usize),
}

/// Loads the weights of a model in the layout of a backend's kernels.
pub(crate) trait Loader<B: Backend> {
    /// The architecture of the model.
    fn architecture(&self) -> &Architecture;
    /// Concatenated parameters in float32, as a tensor of this shape.
    fn vectors(&self, ids: &[ParamId], shape: &[usize]) -> Result<Tensor, ModelError>;
    /// The values of a parameter, on the host.
    fn read(&self, id: ParamId) -> Result<Vec<f32>, ModelError>;
    /// Moves a float32 tensor from the host to the backend's memory.
    fn transfer(&self, values: Tensor) -> Result<Tensor, ModelError>;
    /// A projection.
    fn projection(&self, of: &Projection) -> Result<B::Projection, ModelError>;
    /// The projection to logits.
    fn head(&self, of: &Projection) -> Result<B::Projection, ModelError> {
        self.projection(of)
    }
    /// A projection for [`Executor::project_gated`]: its first half gates the second.
    fn gated(&self, of: &Projection) -> Result<B::Projection, ModelError>;
    /// One matrix per head `[outputs, width]`, or the transpose of `[inputs, width]`.
    fn heads(
        &self,
        of: &[RowRange],
        width: usize,
        transposed: bool,
    ) -> Result<B::Heads, ModelError>;
    /// Routed experts, with the shared experts as additional experts if the kernels support it; also returns whether
    /// they do.
    fn experts(
        &self,
        of: &Experts,
        shared: Option<&GatedMlp>,
    ) -> Result<(B::Experts, bool), ModelError>;
    /// A state of this shape for each slot, in float32 or another type of [`crate::EngineKind::states`]; zero before a
    /// sequence's first token.
    fn states_in(&mut self, dtype: DType, shape: &[usize]) -> Result<StateId, ModelError>;
    /// A cache for the keys of all tokens, `[kv_heads, dim]` each, and for their values.
    fn cache(&mut self, keys: [usize; 2], values: Values) -> Result<CacheId, ModelError>;

    /// [`Loader::states_in`] in float32.
    fn states(&mut self, shape: &[usize]) -> Result<StateId, ModelError> {
        self.states_in(DType::F32, shape)
    }

    /// A vector computed from a parameter's values.
    fn mapped(&self, id: ParamId, map: impl Fn(f32) -> f32) -> Result<Tensor, ModelError> {
        let values: Vec<f32> = self.read(id)?.into_iter().map(map).collect();
        self.transfer(Tensor::new(&[values.len()], values))
    }

    /// A rotary embedding.
    fn rotation(&self, of: &Rope) -> Result<Rotation, ModelError> {
        let high = of.frequencies.iter().map(|frequency| *frequency as f32);
        let rest = |frequency: &f64| (frequency - f64::from(*frequency as f32)) as f32;
        let both: Vec<f32> = high.chain(of.frequencies.iter().map(rest)).collect();
        let frequencies = self.transfer(Tensor::new(&[2, of.frequencies.len()], both))?;
        Ok(Rotation { frequencies, factor: of.factor })
    }

    /// Convolution taps of channels `[channels, width]`, each times a factor.
    fn taps_times(
        &self,
        id: ParamId,
        [channels, width]: [usize; 2],
        factor: impl Fn(usize) -> f64,
    ) -> Result<Tensor, ModelError> {
        let mut taps = self.read(id)?;
        for (channel, taps) in taps.chunks_mut(width).enumerate() {
            taps.iter_mut().for_each(|tap| *tap = (f64::from(*tap) * factor(channel)) as f32);
        }
        self.transfer(Tensor::new(&[channels, width], taps))
    }

    /// A whole parameter as a vector in float32.
    fn vector(&self, id: ParamId) -> Result<Tensor, ModelError> {
        self.vectors(&[id], &[self.architecture().params.get(id).len()])
    }

    /// RMSNorm of a row's groups with the model's epsilon.
    fn norm(&self, id: ParamId, groups: usize) -> Result<RmsNorm, ModelError> {
        self.norm_times(id, groups, 1.0)
    }

    /// [`Loader::norm`] with its output times a factor.
    fn norm_times(&self, id: ParamId, groups: usize, factor: f64) -> Result<RmsNorm, ModelError> {
        let add_one = self.architecture().params.norms_add_one;
        if !add_one && factor == 1.0 {
            return self.plain_norm(id, groups);
        }
        let norm = Norm { groups, eps: self.architecture().eps };
        let more = if add_one { 1.0 } else { 0.0 };
        let weight = |weight: f32| ((more + f64::from(weight)) * factor) as f32;
        Ok(RmsNorm { weight: self.mapped(id, weight)?, norm, ranks: 1 })
    }

    /// RMSNorm with the plain weight, without an offset that the model may add to others.
    fn plain_norm(&self, id: ParamId, groups: usize) -> Result<RmsNorm, ModelError> {
        self.plain_norm_with(id, groups, None)
    }

    /// [`Loader::plain_norm`] with another epsilon than the model's.
    fn plain_norm_with(
        &self,
        id: ParamId,
        groups: usize,
        eps: Option<f64>,
    ) -> Result<RmsNorm, ModelError> {
        let norm = Norm { groups, eps: eps.unwrap_or(self.architecture().eps) };
        Ok(RmsNorm { weight: self.vector(id)?, norm, ranks: 1 })
    }

    /// A convolution with the taps of two parameters, channels concatenated.
    fn convolution(
        &mut self,
        taps: &[ParamId],
        bias: Option<ParamId>,
        [channels, width]: [usize; 2],
    ) -> Result<Convolution, ModelError> {
        let weight = self.vectors(taps, &[channels, width])?;
        self.convolution_by(weight, bias)
    }

    /// A convolution with loaded taps `[channels, width]`.
    fn convolution_by(
        &mut self,
        weight: Tensor,
        bias: Option<ParamId>,
    ) -> Result<Convolution, ModelError> {
        let [channels, width] = [weight.shape()[0], weight.shape()[1]];
        Ok(Convolution {
            weight,
            bias: bias.map(|bias| self.vector(bias)).transpose()?,
            silu: true,
            states: self.states(&[channels, width - 1])?,
        })
    }
}

/// Rotary embedding of the first channels of each head: pair `(i, i + pairs)` by the angle `position * frequency i`.
pub(crate) struct Rotation {
    /// Radians per position `[2, pairs]` in float32, each the sum of two: at positions of many thousands one float32 is
    /// too imprecise.
    pub(crate) frequencies: Tensor,
    /// Multiplier of cosines and sines.
    pub(crate) factor: f64,
}

/// RMSNorm.
pub(crate) struct RmsNorm {
    /// Its length is the row's width, or a group's.
    pub(crate) weight: Tensor,
    pub(crate) norm: Norm,
    /// Number of ranks that share the row. If there are several, only [`Executor::add`] takes such rows: its output is
    /// scaled once the ranks' sums of squares are reduced together with the sums.
    pub(crate) ranks: usize,
}

impl RmsNorm {
    /// The norm as a projection's prologue.
    pub(crate) fn prologue(&self) -> NormPrologue<'_> {
        NormPrologue { weight: &self.weight, norm: self.norm }
    }
}

/// A causal convolution.
pub(crate) struct Convolution {
    /// `[channels, taps]`.
    pub(crate) weight: Tensor,
    /// `[channels]`.
    pub(crate) bias: Option<Tensor>,
    /// Whether SiLU follows it.
    pub(crate) silu: bool,
    /// All tokens under its taps except the newest, `[channels, taps - 1]`.
    pub(crate) states: StateId,
}

/// The call of a convolution over tokens `[.., channels]`, with or without SiLU.
pub(crate) fn convolve<'a>(
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
    silu: bool,
) -> Conv1dCall<'a> {
    let activation = if silu { Activation::Silu } else { Activation::None };
    Conv1dCall {
        x,
        weight,
        bias,
        offsets: None,
        states: States::default(),
        positions: None,
        options: Conv1dOptions { activation, ..Conv1dOptions::default() },
        o: None,
    }
}

/// Input rows of a call, with an optional norm, gate and factor that are applied on the fly, in this order.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// `None` for the residual stream.
    pub(crate) rows: Option<&'a Tensor>,
    pub(crate) norm: Option<&'a RmsNorm>,
    /// Multiplies the normalized rows.
    pub(crate) gate: Option<(&'a Tensor, rmsnorm::Activation)>,
    /// Multiplier of the output of a projection without a bias and without gating; other calls require 1.
    pub(crate) factor: f64,
}

impl<'a> Input<'a> {
    /// The normalized residual stream.
    pub(crate) fn stream(norm: &'a RmsNorm) -> Self {
        Self { rows: None, norm: Some(norm), gate: None, factor: 1.0 }
    }

    /// Rows without a norm, a gate or a factor.
    pub(crate) fn rows(x: &'a Tensor) -> Self {
        Self { rows: Some(x), norm: None, gate: None, factor: 1.0 }
    }

    /// The input times a factor.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { factor: self.factor * factor, ..self }
    }

    /// Normalized rows.
    pub(crate) fn normed(x: &'a Tensor, norm: &'a RmsNorm) -> Self {
        Self { norm: Some(norm), ..Self::rows(x) }
    }
}

/// New keys and values to write into a cache.
pub(crate) struct Append<'a> {
    /// `[kv_heads, dim]` per token.
    pub(crate) keys: &'a mut Tensor,
    /// `[width]` per token, appended to its keys.
    pub(crate) more: Option<&'a Tensor>,
    /// `[kv_heads, dim]` per token; `None` if the keys contain the values.
    pub(crate) values: Option<&'a Tensor>,
    /// Queries `[heads, dim]` and the rotary embedding of queries and keys, applied in place.
    pub(crate) rotated: Option<(&'a mut Tensor, &'a Rotation)>,
}

/// Causal attention over a cache.
pub(crate) struct Attend<'a> {
    /// `[heads, dim]` per token.
    pub(crate) queries: &'a Tensor,
    /// This step's keys and values, which are all keys if no sequence has cached tokens.
    pub(crate) new: Option<[&'a Tensor; 2]>,
    /// Scale of the products.
    pub(crate) scale: f64,
    /// Sliding window: number of tokens that a query attends to, its own included; `None` for all.
    pub(crate) window: Option<usize>,
    /// Soft cap of the products.
    pub(crate) softcap: Option<f64>,
    /// Attention sinks: logits of each head that take part in its softmax without a value `[heads]`.
    pub(crate) sinks: Option<&'a Tensor>,
}

impl Attend<'_> {
    /// The mask of its queries.
    pub(crate) fn mask(&self) -> Mask {
        Mask { window_left: self.window.map(|window| window - 1), ..Mask::CAUSAL }
    }
}

/// The tensors of `N` parts.
///
/// # Panics
/// When there are more or fewer, which only an incorrect executor returns.
pub(crate) fn exactly<const N: usize>(tensors: Vec<Tensor>) -> [Tensor; N] {
    match tensors.try_into() {
        Ok(tensors) => tensors,
        Err(tensors) => panic!("{} tensors for {N} parts", Vec::len(&tensors)),
    }
}

/// Runs the calls of a step in order. A backend runs each immediately, or plans a launch.
///
/// Returned tensors have the dimensions of one token last; the leading dimensions are those of the backend's ops. Their
/// type is that of activations, float32 on the CPU and the weights' type on a GPU, unless the call says otherwise.
/// Additions go to the residual stream `[tokens, hidden]` in float32, times the model's residual multiplier.
pub(crate) trait Executor<B: Backend> {
    /// Projects; splits the columns into parts of these dimensions.
    fn project<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], OpError>;

    /// [`Executor::project`] for rows of which each rank has some columns, followed by an all-reduce.
    fn project_summed<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], MixerError>;

    /// [`Executor::project`] with one part, in float32.
    fn project_wide(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        part: &[usize],
    ) -> Result<Tensor, OpError>;

    /// [`Executor::project`], with some consecutive parts passed through a convolution over all of their channels.
    fn project_convolved<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
        convolved: (&Convolution, Range<usize>),
    ) -> Result<[Tensor; N], OpError>;

    /// Convolves rows `[channels]` of tokens.
    fn convolve(&mut self, by: &Convolution, x: &Tensor) -> Result<Tensor, OpError>;

    /// The element-wise product.
    fn multiply(&mut self, of: [&Tensor; 2]) -> Result<Tensor, OpError>;

    /// `silu(gate) * up` of a projection to both.
    fn project_gated(&mut self, of: &B::Projection, x: Input<'_>) -> Result<Tensor, OpError>;

    /// `gelu(gate) * up` of a projection to both, with GELU in its tanh form.
    fn project_gelu_gated(&mut self, of: &B::Projection, x: Input<'_>) -> Result<Tensor, OpError>;

    /// `max(0, y)^2` of a projection's y.
    fn project_squared(&mut self, of: &B::Projection, x: Input<'_>) -> Result<Tensor, OpError>;

    /// Multiplies each token's row by `sigmoid(w . h)` of its row of h; w `[width of h]`.
    fn gate_tokens(&mut self, rows: &mut Tensor, h: &Tensor, w: &Tensor) -> Result<(), OpError>;

    /// Adds a projection to the residual stream.
    fn add(&mut self, of: &B::Projection, x: Input<'_>) -> Result<(), OpError>;

    /// Sets the residual stream `[tokens, hidden]` aside and starts one of zeros, for a part whose output is normalized.
    fn begin_branch(&mut self) -> Result<Tensor, OpError>;

    /// Normalizes the residual stream since [`Executor::begin_branch`] and adds it to the one that was set aside.
    fn end_branch(&mut self, stream: Tensor, norm: &RmsNorm) -> Result<(), OpError>;

    /// Multiplies the residual stream by a scalar `[1]`; GPUs refuse the model before.
    fn scale_stream(&mut self, _by: &Tensor) -> Result<(), OpError> {
        let (tensor, what) = ("x".to_owned(), "cannot be multiplied by a scalar".to_owned());
        Err(OpError::Value { op: "model", tensor, what })
    }

    /// The next added projection is not the last before the all-reduce.
    fn adds_more(&mut self) {}

    /// Multiplies each head's channels `[heads, inputs + tail]` by its matrix: `[heads, outputs + tail]`. The tail is
    /// copied.
    fn multiply_heads(&mut self, of: &B::Heads, x: &Tensor, tail: usize)
    -> Result<Tensor, OpError>;

    /// Normalized and gated rows as a tensor.
    fn norm(&mut self, x: Input<'_>) -> Result<Tensor, OpError>;

    /// Runs a recurrent op with `initial_state`, `final_state` and `o`, and advances the states. The executor sets
    /// offsets, states and output.
    fn advance<C: Typed>(
        &mut self,
        states: StateId,
        call: &C,
        part: &[usize],
    ) -> Result<Tensor, OpError>;

    /// Rotates channels of each head `[heads, dim]`, the first of which is `first`.
    fn rotate(&mut self, x: &mut Tensor, first: usize, by: &Rotation) -> Result<(), OpError>;

    /// Writes keys and values into a cache.
    fn append(&mut self, cache: CacheId, new: Append<'_>) -> Result<(), OpError>;

    /// Computes attention; returns `[heads, value dim]` per token.
    fn attend(&mut self, cache: CacheId, call: Attend<'_>) -> Result<Tensor, OpError>;

    /// Adds the outputs of routed experts, chosen by each token's logits, and of shared experts for `h` to the residual
    /// stream.
    fn add_experts(&mut self, of: &B::Experts, h: &Tensor, logits: &Tensor) -> Result<(), OpError>;

    /// The weighted sum of routed experts' outputs, chosen by each token's logits.
    fn experts(
        &mut self,
        of: &B::Experts,
        rows: &Tensor,
        logits: &Tensor,
    ) -> Result<Tensor, OpError>;

    /// Logits `[rows, vocabulary]` in float32 of all rows of the residual stream, or of the last one of each sequence.
    fn logits(
        &mut self,
        of: &B::Projection,
        norm: &RmsNorm,
        wanted: LogitsSelection,
    ) -> Result<Tensor, ModelError>;

    /// All-reduces what ranks have added to the residual stream since the last all-reduce. A no-op without ranks.
    ///
    /// # Errors
    /// [`ModelError::Rank`] of one that has ended or failed.
    fn sum_over_ranks(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Receives the residual stream from the previous process (pipeline parallel).
    ///
    /// # Errors
    /// As [`Executor::sum_over_ranks`].
    fn recv_hidden(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Sends the residual stream to the next process (pipeline parallel) and returns the logits of the last one;
    /// returns `logits` unchanged if the head is here.
    ///
    /// # Errors
    /// As [`Executor::sum_over_ranks`].
    fn send_hidden(&mut self, logits: Option<Tensor>) -> Result<Tensor, ModelError> {
        logits.ok_or_else(|| ModelError::fault("the last layers are not here"))
    }

    /// Called at the end of each layer.
    fn end_layer(&mut self) -> Result<(), OpError> {
        Ok(())
    }
}
