use super::{Backend, Executor, GroupedAttention, Input, LayerMixer, Loader, Mamba2, MixerError};
use crate::ModelError;
use crate::layers;

/// Attention and a Mamba-2 mixer in parallel.
pub(super) struct Parallel<B: Backend> {
    mamba: Mamba2<B>,
    attention: GroupedAttention<B>,
}

impl<B: Backend> Parallel<B> {
    pub(super) fn new(
        of: &layers::Parallel,
        load: &mut impl Loader<B>,
    ) -> Result<Self, ModelError> {
        let mamba = Mamba2::new(&of.mamba, load)?;
        Ok(Self { mamba, attention: GroupedAttention::new(&of.attention, load)? })
    }
}

impl<B: Backend> LayerMixer<B> for Parallel<B> {
    /// Both read a copy of the residual stream, so that neither reads what the other adds. One all-reduce covers both.
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let h = run.norm(x)?;
        run.adds_more();
        self.mamba.mix(run, Input::rows(&h))?;
        self.attention.mix(run, Input::rows(&h))
    }
}
