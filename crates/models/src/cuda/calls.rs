//! The CUDA executor of layer programs: each call is planned over the tokens of a pass, then launched or recorded.

use super::experts::CudaExperts;
use super::group::Group;
use super::pass::device_error;
use super::run::{Cache, Run};
use super::states::{Part, StatePool};
use super::weights::CudaProjection;
use super::{Cuda, failed};
use crate::ModelError;
use crate::engine::LogitsSelection;
use crate::program::{
    Append, Attend, CacheId, Convolution, Executor, Input, MixerError, RmsNorm, Rotation, StateId,
    convolve, exactly,
};
use device::cuda::DeviceError;
use ops::linear::{ConvStep, Epilogue, LinearCall, NormPrologue, OutputType};
use ops::rmsnorm::{Activation, RmsNormCall, RmsNormOptions};
use ops::{DType, OpError, RecurrentCall, States, Tensor, TokenRangeCall, Typed};
use ops_cuda::decoder;
use std::ops::Range;

fn width(part: &[usize]) -> usize {
    part.iter().product()
}

impl Run<'_> {
    /// An activation tensor `[tokens, width]`.
    fn rows(&self, width: usize) -> Result<Tensor, OpError> {
        self.tensor(&[self.pass.tokens, width], DType::Bf16)
    }

    /// A tensor over the tokens, in the shape that ops expect.
    fn by_token(&self, x: &Tensor, part: &[usize]) -> Result<Tensor, OpError> {
        x.shaped(&self.pass.shape(part))
    }

    /// Rows `[tokens, width]` and the norm that a projection applies to them. The input has a norm and no gate.
    pub(super) fn taken<'t>(
        &self,
        x: Input<'t>,
    ) -> Result<(Tensor, Option<NormPrologue<'t>>), OpError> {
        if x.gate.is_some() {
            return Ok((self.made(x)?, None));
        }
        if let Some(rows) = self.whole_norm(x)? {
            return Ok((rows, None));
        }
        Ok((self.flat(x.rows.unwrap_or(&self.x))?, x.norm.map(|norm| norm.prologue())))
    }

    /// A tensor over the tokens as a matrix `[tokens, width]`.
    fn flat(&self, x: &Tensor) -> Result<Tensor, OpError> {
        x.shaped(&[self.pass.tokens, x.len() / self.pass.tokens])
    }

    /// Normalized and gated rows in separate memory `[tokens, width]`.
    pub(super) fn made(&self, x: Input<'_>) -> Result<Tensor, OpError> {
        if let Some(rows) = self.whole_norm(x)? {
            return Ok(rows);
        }
        let rows = x.rows.unwrap_or(&self.x);
        let (tokens, width) = (self.pass.tokens, rows.len() / self.pass.tokens);
        let Some(norm) = x.norm else {
            let Some((gate, Activation::Sigmoid)) = x.gate else {
                let what = "rows without a norm are gated by a sigmoid alone".to_owned();
                return Err(device_error(DeviceError::Refused { what }));
            };
            let o = self.rows(width)?;
            let buffers = [rows.on()?, gate.on()?, o.on()?];
            self.push(decoder::gate(self.device, DType::Bf16, buffers, tokens * width)?)?;
            return Ok(o);
        };
        let groups = norm.norm.groups;
        let by_group = [1, tokens, groups, width / groups];
        let weight = match groups > 1 && norm.weight.len() == width {
            true => norm.weight.shaped(&by_group[2..])?,
            false => norm.weight.clone(),
        };
        let gate = x.gate.map(|(gate, _)| gate.shaped(&by_group)).transpose()?;
        let o = self.rows(width)?;
        self.call(&RmsNormCall {
            x: &rows.shaped(&by_group)?,
            gate: gate.as_ref(),
            weight: Some(&weight),
            options: RmsNormOptions {
                activation: x.gate.map_or(Activation::Silu, |(_, activation)| activation),
                norm_before_gate: gate.is_some(),
                eps: norm.norm.eps,
                out: (rows.dtype() == DType::F32).then_some(DType::Bf16),
            },
            o: Some(&o),
        })?;
        Ok(o)
    }

    /// Convolves `count` channels starting at `first`; `x` and `o` are over a group's tokens.
    fn convolve_part(
        &self,
        conv: &Convolution,
        (first, count): Part,
        (group, states): (&Group, States<'_>),
        [x, o]: [&Tensor; 2],
    ) -> Result<(), OpError> {
        let bias = conv.bias.as_ref().map(|bias| bias.rows(first, count)).transpose()?;
        let weight = conv.weight.rows(first, count)?;
        let call = convolve(x, &weight, bias.as_ref(), conv.silu);
        self.call(&RecurrentCall { call: &call, offsets: group.offsets(), states, o: Some(o) })
    }

    /// Runs a recurrent call over the tokens of a group.
    fn advance_group<C: Typed>(
        &self,
        (pool, group): (&StatePool, &Group),
        call: &C,
        o: &Tensor,
    ) -> Result<(), OpError> {
        let moving = pool.begin(self, group)?;
        let (offsets, states) = (group.offsets(), moving.states(0));
        self.call(&RecurrentCall { call, offsets, states, o: Some(o) })?;
        pool.end(self, group, &moving)
    }

    /// Convolves one token of each sequence after its projection, or fused with it if there is a kernel for this number
    /// of sequences.
    fn step_convolution(
        &self,
        project: &LinearCall<'_>,
        (conv, first): (&Convolution, usize),
        projected: &Tensor,
    ) -> Result<Tensor, OpError> {
        let group = &self.pass.groups[0];
        let states = self.memory.states[conv.states.0].in_place(group);
        let (weight, bias) = (&conv.weight, conv.bias.as_ref());
        let convolved = ConvStep { weight, bias, first, silu: conv.silu, states };
        let convolving = LinearCall { epilogue: Epilogue::ConvStep(convolved), ..*project };
        if self.is_possible(&convolving)? {
            self.call(&convolving)?;
            return Ok(projected.clone());
        }
        self.call(project)?;
        let channels = conv.weight.shape()[0];
        let x = self.by_token(projected, &[channels])?;
        let mixed = self.rows(channels)?;
        self.convolve_part(conv, (0, channels), (group, states), [&x, &mixed])?;
        Ok(mixed)
    }
}

