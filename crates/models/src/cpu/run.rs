//! Calls of a program on the CPU. Each runs immediately.

use super::cache::rotate;
use super::rows::{Rows, add_scaled, gelu, scale, sigmoid};
use super::share::Share;
use super::step::Step;
use super::weights::CpuProjection;
use super::{Cpu, CpuExperts, Memory};
use crate::engine::LogitsSelection;
use crate::program::{
    Append, Attend, CacheId, Convolution, Executor, Input, MixerError, RmsNorm, Rotation, StateId,
    convolve, exactly,
};
use crate::{ModelError, Ranks};
use device::HostBuffer;
use ops::{Element, OpError, Tensor, Typed};
use ops_cpu::packed_linear::Linear;
use rayon::prelude::*;
use std::ops::Range;

/// A step over the engine's memory. Activations are packed float32 `[tokens, ..]`.
pub(crate) struct Run<'a> {
    pub(super) step: Step<'a>,
    pub(super) memory: &'a mut Memory,
    /// The residual stream `[tokens, hidden]`.
    pub(super) x: Vec<f32>,
    /// Multiplier of what layers add to the residual stream.
    pub(super) residual: f32,
    /// This rank's partial sum, for a split model.
    pub(super) share: Option<Share<'a>>,
    /// The ranks of a pipeline-parallel model and the width of its logits.
    pub(super) stages: Option<(&'a Ranks, usize)>,
}

/// The values of a tensor in host memory.
fn values(tensor: &Tensor) -> &[f32] {
    tensor.view().unwrap_or_default()
}

fn width(part: &[usize]) -> usize {
    part.iter().product()
}

/// A column range of every row, as a tensor of this shape.
fn columns(shape: &[usize], x: &[f32], width: usize, range: Range<usize>) -> Tensor {
    let rows = x.chunks_exact(width).map(|row| &row[range.clone()]);
    f32::tensor(shape, HostBuffer::concatenated(x.len() / width * range.len(), rows))
}

impl Run<'_> {
    fn rows<'t>(&'t self, x: Input<'t>) -> Rows<'t> {
        let of = x.rows.map_or(&self.x[..], values);
        let gate = x.gate.map(|(gate, activation)| (values(gate), activation));
        let width = of.len() / self.step.tokens();
        let (device, factor) = (self.step.device, x.factor as f32);
        Rows { device, values: of, width, norm: x.norm, gate, factor }
    }

    /// A projection's output, split by columns into parts with these dimensions per token.
    fn parts(&self, of: &CpuProjection, x: Input<'_>, parts: &[&[usize]]) -> Vec<Tensor> {
        let rows = self.rows(x);
        let widths: Vec<usize> = parts.iter().map(|part| width(part)).collect();
        let make = |row: usize, to: &mut [f32]| rows.make(row, to);
        let made = of.apply(self.step.device, self.step.tokens(), make, &widths);
        let shaped = made.into_iter().zip(parts);
        shaped.map(|(made, part)| f32::tensor(&self.step.shape(part), made)).collect()
    }
}

