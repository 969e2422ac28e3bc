//! What programs are made of: the calls that a mixer asks for, and what it holds.

use super::Unmixed;
use crate::engine::Wanted;
use crate::layers::{Experts, GatedMlp};
use crate::params::{ParamId, Projection, Rows};
use crate::{Architecture, ModelError, Rope};
use kernels::attention::Mask;
use kernels::conv1d::{Activation, Conv1dCall, Conv1dOptions};
use kernels::linear::{Norm, Normed};
use kernels::{DType, OpError, States, Tensor, Typed, rmsnorm};
use std::ops::Range;

/// A backend that runs programs: how its kernels want weights, and what runs a step.
pub(crate) trait Backend: Sized + 'static {
    /// `y = x W^T (+ bias)`.
    type Projection: Send;
    /// A matrix of each head.
    type Heads: Send;
    /// Routed experts, without their router.
    type Experts: Send;
    /// One step.
    type Run<'a>: Executor<Self>;
}

/// The states of one op in one layer, a row for each slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateId(pub(crate) usize);

/// The keys and values of one layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheId(pub(crate) usize);

/// Where the values of a cache lie.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Values {
    /// Beside the keys, `[kv_heads, dim]` a token.
    Apart([usize; 2]),
    /// In the keys, as so many of their first channels.
    InKeys(usize),
}

/// Brings the weights of a model to where its kernels read them.
pub(crate) trait Loader<B: Backend> {
    /// What the config describes.
    fn architecture(&self) -> &Architecture;
    /// Parameters in float32, one behind the other, as a tensor of this shape.
    fn vectors(&self, ids: &[ParamId], shape: &[usize]) -> Result<Tensor, ModelError>;
    /// The values of a parameter, on the host.
    fn read(&self, id: ParamId) -> Result<Vec<f32>, ModelError>;
    /// A tensor of the host in float32, to where kernels read it.
    fn give(&self, values: Tensor) -> Result<Tensor, ModelError>;
    /// A projection.
    fn projection(&self, of: &Projection) -> Result<B::Projection, ModelError>;
    /// The projection to logits.
    fn head(&self, of: &Projection) -> Result<B::Projection, ModelError> {
        self.projection(of)
    }
    /// A projection for [`Executor::project_gated`]: its first half gates the second.
    fn gated(&self, of: &Projection) -> Result<B::Projection, ModelError>;
    /// A matrix of each head `[outputs, width]`, or the transpose of `[inputs, width]`.
    fn heads(&self, of: &[Rows], width: usize, transposed: bool) -> Result<B::Heads, ModelError>;
    /// Routed experts, and what every token passes beside them as more of them where kernels take it so; whether they do.
    fn experts(
        &self,
        of: &Experts,
        shared: Option<&GatedMlp>,
    ) -> Result<(B::Experts, bool), ModelError>;
    /// A state of this shape for each slot, in float32 or in what [`crate::EngineKind::states`] has beside it: zero before a
    /// sequence's first token.
    fn states_in(&mut self, dtype: DType, shape: &[usize]) -> Result<StateId, ModelError>;
    /// Room for the keys of all tokens, `[kv_heads, dim]` each, and for their values.
    fn cache(&mut self, keys: [usize; 2], values: Values) -> Result<CacheId, ModelError>;

    /// The same in float32.
    fn states(&mut self, shape: &[usize]) -> Result<StateId, ModelError> {
        self.states_in(DType::F32, shape)
    }

    /// A vector whose values are worked out of a parameter's.
    fn mapped(&self, id: ParamId, map: impl Fn(f32) -> f32) -> Result<Tensor, ModelError> {
        let values: Vec<f32> = self.read(id)?.into_iter().map(map).collect();
        self.give(Tensor::new(&[values.len()], values))
    }

    /// A rotation by position.
    fn rotation(&self, of: &Rope) -> Result<Rotation, ModelError> {
        let high = of.frequencies.iter().map(|frequency| *frequency as f32);
        let rest = |frequency: &f64| (frequency - f64::from(*frequency as f32)) as f32;
        let both: Vec<f32> = high.chain(of.frequencies.iter().map(rest)).collect();
        let frequencies = self.give(Tensor::new(&[2, of.frequencies.len()], both))?;
        Ok(Rotation { frequencies, factor: of.factor })
    }

