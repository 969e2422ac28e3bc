//! A model's layers as programs: each layer is written once as a sequence of calls, which an executor of each backend
//! runs.

mod attention;
mod branches;
mod executor;
mod experts;
mod gated_delta;
mod kda;
mod latent_attention;
mod mamba1;
mod mamba2;
mod mlp;
mod parallel;
mod short_conv;

use crate::engine::LogitsSelection;
use crate::params::ParamId;
use crate::{Architecture, ModelError, NormPosition};
use attention::GroupedAttention;
use branches::Branches;
pub(crate) use executor::{
    Append, Attend, Backend, CacheId, Convolution, Executor, Input, Loader, RmsNorm, Rotation,
    StateId, Values, convolve, exactly,
};
use experts::Experts;
use gated_delta::GatedDelta;
use kda::Kda;
use latent_attention::LatentAttention;
use mamba1::Mamba1;
use mamba2::Mamba2;
use mlp::Mlp;
use ops::{OpError, Tensor};
use parallel::Parallel;
use short_conv::ShortConv;

/// A layer's mixer. Its states and caches belong to the executor.
trait LayerMixer<B: Backend>: Send {
    /// Adds its output for the input rows to the residual stream and advances the states of the step's sequences.
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError>;
}

/// Why a mixer failed.
#[derive(Debug)]
pub(crate) enum MixerError {
    /// A call failed.
    Call(OpError),
    /// The all-reduce within it failed.
    Sum(ModelError),
}

impl From<OpError> for MixerError {
    fn from(error: OpError) -> Self {
        Self::Call(error)
    }
}

/// The mixer of a layer by its kind; `None` for a layer that is only a feed-forward part.
fn mixer<B: Backend>(
    of: &architectures::Mixer,
    load: &mut impl Loader<B>,
) -> Result<Option<Box<dyn LayerMixer<B>>>, ModelError> {
    use architectures::Mixer;
    Ok(Some(match of {
        Mixer::Mamba1(of) => Box::new(Mamba1::new(of, load)?),
        Mixer::Mamba2(of) => Box::new(Mamba2::new(of, load)?),
        Mixer::Attention(of) => Box::new(GroupedAttention::new(of, load)?),
        Mixer::Kda(of) => Box::new(Kda::new(of, load)?),
        Mixer::Latent(of) => Box::new(LatentAttention::new(of, load)?),
        Mixer::GatedDelta(of) => Box::new(GatedDelta::new(of, load)?),
        Mixer::ShortConv(of) => Box::new(ShortConv::new(of, load)?),
        Mixer::Parallel(of) => Box::new(Parallel::new(of, load)?),
        Mixer::None => return Ok(None),
    }))
}

/// A model with its weights, from embeddings to logits.
pub(crate) struct Program<B: Backend> {
    layers: Vec<Layer<B>>,
    /// The last norm and the head; `None` if another process has them.
    end: Option<(RmsNorm, B::Projection)>,
}

/// The parts of a layer, each with its norms.
struct Layer<B: Backend> {
    mixer: Option<(Norms, Box<dyn LayerMixer<B>>)>,
    forward: Option<(Norms, Forward<B>)>,
    /// Multiplies the residual stream at the end of the layer.
    scalar: Option<Tensor>,
}

/// The norms of a part's input and of its output.
struct Norms {
    before: Option<RmsNorm>,
    after: Option<RmsNorm>,
}

/// A layer's feed-forward part.
enum Forward<B: Backend> {
    Experts(Experts<B>),
    Mlp(Mlp<B>),
    Branches(Box<Branches<B>>),
}

impl<B: Backend> Program<B> {
    /// Loads the weights of an architecture.
    pub(crate) fn new(of: &Architecture, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let layer = |of: &crate::Layer| {
            // The gate's multiplier is applied to the whole input of the feed-forward part and divided out of its
            // output.
            let on_gates = of.mlp.as_ref().map_or(1.0, |mlp| mlp.multipliers[0]);
            if of.norm_position == NormPosition::Post && (of.experts.is_some() || on_gates != 1.0) {
                let what = "a layer with norms after its parts has experts or a gate's multiplier";
                return Err(ModelError::fault(what));
            }
            let position = of.norm_position;
            let mixer = match mixer(&of.mixer, load)? {
                Some(mixer) => Some((Norms::new(load, position, (of.input_norm, 0), 1.0)?, mixer)),
                None => None,
            };
            let (of_experts, scalar) = match of.norm_position {
                NormPosition::Scaled { experts, scalar, .. } => (experts, Some(scalar)),
                _ => (None, None),
            };
            let forward = match (&of.experts, &of.mlp) {
                (Some(experts), Some(mlp)) if let Some(norms) = of_experts => {
                    Some(Forward::Branches(Box::new(Branches::new((mlp, experts), norms, load)?)))
                }
                (Some(of), shared) => {
                    Some(Forward::Experts(Experts::new(of, shared.as_ref(), load)?))
                }
                (None, Some(of)) => Some(Forward::Mlp(Mlp::new(of, load)?)),
                (None, None) => None,
            };
            let forward = match forward {
                Some(forward) => {
                    Some((Norms::new(load, position, (of.post_norm, 1), on_gates)?, forward))
                }
                None => None,
            };
            let scalar = scalar.map(|scalar| load.vector(scalar)).transpose()?;
            Ok(Layer { mixer, forward, scalar })
        };
        let layers = of.layers.iter().map(layer).collect::<Result<_, ModelError>>()?;
        let end = || Ok::<_, ModelError>((load.norm(of.norm, 1)?, load.head(&of.head)?));
        Ok(Self { layers, end: of.is_last_stage().then(end).transpose()? })
    }

