//! Weights as the processor's kernels want them.

use super::cache::Cache;
use super::experts::CpuExperts;
use super::rows::add_scaled;
use super::state::StatePool;
use super::{Cpu, Memory};
use crate::integers::IntegerValues;
use crate::layers::{Experts, GatedMlp};
use crate::pages::Pages;
use crate::params::{ParamId, Projection, Rows};
use crate::program::{self, CacheId, Loader, StateId};
use crate::values::{Value, Values};
use crate::{Architecture, Checkpoint, ModelError, Storage};
use architectures::Keeps;
use device::{Device, HostBuffer, Isa};
use half::bf16;
use kernels::cpu::gemm::{IntegerRows, Integers, Mat};
use kernels::cpu::linear::{GATES, Linear};
use kernels::{DType, Tensor};
use std::ops::Range;

/// The weights of a model, read from its checkpoint, and the memory that goes with them.
pub(super) struct Weights<'a> {
    architecture: &'a Architecture,
    checkpoint: &'a Checkpoint,
    pages: &'a Pages,
    isa: Isa,
    storage: Storage,
    /// What layers asked for so far.
    pub(super) memory: Memory,
}

impl<'a> Weights<'a> {
    pub(super) fn new(
        model: (&'a Architecture, &'a Checkpoint),
        pages: &'a Pages,
        device: &Device,
        storage: Storage,
    ) -> Self {
        let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
        let (architecture, checkpoint) = model;
        Self { architecture, checkpoint, pages, isa, storage, memory: Memory::default() }
    }

    /// The values of parameters, one behind the other.
    fn concatenated(&self, ids: &[ParamId]) -> Result<Vec<f32>, ModelError> {
        let all = ids.iter().map(|id| Loader::<Cpu>::read(self, *id));
        Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Rows of parameters under each other, as values `[rows, width]`.
    fn rows(&self, rows: &[Rows], width: usize) -> Result<Stacked<'a>, ModelError> {
        let mut end = 0;
        let part = |rows: &Rows| {
            let start = end;
            end += rows.count;
            let values = self.checkpoint.param(self.architecture.params.get(rows.param))?;
            Ok(Part { rows: start..end, first: rows.first, values })
        };
        Ok(Stacked { width, parts: rows.iter().map(part).collect::<Result<_, ModelError>>()? })
    }