impl Executor<Cpu> for Run<'_> {
    fn project<const N: usize>(
        &mut self,
        of: &CpuProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], OpError> {
        Ok(exactly(self.parts(of, x, &parts)))
    }

    fn project_summed<const N: usize>(
        &mut self,
        of: &CpuProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], MixerError> {
        let mut made = self.parts(of, x, &parts);
        if let Some(share) = &self.share {
            let values = made.iter_mut().map(|part| part.view_mut().unwrap_or_default());
            share.sum_all(values).map_err(MixerError::Sum)?;
        }
        Ok(exactly(made))
    }

    fn project_wide(
        &mut self,
        of: &CpuProjection,
        x: Input<'_>,
        part: &[usize],
    ) -> Result<Tensor, OpError> {
        let [made] = self.project(of, x, [part])?;
        Ok(made)
    }

    fn project_convolved<const N: usize>(
        &mut self,
        of: &CpuProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
        (conv, convolved): (&Convolution, Range<usize>),
    ) -> Result<[Tensor; N], OpError> {
        let channels = conv.weight.shape()[0];
        let (before, behind) = (&parts[..convolved.start], &parts[convolved.end..]);
        let mut made = self.parts(of, x, &[before, &[&[channels]], behind].concat());
        let mixed = self.convolve(conv, &made[convolved.start])?;
        let mut first = 0;
        let mixed = parts[convolved.clone()].iter().map(|part| {
            let range = first..first + width(part);
            first = range.end;
            columns(&self.step.shape(part), values(&mixed), channels, range)
        });
        made.splice(convolved.start..=convolved.start, mixed);
        Ok(exactly(made))
    }

    fn convolve(&mut self, by: &Convolution, x: &Tensor) -> Result<Tensor, OpError> {
        let call = convolve(x, &by.weight, by.bias.as_ref(), by.silu);
        self.advance(by.states, &call, &by.weight.shape()[..1])
    }

    fn multiply(&mut self, [x, y]: [&Tensor; 2]) -> Result<Tensor, OpError> {
        let mut made = HostBuffer::filled(0f32, x.len());
        let both = values(x).par_iter().zip(values(y));
        made.par_iter_mut().zip(both).for_each(|(made, (x, y))| *made = x * y);
        Ok(f32::tensor(x.shape(), made))
    }

    fn project_gated(&mut self, of: &CpuProjection, x: Input<'_>) -> Result<Tensor, OpError> {
        let (rows, tokens) = (self.rows(x), self.step.tokens());
        let made = of.apply_gated(self.step.device, tokens, |row, to| rows.make(row, to));
        Ok(f32::tensor(&[tokens, made.len() / tokens], made))
    }

    fn project_gelu_gated(&mut self, of: &CpuProjection, x: Input<'_>) -> Result<Tensor, OpError> {
        let width = [of.outputs() / 2];
        let [mut gate, up] = self.project(of, x, [&width, &width])?;
        let gates = gate.view_mut::<f32>().unwrap_or_default().par_iter_mut();
        gates.zip(values(&up)).for_each(|(gate, up)| *gate = gelu(*gate) * up);
        Ok(gate)
    }

    fn project_squared(&mut self, of: &CpuProjection, x: Input<'_>) -> Result<Tensor, OpError> {
        let (rows, tokens) = (self.rows(x), self.step.tokens());
        let made = of.apply_squared(self.step.device, tokens, |row, to| rows.make(row, to));
        Ok(f32::tensor(&[tokens, made.len() / tokens], made))
    }

    fn gate_tokens(&mut self, rows: &mut Tensor, h: &Tensor, w: &Tensor) -> Result<(), OpError> {
        let (tokens, w) = (self.step.tokens(), values(w));
        let width = rows.len() / tokens;
        let own = rows.view_mut::<f32>().unwrap_or_default().par_chunks_mut(width);
        own.zip(values(h).par_chunks(w.len())).for_each(|(row, h)| {
            let product = |(h, w): (&f32, &f32)| f64::from(*h) * f64::from(*w);
            let logit: f64 = h.iter().zip(w).map(product).sum();
            scale(row, sigmoid(logit as f32));
        });
        Ok(())
    }

    fn add(&mut self, of: &CpuProjection, x: Input<'_>) -> Result<(), OpError> {
        let mut share = self.share.take();
        let rows = self.rows(x);
        let make = |row: usize, to: &mut [f32]| rows.make(row, to);
        let made = of.apply_whole(self.step.device, self.step.tokens(), make);
        let spread = rows.norm.filter(|norm| norm.ranks > 1);
        let spread = spread.map(|norm| (norm, rows.values.chunks_exact(rows.width)));
        match &mut share {
            Some(share) => share.add(&made, spread),
            None => add_scaled(&mut self.x, &made, self.residual),
        }
        self.share = share;
        Ok(())
    }

    fn begin_branch(&mut self) -> Result<Tensor, OpError> {
        let (tokens, zeros) = (self.step.tokens(), vec![0.0; self.x.len()]);
        let stream = std::mem::replace(&mut self.x, zeros);
        Ok(Tensor::new(&[tokens, stream.len() / tokens], stream))
    }

    fn end_branch(&mut self, stream: Tensor, norm: &RmsNorm) -> Result<(), OpError> {
        let made = self.norm(Input::stream(norm))?;
        self.x.copy_from_slice(values(&stream));
        add_scaled(&mut self.x, values(&made), 1.0);
        Ok(())
    }

    fn scale_stream(&mut self, by: &Tensor) -> Result<(), OpError> {
        values(by).iter().for_each(|by| scale(&mut self.x, *by));
        Ok(())
    }

    fn multiply_heads(
        &mut self,
        of: &Vec<Linear>,
        x: &Tensor,
        tail: usize,
    ) -> Result<Tensor, OpError> {
        let (tokens, heads) = (self.step.tokens(), of.len());
        let own = values(x).len() / (tokens * heads);
        let (inputs, outputs) = (own - tail, of[0].outputs());
        let mut all = HostBuffer::filled(0f32, tokens * heads * (outputs + tail));
        for (head, linear) in of.iter().enumerate() {
            let row = |token: usize| &values(x)[(token * heads + head) * own..][..own];
            let make = |token: usize, to: &mut [f32]| to.copy_from_slice(&row(token)[..inputs]);
            let made = linear.apply_made(self.step.device, tokens, make, &[outputs]);
            let made = made.iter().flat_map(|made| made.chunks_exact(outputs)).enumerate();
            for (token, made) in made {
                let to = &mut all[(token * heads + head) * (outputs + tail)..][..outputs + tail];
                to[..outputs].copy_from_slice(made);
                to[outputs..].copy_from_slice(&row(token)[inputs..]);
            }
        }
        Ok(f32::tensor(&self.step.shape(&[heads, outputs + tail]), all))
    }

    fn norm(&mut self, x: Input<'_>) -> Result<Tensor, OpError> {
        let rows = self.rows(x);
        let mut made = HostBuffer::filled(0f32, rows.values.len());
        made.par_chunks_mut(rows.width).enumerate().for_each(|(row, to)| rows.make(row, to));
        let whole = [self.step.tokens(), rows.width];
        Ok(f32::tensor(x.rows.map_or(&whole, Tensor::shape), made))
    }

    fn advance<C: Typed>(
        &mut self,
        states: StateId,
        call: &C,
        _part: &[usize],
    ) -> Result<Tensor, OpError> {
        self.memory.states[states.0].advance(&self.step, call)
    }

    fn rotate(&mut self, x: &mut Tensor, first: usize, by: &Rotation) -> Result<(), OpError> {
        rotate(x, first, by, &self.step.positions);
        Ok(())
    }

    fn append(&mut self, cache: CacheId, new: Append<'_>) -> Result<(), OpError> {
        self.memory.caches[cache.0].append(&self.step, new)
    }

    fn attend(&mut self, cache: CacheId, call: Attend<'_>) -> Result<Tensor, OpError> {
        self.memory.caches[cache.0].attend(&self.step, call)
    }

    fn add_experts(&mut self, of: &CpuExperts, h: &Tensor, logits: &Tensor) -> Result<(), OpError> {
        let made = of.apply(self.step.device, values(h), values(logits), self.step.tokens());
        match &mut self.share {
            Some(share) => share.add(&made, None),
            None => add_scaled(&mut self.x, &made, self.residual),
        }
        Ok(())
    }

    fn experts(
        &mut self,
        of: &CpuExperts,
        rows: &Tensor,
        logits: &Tensor,
    ) -> Result<Tensor, OpError> {
        let made = of.apply(self.step.device, values(rows), values(logits), self.step.tokens());
        Ok(Tensor::new(rows.shape(), made))
    }

    fn logits(
        &mut self,
        of: &CpuProjection,
        norm: &RmsNorm,
        wanted: LogitsSelection,
    ) -> Result<Tensor, ModelError> {
        if wanted == LogitsSelection::Hidden {
            let failed = |error: OpError| ModelError::Device(error.to_string());
            return self.norm(Input::stream(norm)).map_err(failed);
        }
        let stream = self.rows(Input::stream(norm));
        let offsets = self.step.offsets.view::<i32>().unwrap_or_default();
        let rows = match wanted {
            LogitsSelection::Every | LogitsSelection::Hidden => self.step.tokens(),
            LogitsSelection::Last => offsets.len() - 1,
        };
        let make = |row: usize, to: &mut [f32]| match wanted {
            LogitsSelection::Every | LogitsSelection::Hidden => stream.make(row, to),
            LogitsSelection::Last => stream.make(offsets[row + 1] as usize - 1, to),
        };
        let logits = of.apply_whole(self.step.device, rows, make);
        let (logits, width) = match &self.share {
            Some(share) => share.whole_rows(&logits, of.outputs())?,
            None => (logits, of.outputs()),
        };
        Ok(f32::tensor(&[rows, width], logits))
    }

    fn sum_over_ranks(&mut self) -> Result<(), ModelError> {
        let (x, residual) = (&mut self.x, self.residual);
        self.share.as_mut().map_or(Ok(()), |share| share.sum(x, residual))
    }

    fn recv_hidden(&mut self) -> Result<(), ModelError> {
        let Some((ranks, _)) = self.stages else { return Ok(()) };
        ranks.recv_hidden(&mut self.x)
    }

    fn send_hidden(&mut self, logits: Option<Tensor>) -> Result<Tensor, ModelError> {
        let Some((ranks, width)) = self.stages else {
            return logits.ok_or_else(|| ModelError::fault("the last layers are not here"));
        };
        let logits = ranks.send_hidden(logits.as_ref().map_or(&self.x, values))?;
        Ok(Tensor::new(&[logits.len() / width, width], logits))
    }

    /// Activations are not checked for NaN by ops, so they are checked here.
    fn end_layer(&mut self) -> Result<(), OpError> {
        let Some(at) = self.x.iter().position(|x| x.is_nan()) else { return Ok(()) };
        let (tensor, what) = ("x".to_owned(), format!("is NaN at element {at}"));
        Err(OpError::Value { op: "model", tensor, what })
    }
}
