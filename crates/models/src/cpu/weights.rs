//! Weights in the layout of the CPU kernels.

use super::cache::Cache;
use super::experts::CpuExperts;
use super::rows::add_scaled;
use super::state::StatePool;
use super::{Cpu, Memory};
use crate::group_quant::IntegerValues;
use crate::layers::{Experts, GatedMlp};
use crate::pages::Pages;
use crate::params::{ParamId, Projection, RowRange};
use crate::program::{self, CacheId, Loader, StateId};
use crate::values::{Value, Values};
use crate::{Architecture, Checkpoint, ModelError, Storage};
use architectures::UnexpandedWeights;
use device::{Device, HostBuffer, Isa};
use half::bf16;
use ops::{DType, Tensor};
use ops_cpu::gemm::Mat;
use ops_cpu::gemm::{IntegerFormat, IntegerRows};
use ops_cpu::packed_linear::{GATES, Linear};
use std::ops::Range;

/// Loads a model's weights from its checkpoint and allocates the memory of its layers.
pub(super) struct Weights<'a> {
    architecture: &'a Architecture,
    checkpoint: &'a Checkpoint,
    pages: &'a Pages,
    isa: Isa,
    storage: Storage,
    /// Memory that layers have requested so far.
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

    /// Concatenated values of parameters.
    fn concatenated(&self, ids: &[ParamId]) -> Result<Vec<f32>, ModelError> {
        let all = ids.iter().map(|id| Loader::<Cpu>::read(self, *id));
        Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Concatenated rows of parameters `[rows, width]`.
    fn rows(&self, rows: &[RowRange], width: usize) -> Result<Stacked<'a>, ModelError> {
        let mut end = 0;
        let part = |rows: &RowRange| {
            let start = end;
            end += rows.count;
            let values = self.checkpoint.param(self.architecture.params.get(rows.param))?;
            Ok(Part { rows: start..end, first: rows.first, values })
        };
        Ok(Stacked { width, parts: rows.iter().map(part).collect::<Result<_, ModelError>>()? })
    }

    /// Integer rows `[count, width]`, which stay integers if the storage is bfloat16; `None` if some rows have another
    /// format than the first.
    fn integers(&self, rows: &[RowRange], width: usize) -> Result<Option<Linear>, ModelError> {
        let values = |rows: &RowRange| {
            let param = self.architecture.params.get(rows.param);
            self.checkpoint
                .integers_of(param)
                .filter(|_| param.is_kept(UnexpandedWeights::Integers))
        };
        if self.storage == Storage::F32 {
            return Ok(None);
        }
        let Some(values) = rows.iter().map(values).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let all = || values.iter().map(|values| values.of);
        let Some(first) = all().next() else { return Ok(None) };
        // Formats of GGUF rows may differ: the most bits and the smallest groups represent all of them.
        let float = all().all(|of| of.float);
        // E2M1 values times two do not fit 4-bit integers but fit 8 bits.
        let bits = |of: &crate::group_quant::Integers| if of.float && !float { 8 } else { of.bits };
        let bits = all().map(bits).max().unwrap_or(first.bits);
        // A rank's part may have fewer columns than a group.
        let group_of = |of: &crate::group_quant::Integers| of.group.min(width);
        let group = all().map(group_of).min().unwrap_or(width);
        let alike = |values: &IntegerValues<'_>| {
            let of = values.of;
            let own = group_of(of);
            let [shared, whole] = [own.is_multiple_of(group), width.is_multiple_of(own)];
            let divided = own == group || (shared && whole);
            values.columns() == width && divided && of.order == first.order && of.is_sortable()
        };
        // Kernels need groups of whole words, except for the last group of a row.
        let whole = group >= width || group.is_multiple_of(32 / bits);
        if !whole || !values.iter().all(alike) {
            return Ok(None);
        }
        let format = IntegerFormat { bits, float, group, zeros: all().any(|of| of.zeros) };
        let groups = format.groups(width);
        let read = |wanted: Range<usize>, into: &mut IntegerRows<'_>| {
            let mut start = 0;
            for (rows, values) in rows.iter().zip(&values) {
                let (from, to) = (wanted.start.max(start), wanted.end.min(start + rows.count));
                if from < to {
                    let own = rows.first + from - start..rows.first + to - start;
                    let at = from - wanted.start..to - wanted.start;
                    let of = |size: usize| at.start * size..at.end * size;
                    values.sorted(own.clone(), &mut into.values[of(width)])?;
                    let zeros = if format.zeros { of(groups) } else { 0..0 };
                    let scales_and_zeros = [&mut into.scales[of(groups)], &mut into.zeros[zeros]];
                    shared(values, own, scales_and_zeros, groups)?;
                }
                start += rows.count;
            }
            Ok(())
        };
        let size = [rows.iter().map(|rows| rows.count).sum(), width];
        Linear::integer_rows(self.isa, size, format, first.order.clone(), read).map(Some)
    }

    /// Rows `[count, width]` as a projection from `width` to `count`, or transposed from `count` to `width`.
    ///
    /// bfloat16 is kept if the CPU has instructions for it; otherwise float32 is multiplied. float32 storage is summed
    /// in float64: KDA's norm divides by the remainder of heads that cancel, which amplifies rounding errors.
    fn linear(
        &self,
        rows: &[RowRange],
        width: usize,
        transposed: bool,
    ) -> Result<Linear, ModelError> {
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

    fn transfer(&self, values: Tensor) -> Result<Tensor, ModelError> {
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

    /// Without a bias: no family has one here.
    fn gated(&self, of: &Projection) -> Result<CpuProjection, ModelError> {
        let rows = of.interleaved_gates_and_ups(GATES);
        let linear = match self.integers(&rows, of.inputs)? {
            Some(linear) => linear,
            None => self.linear(&rows, of.inputs, false)?,
        };
        Ok(CpuProjection { linear, bias: None })
    }

    fn heads(
        &self,
        of: &[RowRange],
        width: usize,
        transposed: bool,
    ) -> Result<Vec<Linear>, ModelError> {
        of.iter().map(|rows| self.linear(&[*rows], width, transposed)).collect()
    }

    /// Shared experts are an ordinary projection here: fewer calls gain nothing on a CPU.
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

/// Scales and zero points of rows, `groups` per row; neighboring groups may share one in the file.
fn shared(
    values: &IntegerValues<'_>,
    rows: Range<usize>,
    [scales, zeros]: [&mut [f32]; 2],
    groups: usize,
) -> Result<(), ModelError> {
    let own = values.groups();
    if own == groups {
        return values.scales_and_zeros(rows, scales, zeros);
    }
    let mut scales_and_zeros = vec![0f32; 2 * rows.len() * own];
    let (own_scales, own_zeros) = scales_and_zeros.split_at_mut(rows.len() * own);
    values.scales_and_zeros(rows, own_scales, own_zeros)?;
    let shares = groups / own;
    for (into, from) in [(scales, own_scales), (zeros, own_zeros)] {
        into.iter_mut().enumerate().for_each(|(at, into)| *into = from[at / shares]);
    }
    Ok(())
}

/// Concatenated rows of parameters.
struct Stacked<'a> {
    width: usize,
    parts: Vec<Part<'a>>,
}

struct Part<'a> {
    /// Their range among all rows.
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

    /// Applies it to rows that are computed on the fly; returns column parts of these widths.
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

    /// [`CpuProjection::apply`] with all columns in one tensor.
    pub(super) fn apply_whole(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        // One width gives one part.
        self.apply(device, rows, x, &[self.outputs()]).swap_remove(0)
    }

    /// `silu(gate) * up` of a projection to both halves.
    pub(super) fn apply_gated(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        self.linear.apply_gated(device, rows, x)
    }

    /// `max(0, y)^2` of a projection without a bias.
    pub(super) fn apply_squared(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        self.linear.apply_squared(device, rows, x)
    }
}
