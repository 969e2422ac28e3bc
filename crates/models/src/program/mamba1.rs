use super::{
    Backend, Convolution, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm, StateId,
};
use crate::ModelError;
use crate::layers::{self, Mamba1Shape, Norms};
use crate::params::ParamId;
use ops::linear::Norm;
use ops::selective_scan::{SelectiveScanCall, SelectiveScanOptions};
use ops::{States, Tensor};

/// A Mamba-1 mixer.
pub(super) struct Mamba1<B: Backend> {
    shape: Mamba1Shape,
    in_proj: B::Projection,
    conv: Convolution,
    x_proj: B::Projection,
    /// Norms of the step size's low rank, of B and of C.
    norms: Option<[RmsNorm; 3]>,
    dt_proj: B::Projection,
    dt_bias: Tensor,
    /// `-exp(A_log)`, `[inner, state]`.
    rates: Tensor,
    d: Tensor,
    scan: StateId,
    out_proj: B::Projection,
}

impl<B: Backend> Mamba1<B> {
    pub(super) fn new(of: &layers::Mamba1, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let shape @ Mamba1Shape { inner, state, taps, rank, .. } = of.shape;
        let weighted = |norm: ParamId| load.norm(norm, 1);
        let plain = |width: usize, eps: f64| {
            let weight = load.transfer(Tensor::new(&[width], vec![1f32; width]))?;
            Ok::<_, ModelError>(RmsNorm { weight, norm: Norm { groups: 1, eps }, ranks: 1 })
        };
        let norms = match of.norms {
            Norms::None => None,
            Norms::Weighted([dt, b, c]) => Some([weighted(dt)?, weighted(b)?, weighted(c)?]),
            Norms::Plain { eps } => {
                Some([plain(rank, eps)?, plain(state, eps)?, plain(state, eps)?])
            }
        };
        let rates: Vec<f32> = load.read(of.a_log)?.into_iter().map(|a_log| -a_log.exp()).collect();
        Ok(Self {
            shape,
            in_proj: load.projection(&of.in_proj)?,
            conv: load.convolution(&[of.conv_weight], of.conv_bias, [inner, taps])?,
            x_proj: load.projection(&of.x_proj)?,
            norms,
            dt_proj: load.projection(&of.dt_proj)?,
            dt_bias: load.vector(of.dt_bias)?,
            rates: load.transfer(Tensor::new(&[inner, state], rates))?,
            d: load.vector(of.d)?,
            scan: load.states(&[inner, state])?,
            out_proj: load.projection(&of.out_proj)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for Mamba1<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let Mamba1Shape { inner, state, rank, .. } = self.shape;
        let by_channel: &[usize] = &[inner];
        let convolved = (&self.conv, 0..1);
        let [u, z] = run.project_convolved(&self.in_proj, x, [by_channel; 2], convolved)?;
        let parts: [&[usize]; _] = [&[rank], &[1, state], &[1, state]];
        // Each rank of a split model has some channels of u, so the product is all-reduced.
        let [dt, mut b, mut c] = run.project_summed(&self.x_proj, Input::rows(&u), parts)?;
        let mut dt = Input::rows(&dt);
        if let Some([of_dt, of_b, of_c]) = &self.norms {
            dt.norm = Some(of_dt);
            b = run.norm(Input::normed(&b, of_b))?;
            c = run.norm(Input::normed(&c, of_c))?;
        }
        // Step sizes are in every decay, so they stay float32.
        let delta = run.project_wide(&self.dt_proj, dt, by_channel)?;
        let scan = SelectiveScanCall {
            u: &u,
            delta: &delta,
            a: &self.rates,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: Some(&z),
            delta_bias: Some(&self.dt_bias),
            offsets: None,
            states: States::default(),
            options: SelectiveScanOptions::default(),
            o: None,
        };
        let y = run.advance(self.scan, &scan, by_channel)?;
        Ok(run.add(&self.out_proj, Input::rows(&y))?)
    }
}