    /// The taps of channels `[channels, width]`, each times a factor.
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
        self.give(Tensor::new(&[channels, width], taps))
    }

    /// A whole parameter as a vector in float32.
    fn vector(&self, id: ParamId) -> Result<Tensor, ModelError> {
        self.vectors(&[id], &[self.architecture().params.get(id).len()])
    }

    /// RMSNorm of a row's groups by the model's epsilon.
    fn norm(&self, id: ParamId, groups: usize) -> Result<RmsNorm, ModelError> {
        self.norm_times(id, groups, 1.0)
    }

    /// The same, and what it makes times a factor.
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

    /// The same by a weight that is multiplied as it is, in whatever model.
    fn plain_norm(&self, id: ParamId, groups: usize) -> Result<RmsNorm, ModelError> {
        let norm = Norm { groups, eps: self.architecture().eps };
        Ok(RmsNorm { weight: self.vector(id)?, norm, ranks: 1 })
    }

    /// A convolution by these taps, one parameter's channels behind the other's.
    fn convolution(
        &mut self,
        taps: &[ParamId],
        bias: Option<ParamId>,
        [channels, width]: [usize; 2],
    ) -> Result<Convolution, ModelError> {
        let weight = self.vectors(taps, &[channels, width])?;
        self.convolution_by(weight, bias)
    }

    /// The same by taps `[channels, width]` that are there.
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

/// A rotation of the first channels of each head: pair `(i, i + pairs)` by the angle `position * frequency i`.
pub(crate) struct Rotation {
    /// Radians a position `[2, pairs]` in float32, each the sum of two: at a position of many thousands one would not do.
    pub(crate) frequencies: Tensor,
    /// Factor on cosines and sines.
    pub(crate) factor: f64,
}

/// RMSNorm.
pub(crate) struct RmsNorm {
    /// As wide as the row, or as one of its groups.
    pub(crate) weight: Tensor,
    pub(crate) norm: Norm,
    /// Ranks that have a part of the row each. Where there are several, only [`Executor::add`] takes such rows: what is made of
    /// them is scaled when the ranks' squares are summed, with the sums.
    pub(crate) ranks: usize,
}

impl RmsNorm {
    /// As a projection takes it.
    pub(crate) fn normed(&self) -> Normed<'_> {
        Normed { weight: &self.weight, norm: self.norm }
    }
}

/// A causal convolution.
pub(crate) struct Convolution {
    /// `[channels, taps]`.
    pub(crate) weight: Tensor,
    /// `[channels]`.
    pub(crate) bias: Option<Tensor>,
    /// Whether SiLU stands behind it.
    pub(crate) silu: bool,
    /// All but the newest of the tokens under its taps, `[channels, taps - 1]`.
    pub(crate) states: StateId,
}

/// The call of a convolution over tokens `[.., channels]`, with SiLU behind it or without.
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

/// Rows that go into a call, normalised, gated and then times a factor on the way.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// None: the residual stream.
    pub(crate) rows: Option<&'a Tensor>,
    pub(crate) norm: Option<&'a RmsNorm>,
    /// Multiplies what was normalised.
    pub(crate) gate: Option<(&'a Tensor, rmsnorm::Activation)>,
    /// On what is made of the rows by a projection that has no bias and is not gated; only those take one that is not 1.
    pub(crate) factor: f64,
}

impl<'a> Input<'a> {
    /// The residual stream, normalised.
    pub(crate) fn stream(norm: &'a RmsNorm) -> Self {
        Self { rows: None, norm: Some(norm), gate: None, factor: 1.0 }
    }

    /// Rows as they are.
    pub(crate) fn rows(x: &'a Tensor) -> Self {
        Self { rows: Some(x), norm: None, gate: None, factor: 1.0 }
    }

    /// The same times a factor.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { factor: self.factor * factor, ..self }
    }

    /// Rows, normalised.
    pub(crate) fn normed(x: &'a Tensor, norm: &'a RmsNorm) -> Self {
        Self { norm: Some(norm), ..Self::rows(x) }
    }
}

/// New keys and values on their way into a cache.
pub(crate) struct Append<'a> {
    /// `[kv_heads, dim]` a token.
    pub(crate) keys: &'a mut Tensor,
    /// `[width]` a token, laid behind its keys.
    pub(crate) more: Option<&'a Tensor>,
    /// `[kv_heads, dim]` a token; none where the keys hold the values.
    pub(crate) values: Option<&'a Tensor>,
    /// Queries `[heads, dim]` and how they and the keys are rotated by position, where they lie.
    pub(crate) rotated: Option<(&'a mut Tensor, &'a Rotation)>,
}

/// Causal attention over a cache.
pub(crate) struct Attend<'a> {
    /// `[heads, dim]` a token.
    pub(crate) queries: &'a Tensor,
    /// The keys and values of this step, which are all there are where no sequence had a token before.
    pub(crate) new: Option<[&'a Tensor; 2]>,
    /// Factor of the products.
    pub(crate) scale: f64,
    /// Tokens that a query sees, its own the last of them; none: all before it.
    pub(crate) window: Option<usize>,
    /// Logits of each head that take part in its softmax and have no value `[heads]`.
    pub(crate) sinks: Option<&'a Tensor>,
}

impl Attend<'_> {
    /// The keys that its queries see.
    pub(crate) fn mask(&self) -> Mask {
        Mask { window_left: self.window.map(|window| window - 1), ..Mask::CAUSAL }
    }
}