    /// Rows `[count, width]` in integers, which stay so beside storage in bfloat16; none where some are otherwise than the first.
    fn integers(&self, rows: &[Rows], width: usize) -> Result<Option<Linear>, ModelError> {
        let values = |rows: &Rows| {
            let param = self.architecture.params.get(rows.param);
            self.checkpoint.integers_of(param).filter(|_| param.is_kept(Keeps::Integers))
        };
        if self.storage == Storage::F32 {
            return Ok(None);
        }
        let Some(values) = rows.iter().map(values).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let all = || values.iter().map(|values| values.of);
        let Some(first) = all().next() else { return Ok(None) };
        // Where rows differ, as some of GGUF's do, the most bits and the smallest groups hold all of them.
        let float = all().all(|of| of.float);
        // Twice what E2M1 has, which is no integer of 4 bits, is one of 8.
        let bits = |of: &crate::integers::Integers| if of.float && !float { 8 } else { of.bits };
        let bits = all().map(bits).max().unwrap_or(first.bits);
        // A rank may have fewer columns than share a scale.
        let group_of = |of: &crate::integers::Integers| of.group.min(width);
        let group = all().map(group_of).min().unwrap_or(width);
        let alike = |values: &IntegerValues<'_>| {
            let of = values.of;
            let own = group_of(of);
            let [shared, whole] = [own.is_multiple_of(group), width.is_multiple_of(own)];
            let divided = own == group || (shared && whole);
            values.columns() == width && divided && of.order == first.order && of.is_sortable()
        };
        // Kernels make whole words of groups, whatever the last one of a row has.
        let whole = group >= width || group.is_multiple_of(32 / bits);
        if !whole || !values.iter().all(alike) {
            return Ok(None);
        }
        let form = Integers { bits, float, group, zeros: all().any(|of| of.zeros) };
        let groups = form.groups(width);
        let read = |wanted: Range<usize>, into: &mut IntegerRows<'_>| {
            let mut start = 0;
            for (rows, values) in rows.iter().zip(&values) {
                let (from, to) = (wanted.start.max(start), wanted.end.min(start + rows.count));
                if from < to {
                    let own = rows.first + from - start..rows.first + to - start;
                    let at = from - wanted.start..to - wanted.start;
                    let of = |size: usize| at.start * size..at.end * size;
                    values.sorted(own.clone(), &mut into.numbers[of(width)])?;
                    let zeros = if form.zeros { of(groups) } else { 0..0 };
                    let factors = [&mut into.scales[of(groups)], &mut into.zeros[zeros]];
                    shared(values, own, factors, groups)?;
                }
                start += rows.count;
            }
            Ok(())
        };
        let size = [rows.iter().map(|rows| rows.count).sum(), width];
        Linear::integer_rows(self.isa, size, form, first.order.clone(), read).map(Some)
    }

    /// Rows `[count, width]` as a projection from `width` to `count`, or by their transpose from `count` to `width`.
    ///
    /// bfloat16 is kept where the processor multiplies it; others multiply float32. What is stored in float32 is summed in float64:
    /// KDA's norm divides by what is left of heads that cancel, and so do errors of what they were made of.
    fn linear(&self, rows: &[Rows], width: usize, transposed: bool) -> Result<Linear, ModelError> {
        let all = self.rows(rows, width)?;
        let size @ [count, _] = [rows.iter().map(|rows| rows.count).sum(), width];
        let rounded = self.storage == Storage::Bf16 && self.isa == Isa::Avx512Bf16;
        let summed = |linear: Linear| match self.storage {
            Storage::F32 => linear.exact(),
            Storage::Bf16 => linear,
        };
        if !transposed {
            return match rounded {
                true => Linear::bf16_rows(size, |rows, into| all.fill(rows, into)),
                false => {
                    Linear::f32_rows(self.isa, size, |rows, into| all.fill(rows, into)).map(summed)
                }
            };
        }
        if rounded {
            let mut w = vec![bf16::ZERO; count * width];
            all.fill(0..count, &mut w)?;
            return Ok(Linear::bf16(Mat::new(&w, count, width, width)));
        }
        let mut w = vec![0f32; count * width];
        all.fill(0..count, &mut w)?;
        Ok(summed(Linear::f32(self.isa, Mat::new(&w, count, width, width))))
    }
}

impl Loader<Cpu> for Weights<'_> {
    fn architecture(&self) -> &Architecture {
        self.architecture
    }

    fn vectors(&self, ids: &[ParamId], shape: &[usize]) -> Result<Tensor, ModelError> {
        Ok(Tensor::new(shape, self.concatenated(ids)?))
    }

    fn read(&self, id: ParamId) -> Result<Vec<f32>, ModelError> {
        let param = self.architecture.params.get(id);
        self.checkpoint.param(param)?.read(0, param.len())
    }

    fn give(&self, values: Tensor) -> Result<Tensor, ModelError> {
        Ok(values)
    }

    fn projection(&self, of: &Projection) -> Result<CpuProjection, ModelError> {
        let linear = match self.integers(&of.rows, of.inputs)? {
            Some(linear) => linear,
            None => self.linear(&of.rows, of.inputs, false)?,
        };
        let bias = (!of.bias.is_empty()).then(|| self.concatenated(&of.bias)).transpose()?;
        Ok(CpuProjection { linear, bias })
    }

    /// Without a bias, which no family has here.
    fn gated(&self, of: &Projection) -> Result<CpuProjection, ModelError> {
        let rows = of.gates_beside_ups(GATES);
        let linear = match self.integers(&rows, of.inputs)? {
            Some(linear) => linear,
            None => self.linear(&rows, of.inputs, false)?,
        };
        Ok(CpuProjection { linear, bias: None })
    }

    fn heads(
        &self,
        of: &[Rows],
        width: usize,
        transposed: bool,
    ) -> Result<Vec<Linear>, ModelError> {
        of.iter().map(|rows| self.linear(&[*rows], width, transposed)).collect()
    }

    /// What stands beside them is a projection like others here: nothing is won by fewer calls.
    fn experts(
        &self,
        of: &Experts,
        _shared: Option<&GatedMlp>,
    ) -> Result<(CpuExperts, bool), ModelError> {
        Ok((CpuExperts::new(of, self)?, false))
    }

    fn states_in(&mut self, _: DType, shape: &[usize]) -> Result<StateId, ModelError> {
        self.memory.states.push(StatePool::new(self.pages.sequences(), shape));
        Ok(StateId(self.memory.states.len() - 1))
    }

    fn cache(&mut self, keys: [usize; 2], values: program::Values) -> Result<CacheId, ModelError> {
        let dtype = match self.storage {
            Storage::F32 => DType::F32,
            Storage::Bf16 => DType::Bf16,
        };
        self.memory.caches.push(Cache::new(self.pages, dtype, keys, values));
        Ok(CacheId(self.memory.caches.len() - 1))
    }
}