    /// Runs all layers on the residual stream; returns the logits `[rows, vocabulary]` of the wanted rows.
    pub(crate) fn run(
        &self,
        run: &mut B::Run<'_>,
        wanted: LogitsSelection,
    ) -> Result<Tensor, ModelError> {
        run.recv_hidden()?;
        for (layer, of) in self.layers.iter().enumerate() {
            of.run(run, |error| ModelError::Op { layer, error })?;
        }
        let logits = self.end.as_ref().map(|(norm, head)| run.logits(head, norm, wanted));
        run.send_hidden(logits.transpose()?)
    }
}

impl<B: Backend> Layer<B> {
    /// `x += r mixer(rms(x)); h = rms(x); x += r forward(h)`, or only one of the two. A norm after a part applies to what
    /// it adds: `x += rms(r part(x))`.
    fn run(
        &self,
        run: &mut B::Run<'_>,
        failed: impl Fn(OpError) -> ModelError,
    ) -> Result<(), ModelError> {
        if let Some((norms, mixer)) = &self.mixer {
            let aside = norms.set_aside::<B>(run).map_err(&failed)?;
            mixer.mix(run, norms.input(aside.as_ref())).map_err(|why| match why {
                MixerError::Call(error) => failed(error),
                MixerError::Sum(error) => error,
            })?;
            run.sum_over_ranks()?;
            norms.end::<B>(run, aside).map_err(&failed)?;
        }
        if let Some((norms, forward)) = &self.forward {
            let aside = norms.set_aside::<B>(run).map_err(&failed)?;
            let x = norms.input(aside.as_ref());
            let done = match forward {
                Forward::Experts(experts) => experts.run(run, x),
                Forward::Mlp(mlp) => mlp.run(run, x),
                Forward::Branches(branches) => branches.run(run, x),
            };
            done.map_err(&failed)?;
            run.sum_over_ranks()?;
            norms.end::<B>(run, aside).map_err(&failed)?;
        }
        if let Some(scalar) = &self.scalar {
            run.scale_stream(scalar).map_err(&failed)?;
        }
        run.end_layer().map_err(failed)
    }
}

impl Norms {
    /// The norms of the mixer (0) or of the feed-forward part (1), with a factor of the input.
    fn new<B: Backend>(
        load: &impl Loader<B>,
        position: NormPosition,
        (norm, part): (ParamId, usize),
        factor: f64,
    ) -> Result<Self, ModelError> {
        let [before, after] = match position {
            NormPosition::Pre => [Some(norm), None],
            NormPosition::Post => [None, Some(norm)],
            NormPosition::Both(after) | NormPosition::Scaled { after, .. } => {
                [Some(norm), Some(after[part])]
            }
        };
        let before = before.map(|norm| load.norm_times(norm, 1, factor)).transpose()?;
        Ok(Self { before, after: after.map(|norm| load.norm(norm, 1)).transpose()? })
    }

    /// The residual stream, which is set aside if the part's output is normalized.
    fn set_aside<B: Backend>(&self, run: &mut B::Run<'_>) -> Result<Option<Tensor>, OpError> {
        self.after.as_ref().map(|_| run.begin_branch()).transpose()
    }

    /// The part's input.
    fn input<'a>(&'a self, aside: Option<&'a Tensor>) -> Input<'a> {
        Input { rows: aside, norm: self.before.as_ref(), gate: None, factor: 1.0 }
    }

    /// Adds the normalized output to the residual stream that was set aside.
    fn end<B: Backend>(&self, run: &mut B::Run<'_>, aside: Option<Tensor>) -> Result<(), OpError> {
        match (aside, &self.after) {
            (Some(aside), Some(norm)) => run.end_branch(aside, norm),
            _ => Ok(()),
        }
    }
}