/// The tensors of so many parts.
///
/// # Panics
/// When there are more or fewer, which only a wrong executor gives.
pub(crate) fn exactly<const N: usize>(tensors: Vec<Tensor>) -> [Tensor; N] {
    match tensors.try_into() {
        Ok(tensors) => tensors,
        Err(tensors) => panic!("{} tensors for {N} parts", Vec::len(&tensors)),
    }
}

/// Runs the calls of a step, in order; each is made where it can be: at once, or as a launch that is planned.
///
/// A tensor that a call gives has one token's dimensions last. What stands before them is as the backend's ops take tokens, and
/// its type is that of activations, float32 on the processor and the weights' on a GPU, unless the call says another one. All of a
/// step's additions go onto the residual stream `[tokens, hidden]` in float32, times the model's residual multiplier.
pub(crate) trait Executor<B: Backend> {
    /// Projects, columns into parts of these dimensions.
    fn project<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], OpError>;

    /// The same of rows of which each rank of a split model has columns: all ranks' sum of what they make, on each of them.
    fn project_summed<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], Unmixed>;

    /// The same as [`Executor::project`] into one part in float32.
    fn project_wide(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        part: &[usize],
    ) -> Result<Tensor, OpError>;

    /// The same as [`Executor::project`], and some neighbouring parts, which have all channels of a convolution, are convolved.
    fn project_convolved<const N: usize>(
        &mut self,
        of: &B::Projection,
        x: Input<'_>,
        parts: [&[usize]; N],
        convolved: (&Convolution, Range<usize>),
    ) -> Result<[Tensor; N], OpError>;

    /// Convolves rows `[channels]` of tokens.
    fn convolve(&mut self, by: &Convolution, x: &Tensor) -> Result<Tensor, OpError>;

    /// The product of rows, element by element.
    fn multiply(&mut self, of: [&Tensor; 2]) -> Result<Tensor, OpError>;

    /// `silu(gate) * up` of a projection to both.
    fn project_gated(&mut self, of: &B::Projection, x: Input<'_>) -> Result<Tensor, OpError>;

    /// `max(0, y)^2` of a projection's y.
    fn project_squared(&mut self, of: &B::Projection, x: Input<'_>) -> Result<Tensor, OpError>;

    /// Multiplies each token's row by `sigmoid(w . h)` of its row of h; w `[width of h]`.
    fn gate_tokens(&mut self, rows: &mut Tensor, h: &Tensor, w: &Tensor) -> Result<(), OpError>;

    /// Adds a projection to the residual stream.
    fn add(&mut self, of: &B::Projection, x: Input<'_>) -> Result<(), OpError>;

    /// The next projection that is added is not all of what ranks sum then.
    fn adds_more(&mut self) {}

    /// Multiplies each head's channels `[heads, inputs + tail]` by its matrix: `[heads, outputs + tail]`. The tail goes on as it is.
    fn multiply_heads(&mut self, of: &B::Heads, x: &Tensor, tail: usize)
    -> Result<Tensor, OpError>;

    /// Rows, normalised and gated, as a tensor.
    fn norm(&mut self, x: Input<'_>) -> Result<Tensor, OpError>;

    /// Runs a recurrent op, which has `initial_state`, `final_state` and `o`, and advances the states. Offsets, states and output
    /// are the executor's to lay.
    fn advance<C: Typed>(
        &mut self,
        states: StateId,
        call: &C,
        part: &[usize],
    ) -> Result<Tensor, OpError>;

    /// Lays keys and values into a cache.
    fn append(&mut self, cache: CacheId, new: Append<'_>) -> Result<(), OpError>;

    /// Attends; gives `[heads, value dim]` a token.
    fn attend(&mut self, cache: CacheId, call: Attend<'_>) -> Result<Tensor, OpError>;

    /// Adds what the experts that each token chooses by its logits, and those that every one takes, make of `h` to the residual stream.
    fn add_experts(&mut self, of: &B::Experts, h: &Tensor, logits: &Tensor) -> Result<(), OpError>;

    /// The sum of what the experts that each token chooses by its logits make of rows.
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
        wanted: Wanted,
    ) -> Result<Tensor, ModelError>;

    /// Sums what the ranks of a split model have added to the residual stream since the last sum. Of a whole model the sum is
    /// what is there.
    ///
    /// # Errors
    /// [`ModelError::Rank`] of one that has ended or cannot go on.
    fn sum_over_ranks(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Takes up the residual stream behind the layers of the process before this one, where they are shared out.
    ///
    /// # Errors
    /// As [`Executor::sum_over_ranks`].
    fn take_up(&mut self) -> Result<(), ModelError> {
        Ok(())
    }

    /// Hands the residual stream on where the last layers are another process's; gives the logits that are made there or, as they
    /// are, here.
    ///
    /// # Errors
    /// As [`Executor::sum_over_ranks`].
    fn hand_on(&mut self, logits: Option<Tensor>) -> Result<Tensor, ModelError> {
        logits.ok_or_else(|| ModelError::fault("the last layers are not here"))
    }

    /// A layer is done.
    fn end_layer(&mut self) -> Result<(), OpError> {
        Ok(())
    }
}