/// Scales and zero points of rows, so many for each, of which neighbours may share one in the file.
fn shared(
    values: &IntegerValues<'_>,
    rows: Range<usize>,
    [scales, zeros]: [&mut [f32]; 2],
    groups: usize,
) -> Result<(), ModelError> {
    let own = values.groups();
    if own == groups {
        return values.factors(rows, scales, zeros);
    }
    let mut factors = vec![0f32; 2 * rows.len() * own];
    let (own_scales, own_zeros) = factors.split_at_mut(rows.len() * own);
    values.factors(rows, own_scales, own_zeros)?;
    let shares = groups / own;
    for (into, from) in [(scales, own_scales), (zeros, own_zeros)] {
        into.iter_mut().enumerate().for_each(|(at, into)| *into = from[at / shares]);
    }
    Ok(())
}

/// Rows of parameters under each other.
struct Stacked<'a> {
    width: usize,
    parts: Vec<Part<'a>>,
}

struct Part<'a> {
    /// Where its rows stand among all.
    rows: Range<usize>,
    /// The first of them in its parameter.
    first: usize,
    values: Values<'a>,
}

impl Stacked<'_> {
    /// Reads some of the rows.
    fn fill<V: Value>(&self, rows: Range<usize>, into: &mut [V]) -> Result<(), ModelError> {
        for part in &self.parts {
            let (from, to) = (rows.start.max(part.rows.start), rows.end.min(part.rows.end));
            if from < to {
                let into =
                    &mut into[(from - rows.start) * self.width..][..(to - from) * self.width];
                part.values.fill((part.first + from - part.rows.start) * self.width, into)?;
            }
        }
        Ok(())
    }
}

/// `y = x W^T (+ bias)`.
pub(crate) struct CpuProjection {
    linear: Linear,
    bias: Option<Vec<f32>>,
}

impl CpuProjection {
    /// Width of y.
    pub(super) fn outputs(&self) -> usize {
        self.linear.outputs()
    }

    /// Applies it to rows that are made where they are multiplied; columns in parts of these widths.
    pub(super) fn apply(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
        widths: &[usize],
    ) -> Vec<HostBuffer<f32>> {
        let mut parts = self.linear.apply_made(device, rows, x, widths);
        if let Some(bias) = &self.bias {
            let mut rest = &bias[..];
            for (part, width) in parts.iter_mut().zip(widths) {
                let (own, behind) = rest.split_at(*width);
                part.chunks_exact_mut(own.len()).for_each(|row| add_scaled(row, own, 1.0));
                rest = behind;
            }
        }
        parts
    }

    /// The same, all columns side by side.
    pub(super) fn apply_whole(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        // One width gives one part.
        self.apply(device, rows, x, &[self.outputs()]).swap_remove(0)
    }

    /// `silu(gate) * up` of a projection to both.
    pub(super) fn apply_gated(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        self.linear.apply_gated(device, rows, x)
    }

    /// `max(0, y)^2`, of a projection without a bias.
    pub(super) fn apply_squared(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        self.linear.apply_squared(device, rows, x)
    }
}
