//! A model's layers as programs: each layer is written once as a sequence of calls, which an executor of each backend
//! runs.

mod attention;
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
use crate::{Architecture, ModelError, NormPosition};
use attention::GroupedAttention;
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

/// The parts of a layer, each with its norm.
struct Layer<B: Backend> {
    norm_position: NormPosition,
    mixer: Option<(RmsNorm, Box<dyn LayerMixer<B>>)>,
    forward: Option<(RmsNorm, Forward<B>)>,
}

/// A layer's feed-forward part.
enum Forward<B: Backend> {
    Experts(Experts<B>),
    Mlp(Mlp<B>),
}

impl<B: Backend> Program<B> {
    /// Loads the weights of an architecture.
    pub(crate) fn new(of: &Architecture, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let layer = |of: &crate::Layer| {
            // The gate's multiplier is applied to the whole input of the feed-forward part and divided out of its
            // output.
            let on_gates = of.mlp.as_ref().map_or(1.0, |mlp| mlp.multipliers[0]);
            let norm_position = of.norm_position;
            if norm_position == NormPosition::Post && (of.experts.is_some() || on_gates != 1.0) {
                let what = "a layer with norms after its parts has experts or a gate's multiplier";
                return Err(ModelError::fault(what));
            }
            let mixer = match mixer(&of.mixer, load)? {
                Some(mixer) => Some((load.norm(of.input_norm, 1)?, mixer)),
                None => None,
            };
            let forward = match (&of.experts, &of.mlp) {
                (Some(of), shared) => {
                    Some(Forward::Experts(Experts::new(of, shared.as_ref(), load)?))
                }
                (None, Some(of)) => Some(Forward::Mlp(Mlp::new(of, load)?)),
                (None, None) => None,
            };
            let forward = match forward {
                Some(forward) => Some((load.norm_times(of.post_norm, 1, on_gates)?, forward)),
                None => None,
            };
            Ok(Layer { norm_position, mixer, forward })
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
    /// `x += r mixer(rms(x)); h = rms(x); x += r forward(h)`, or only one of the two; with norms after the parts `x +=
    /// rms(r mixer(x)); x += rms(r forward(x))`.
    fn run(
        &self,
        run: &mut B::Run<'_>,
        failed: impl Fn(OpError) -> ModelError,
    ) -> Result<(), ModelError> {
        if let Some((norm, mixer)) = &self.mixer {
            let aside = self.set_aside(run).map_err(&failed)?;
            let x = aside.as_ref().map_or(Input::stream(norm), Input::rows);
            mixer.mix(run, x).map_err(|why| match why {
                MixerError::Call(error) => failed(error),
                MixerError::Sum(error) => error,
            })?;
            run.sum_over_ranks()?;
            aside.map_or(Ok(()), |aside| run.end_branch(aside, norm)).map_err(&failed)?;
        }
        let Some((norm, forward)) = &self.forward else {
            return run.end_layer().map_err(failed);
        };
        let aside = self.set_aside(run).map_err(&failed)?;
        let done = match forward {
            Forward::Experts(experts) => experts.run(run, norm),
            Forward::Mlp(mlp) => {
                mlp.run(run, aside.as_ref().map_or(Input::stream(norm), Input::rows))
            }
        };
        done.map_err(&failed)?;
        run.sum_over_ranks()?;
        aside.map_or(Ok(()), |aside| run.end_branch(aside, norm)).map_err(&failed)?;
        run.end_layer().map_err(failed)
    }

    /// The residual stream, which is set aside if the next part's output is normalized.
    fn set_aside(&self, run: &mut B::Run<'_>) -> Result<Option<Tensor>, OpError> {
        match self.norm_position {
            NormPosition::Pre => Ok(None),
            NormPosition::Post => run.begin_branch().map(Some),
        }
    }
}
