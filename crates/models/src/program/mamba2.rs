use super::{
    Backend, Convolution, Executor, Input, LayerMixer, Loader, MixerError, RmsNorm, StateId,
};
use crate::layers::{self, Mamba2Shape, MambaMultipliers};
use crate::{ModelError, StateType};
use ops::rmsnorm::Activation;
use ops::ssd::{SsdCall, SsdOptions};
use ops::{DType, States, Tensor};

/// A Mamba-2 mixer.
pub(super) struct Mamba2<B: Backend> {
    shape: Mamba2Shape,
    in_proj: B::Projection,
    /// Projection of step sizes, if their multiplier differs from the gate's.
    dt_proj: Option<B::Projection>,
    multipliers: MambaMultipliers,
    conv: Convolution,
    /// `-exp(A_log)`.
    rate: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    scan: StateId,
    /// Storage type of the scan's states.
    held: DType,
    norm: Option<RmsNorm>,
    norm_before_gate: bool,
    out_proj: B::Projection,
}

impl<B: Backend> Mamba2<B> {
    pub(super) fn new(of: &layers::Mamba2, load: &mut impl Loader<B>) -> Result<Self, ModelError> {
        let shape @ Mamba2Shape { heads, head_dim, groups, state, taps, .. } = of.shape;
        let channels = shape.channels();
        let held = match load.architecture().scan_states {
            StateType::F32 => DType::F32,
            StateType::Bf16 => DType::Bf16,
        };
        // Convolved channels are computed with the gate's multiplier; the float32 taps correct it to their own.
        let [gate, convolved @ .., _] = of.multipliers.parts;
        let weight = if convolved == [gate; 3] {
            load.vectors(&[of.conv_weight], &[channels, taps])?
        } else {
            let (b, c) = (shape.inner(), shape.inner() + groups * state);
            let part = |channel| usize::from(channel >= b) + usize::from(channel >= c);
            let factor = |channel| convolved[part(channel)] / gate;
            load.taps_times(of.conv_weight, [channels, taps], factor)?
        };
        let conv = load.convolution_by(weight, of.conv_bias)?;
        let norm = match of.norm {
            Some(norm) => Some(RmsNorm { ranks: of.norm_ranks, ..load.norm(norm, groups)? }),
            None => None,
        };
        Ok(Self {
            shape,
            in_proj: load.projection(&of.in_proj)?,
            dt_proj: of.dt_proj.as_ref().map(|dt| load.projection(dt)).transpose()?,
            multipliers: of.multipliers,
            conv,
            rate: load.mapped(of.a_log, |a_log| -a_log.exp())?,
            d: load.vector(of.d)?,
            dt_bias: load.vector(of.dt_bias)?,
            scan: load.states_in(held, &[heads, head_dim, state])?,
            held,
            norm,
            norm_before_gate: of.norm_before_gate,
            out_proj: load.projection(&of.out_proj)?,
        })
    }
}

impl<B: Backend> LayerMixer<B> for Mamba2<B> {
    fn mix(&self, run: &mut B::Run<'_>, x: Input<'_>) -> Result<(), MixerError> {
        let Mamba2Shape { heads, head_dim, groups, state, dt_limits, .. } = self.shape;
        let (by_head, by_group) = ([heads, head_dim], [groups, state]);
        let convolved = (&self.conv, 1..4);
        let [gate, .., of_dt] = self.multipliers.parts;
        let from = x.times(gate);
        let (z, x, b, c, dt) = if let Some(dt_proj) = &self.dt_proj {
            let dt = run.project_wide(dt_proj, x.times(of_dt), &[heads])?;
            let parts: [&[usize]; _] = [&by_head, &by_head, &by_group, &by_group];
            let [z, x, b, c] = run.project_convolved(&self.in_proj, from, parts, convolved)?;
            (z, x, b, c, dt)
        } else {
            let parts: [&[usize]; _] = [&by_head, &by_head, &by_group, &by_group, &[heads]];
            let [z, x, b, c, dt] = run.project_convolved(&self.in_proj, from, parts, convolved)?;
            (z, x, b, c, dt)
        };
        let [dt_min, dt_max] = dt_limits;
        let scan = SsdCall {
            x: &x,
            dt: &dt,
            a: &self.rate,
            b: &b,
            c: &c,
            d: Some(&self.d),
            z: (!self.norm_before_gate).then_some(&z),
            dt_bias: Some(&self.dt_bias),
            offsets: None,
            states: States::default(),
            options: SsdOptions {
                dt_min,
                dt_max,
                state_dtype: Some(self.held),
                ..SsdOptions::default()
            },
            o: None,
        };
        let y = run.advance(self.scan, &scan, &by_head)?;
        // With the gate before the norm, the scan has applied it, and only the norm remains.
        let gate = self.norm_before_gate.then_some((&z, Activation::Silu));
        let y = Input { norm: self.norm.as_ref(), gate, ..Input::rows(&y) };
        Ok(run.add(&self.out_proj, y.times(self.multipliers.output))?)
    }
}
