use super::{Backend, Convolution, Executor, Input, LayerMixer, Loader, MixerError};
use crate::ModelError;
use crate::layers;

/// A short convolution between two products.
pub(super) struct ShortConv<B: Backend> {
    channels: usize,
    in_proj: B::Projection,
    conv: Convolution,
    out_proj: B::Projection,
}

impl<B: Backend> ShortConv<B> {
    pub(super) fn new(
        of: &layers::ShortConv,
        load: &mut impl Loader<B>,
    ) -> Result<Self, ModelError> {
        let conv = load.convolution(&[of.conv_weight], of.conv_bias, [of.channels, of.taps])?;
        Ok(Self {
            channels: of.channels,
            in_proj: load.projection(&of.in_proj)?,
            conv: Convolution { silu: false, ..conv },
            out_proj: load.projection(&of.out_proj)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for ShortConv<B> {
    /// `out(C * conv(B * x))`: the convolution's state contains products.
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let part: &[usize] = &[self.channels];
        let [b, c, x] = run.project(&self.in_proj, x, [part; 3])?;
        let x = run.multiply([&b, &x])?;
        let y = run.convolve(&self.conv, &x)?;
        let y = run.multiply([&c, &y])?;
        Ok(run.add(&self.out_proj, Input::rows(&y))?)
    }
}