impl Executor<Cuda> for Run<'_> {
    fn project<const N: usize>(
        &mut self,
        of: &CudaProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], OpError> {
        let made = parts.iter().map(|part| self.rows(width(part)));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        self.project_rows(of, x, (Epilogue::Identity, None), &made)?;
        let shaped = made.iter().zip(parts).map(|(made, part)| self.by_token(made, part));
        Ok(exactly(shaped.collect::<Result<_, _>>()?))
    }

    fn project_summed<const N: usize>(
        &mut self,
        of: &CudaProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
    ) -> Result<[Tensor; N], MixerError> {
        match &self.share {
            Some(share) => Ok(exactly(self.project_to_sum(share, of, x, &parts)?)),
            None => Ok(self.project(of, x, parts)?),
        }
    }

    fn project_wide(
        &mut self,
        of: &CudaProjection,
        x: Input<'_>,
        part: &[usize],
    ) -> Result<Tensor, OpError> {
        let made = [self.tensor(&[self.pass.tokens, width(part)], DType::F32)?];
        self.project_rows(of, x, (Epilogue::Identity, Some(OutputType::F32)), &made)?;
        self.by_token(&made[0], part)
    }

    /// Decoding steps return column ranges of the convolved tensor; the chunked kernels need each part as a separate
    /// tensor.
    fn project_convolved<const N: usize>(
        &mut self,
        of: &CudaProjection,
        x: Input<'_>,
        parts: [&[usize]; N],
        (conv, convolved): (&Convolution, Range<usize>),
    ) -> Result<[Tensor; N], OpError> {
        let (run, Range { start, end }) = (&*self, convolved);
        let widths = parts.map(width);
        let before = |at: usize| widths[start..at].iter().sum();
        let mixing: Vec<Part> = (start..end).map(|at| (before(at), widths[at])).collect();
        let shape = |at: usize| run.pass.shape(parts[start + at]);
        let made = [&widths[..start], &[conv.weight.shape()[0]], &widths[end..]].concat();
        let made = made.into_iter().map(|width| run.rows(width));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        let mixed = if run.pass.one_token {
            let scale = x.factor;
            let (x, norm) = run.taken(x)?;
            let project = LinearCall { norm, scale, ..of.of(&x) }.into(&made);
            let first = widths[..start].iter().sum();
            let mixed = run.step_convolution(&project, (conv, first), &made[start])?;
            let columns = mixing.iter().enumerate();
            let columns = columns.map(|(at, part)| mixed.columns(part.0, part.1, &shape(at)));
            columns.collect::<Result<Vec<_>, _>>()?
        } else {
            run.project_rows(of, x, (Epilogue::Identity, None), &made)?;
            let mixed =
                mixing.iter().map(|part| run.rows(part.1)).collect::<Result<Vec<_>, _>>()?;
            for group in &run.pass.groups {
                let pool = &run.memory.states[conv.states.0];
                let of_group = made[start].rows(group.rows.start, group.rows.len())?;
                let moving = pool.begin_parts(run, group, &mixing)?;
                for (at, part) in mixing.iter().enumerate() {
                    let x = of_group.columns(part.0, part.1, &group.shape(&[part.1]))?;
                    let o = group.of(&mixed[at], &[part.1])?;
                    run.convolve_part(conv, *part, (group, moving.states(at)), [&x, &o])?;
                }
                pool.end(run, group, &moving)?;
            }
            let shaped = mixed.iter().enumerate().map(|(at, mixed)| mixed.shaped(&shape(at)));
            shaped.collect::<Result<Vec<_>, _>>()?
        };
        let apart = |(made, part): (&Tensor, &&[usize])| run.by_token(made, part);
        let before = made.iter().zip(&parts[..start]).map(apart);
        let behind = made[start + 1..].iter().zip(&parts[end..]).map(apart);
        let all = before.chain(mixed.into_iter().map(Ok)).chain(behind);
        Ok(exactly(all.collect::<Result<_, _>>()?))
    }

    fn convolve(&mut self, by: &Convolution, x: &Tensor) -> Result<Tensor, OpError> {
        let (run, channels) = (&*self, by.weight.shape()[0]);
        let (x, o) = (run.flat(x)?, run.rows(channels)?);
        let (pool, whole) = (&run.memory.states[by.states.0], (0, channels));
        for group in &run.pass.groups {
            let (x, o) = (group.of(&x, &[channels])?, group.of(&o, &[channels])?);
            if group.one_token {
                run.convolve_part(by, whole, (group, pool.in_place(group)), [&x, &o])?;
                continue;
            }
            let moving = pool.begin_parts(run, group, &[whole])?;
            run.convolve_part(by, whole, (group, moving.states(0)), [&x, &o])?;
            pool.end(run, group, &moving)?;
        }
        Ok(o)
    }

    fn multiply(&mut self, [x, y]: [&Tensor; 2]) -> Result<Tensor, OpError> {
        let (count, tokens) = (x.len(), self.pass.tokens);
        let o = self.rows(count / tokens)?;
        let buffers = [x.on()?, y.on()?, o.on()?];
        self.push(decoder::multiply(self.device, DType::Bf16, buffers, count)?)?;
        Ok(o)
    }

    fn project_gated(&mut self, of: &CudaProjection, x: Input<'_>) -> Result<Tensor, OpError> {
        let gated = self.rows(of.outputs() / 2)?;
        self.project_rows(of, x, (Epilogue::SwiGlu, None), std::slice::from_ref(&gated))?;
        Ok(gated)
    }

    fn project_gelu_gated(&mut self, _: &CudaProjection, _: Input<'_>) -> Result<Tensor, OpError> {
        let what = "gates of GELU".to_owned();
        Err(device_error(DeviceError::Refused { what }))
    }

    fn project_squared(&mut self, of: &CudaProjection, x: Input<'_>) -> Result<Tensor, OpError> {
        let squared = self.rows(of.outputs())?;
        self.project_rows(of, x, (Epilogue::SquaredRelu, None), std::slice::from_ref(&squared))?;
        Ok(squared)
    }

    fn gate_tokens(&mut self, rows: &mut Tensor, h: &Tensor, w: &Tensor) -> Result<(), OpError> {
        let count = self.pass.tokens;
        let gates = decoder::GateRows {
            dtype: DType::Bf16,
            x: rows.on()?,
            h: h.on()?,
            w: w.on()?,
            count,
            width: rows.len() / count,
            hidden: w.len(),
        };
        self.push(decoder::gate_rows(self.device, &gates)?)
    }

    fn add(&mut self, of: &CudaProjection, x: Input<'_>) -> Result<(), OpError> {
        if let Some(mut share) = self.share.take() {
            let added = self.add_to_share(&mut share, of, x);
            self.share = Some(share);
            return added;
        }
        let scale = self.residual * x.factor;
        let (x, norm) = self.taken(x)?;
        let to = match self.is_zero {
            true => self.tensor(self.x.shape(), DType::F32)?,
            false => self.x.clone(),
        };
        let epilogue = Epilogue::Residual(&self.x);
        self.call(&LinearCall { norm, epilogue, scale, ..of.of(&x) }.into([&to]))?;
        (self.x, self.is_zero) = (to, false);
        Ok(())
    }

    fn begin_branch(&mut self) -> Result<Tensor, OpError> {
        let zeros = self.zeros()?;
        self.is_zero = true;
        Ok(std::mem::replace(&mut self.x, zeros))
    }

    fn end_branch(&mut self, stream: Tensor, norm: &RmsNorm) -> Result<(), OpError> {
        let (count, hidden) = (self.pass.tokens, norm.weight.len());
        let normed = self.tensor(stream.shape(), DType::F32)?;
        self.call(&RmsNormCall {
            x: &self.x.shaped(&[1, count, 1, hidden])?,
            gate: None,
            weight: Some(&norm.weight),
            options: RmsNormOptions {
                activation: Activation::Silu,
                norm_before_gate: false,
                eps: norm.norm.eps,
                out: None,
            },
            o: Some(&normed),
        })?;
        (self.x, self.is_zero) = (stream, false);
        let (added, x, squares) = (normed.on()?, self.x.on()?, None);
        let join = decoder::ResidualSum { added, squares, x, count, hidden, factor: 1.0 };
        self.push(decoder::join(self.device, &join)?)
    }

    fn adds_more(&mut self) {
        if let Some(share) = &mut self.share {
            share.several = true;
        }
    }

    fn multiply_heads(&mut self, of: &Tensor, x: &Tensor, tail: usize) -> Result<Tensor, OpError> {
        let [heads, outputs, inputs] = *of.shape() else {
            let what = format!("matrices of heads {:?}", of.shape());
            return Err(device_error(DeviceError::Refused { what }));
        };
        let o = self.rows(heads * (outputs + tail))?;
        let call = decoder::Heads {
            dtype: DType::Bf16,
            x: x.on()?,
            w: of.on()?,
            o: o.on()?,
            count: self.pass.tokens,
            heads,
            inputs,
            outputs,
            tail,
        };
        self.push(decoder::heads(self.device, &call)?)?;
        self.by_token(&o, &[heads, outputs + tail])
    }

    fn norm(&mut self, x: Input<'_>) -> Result<Tensor, OpError> {
        let made = self.made(x)?;
        x.rows.map_or(Ok(made.clone()), |rows| made.shaped(rows.shape()))
    }

    fn advance<C: Typed>(
        &mut self,
        states: StateId,
        call: &C,
        part: &[usize],
    ) -> Result<Tensor, OpError> {
        let run = &*self;
        let (pool, o) = (&run.memory.states[states.0], run.rows(width(part))?);
        if let [group] = &run.pass.groups[..] {
            run.advance_group((pool, group), call, &o)?;
        } else {
            for group in &run.pass.groups {
                let call = TokenRangeCall::new(call, &group.rows, &group.leading(), run.stream)?;
                let o = o.rows(group.rows.start, group.rows.len())?;
                run.advance_group((pool, group), &call, &o)?;
            }
        }
        run.by_token(&o, part)
    }

    fn rotate(&mut self, _: &mut Tensor, _: usize, _: &Rotation) -> Result<(), OpError> {
        Err(device_error(DeviceError::Refused { what: "a rotation without keys".to_owned() }))
    }

    fn append(&mut self, cache: CacheId, new: Append<'_>) -> Result<(), OpError> {
        let Cache { keys: pool, values, .. } = &self.memory.caches[cache.0];
        let of_token = |x: &Tensor| x.len() / self.pass.tokens;
        let more = new.more.map(|more| Ok((more.on()?, of_token(more)))).transpose()?;
        let kv_heads = pool.shape()[2];
        let dim = of_token(new.keys) / kv_heads;
        let v = match (new.values, values) {
            (Some(v), Some(pool)) => Some((v.on()?, pool.on()?, of_token(v))),
            _ => None,
        };
        let q = new.rotated.as_ref().map(|(q, _)| q.on()).transpose()?;
        let rotation = match &new.rotated {
            Some((_, Rotation { frequencies, factor })) => {
                let (width, factor) = (frequencies.len(), *factor);
                Some(decoder::Turns { frequencies: frequencies.on()?, width, factor })
            }
            None => None,
        };
        let append = decoder::Append {
            dtype: DType::Bf16,
            q,
            k: new.keys.on()?,
            more,
            v,
            k_pool: pool.on()?,
            rows: &self.pass.rows,
            positions: &self.pass.positions,
            count: self.pass.tokens,
            heads: new.rotated.as_ref().map_or(0, |(q, _)| of_token(q) / dim),
            kv_heads,
            dim,
            rotation,
        };
        self.push(decoder::append(self.device, &append)?)
    }

    fn attend(&mut self, cache: CacheId, call: Attend<'_>) -> Result<Tensor, OpError> {
        let cache = &self.memory.caches[cache.0];
        let heads = call.queries.shape()[call.queries.shape().len() - 2];
        let o = self.rows(heads * cache.value_dim)?;
        for group in &self.pass.groups {
            self.attend_group(group, cache, &call, &o)?;
        }
        self.by_token(&o, &[heads, cache.value_dim])
    }

    /// The output is a second tensor: experts read the residual stream while they write.
    fn add_experts(
        &mut self,
        of: &CudaExperts,
        h: &Tensor,
        logits: &Tensor,
    ) -> Result<(), OpError> {
        let given = [&self.flat(h)?, &self.flat(logits)?];
        if let Some(mut share) = self.share.take() {
            let added = self.add_experts_to_share(&mut share, of, given);
            self.share = Some(share);
            return added;
        }
        let to = match self.spare.take() {
            Some(to) => to,
            None => self.tensor(self.x.shape(), DType::F32)?,
        };
        let from = std::mem::replace(&mut self.x, to);
        self.call(&of.call(given, self.residual, (Some(&from), &self.x)))?;
        if !std::mem::take(&mut self.is_zero) {
            self.spare = Some(from);
        }
        for [up, down] in of.left_out(self.pass.tokens) {
            let inner = match of.is_gated() {
                true => self.project_gated(up, Input::rows(h))?,
                false => self.project_squared(up, Input::rows(h))?,
            };
            self.add(down, Input::rows(&inner))?;
        }
        Ok(())
    }

    fn experts(
        &mut self,
        of: &CudaExperts,
        rows: &Tensor,
        logits: &Tensor,
    ) -> Result<Tensor, OpError> {
        let o = self.rows(rows.len() / self.pass.tokens)?;
        let given = [&self.flat(rows)?, &self.flat(logits)?];
        self.call(&of.call(given, 1.0, (None, &o)))?;
        Ok(o)
    }

    fn logits(
        &mut self,
        of: &CudaProjection,
        norm: &RmsNorm,
        wanted: LogitsSelection,
    ) -> Result<Tensor, ModelError> {
        self.head(of, norm, wanted).map_err(failed)
    }

    fn sum_over_ranks(&mut self) -> Result<(), ModelError> {
        let Some(mut share) = self.share.take() else { return Ok(()) };
        let summed = self.sum_share(&mut share);
        self.share = Some(share);
        summed.map_err(failed)
    }
}
