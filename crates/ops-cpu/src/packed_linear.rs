//! Linear projections `y = x W^T`: W is packed once, and the cores together read it once per call.
#![allow(unsafe_code)] // Blocks write disjoint parts of one output.

mod integers;

use super::gate::{GateActivation, gate};
use super::gemm::{
    Mat, MatMut, PackedB, PanelsBf16, Store, gemm_packed, gemm_packed_wide, gemm_panels_bf16,
};
use super::simd::{Simd, SimdKernel, dispatch};
use crate::floats::narrow;
use device::{Device, HostBuffer, Isa, SharedMut, WeightReads};
use half::bf16;
use integers::Packed;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Outputs of one strip: a few register tiles, so that a core has many strips and they balance.
const STRIP: usize = 64;
/// Gate rows before the same number of up rows in the weights of [`Linear::apply_gated`]: a strip has both.
pub const GATES: usize = STRIP / 2;
/// Rows of x that one block multiplies: all reads of a strip of W after the first are from L2.
const ROWS: usize = 96;

/// A projection's weights `[outputs, inputs]` in strips of outputs, each packed for this processor's register tiles.
#[derive(Debug)]
pub struct Linear {
    inputs: usize,
    outputs: usize,
    strips: Strips,
}

#[derive(Debug)]
enum Strips {
    F32(Isa, Sums, Vec<PackedB>),
    /// Strips, contiguous: a large buffer gets huge pages, which make reading all weights faster.
    Bf16(HostBuffer<u32>, WeightReads),
    Integers(Packed),
}

/// Accumulator type of float32 products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sums {
    F32,
    F64,
}

/// Epilogue of a strip's products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Epilogue {
    Identity,
    SwiGlu,
    SquaredRelu,
}

impl Linear {
    /// Packs float32 weights for `isa`, given as B of `y = x B`: `[inputs, outputs]` by its strides, so that a row-major
    /// `[outputs, inputs]` matrix comes as its transpose.
    ///
    /// # Panics
    /// When the matrix leaves its slice or this processor lacks `isa`.
    pub fn f32(isa: Isa, b: Mat<'_, f32>) -> Self {
        let pack = |strip: Mat<'_, f32>| {
            let mut packed = PackedB::new();
            packed.pack(isa, strip);
            packed
        };
        Self {
            inputs: b.rows,
            outputs: b.columns,
            strips: Strips::F32(isa, Sums::F32, strips(b, pack)),
        }
    }

    /// Packs bfloat16 weights for the processor's bfloat16 dot product; x is rounded to bfloat16 then.
    ///
    /// # Panics
    /// When the matrix leaves its slice or this processor lacks AVX512-BF16.
    pub fn bf16(b: Mat<'_, bf16>) -> Self {
        let mut words = HostBuffer::filled(0u32, PanelsBf16::words(b.rows, b.columns));
        let of_strip = PanelsBf16::words(b.rows, STRIP).max(1);
        words.par_chunks_mut(of_strip).enumerate().for_each(|(index, words)| {
            PanelsBf16::pack(strip(b, index * STRIP), words);
        });
        Self {
            inputs: b.rows,
            outputs: b.columns,
            strips: Strips::Bf16(words, WeightReads::default()),
        }
    }

    /// Packs float32 weights `[outputs, inputs]` for `isa`. `read` returns some neighbouring rows and is called on all cores, so the
    /// unpacked matrix is never in memory as a whole.
    ///
    /// # Errors
    /// Those of `read`.
    ///
    /// # Panics
    /// When this processor lacks `isa`.
    pub fn f32_rows<E: Send>(
        isa: Isa,
        [outputs, inputs]: [usize; 2],
        read: impl Fn(Range<usize>, &mut [f32]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let pack = |tile: &mut Vec<f32>, first: usize| {
            let rows = first..outputs.min(first + STRIP);
            tile.resize(rows.len() * inputs, 0.0);
            read(rows.clone(), tile)?;
            let mut packed = PackedB::new();
            packed.pack(isa, Mat::new(tile, rows.len(), inputs, inputs).t());
            Ok(packed)
        };
        let strips = (0..outputs).into_par_iter().step_by(STRIP).map_init(Vec::new, pack);
        let strips = Strips::F32(isa, Sums::F32, strips.collect::<Result<_, E>>()?);
        Ok(Self { inputs, outputs, strips })
    }

    /// [`Linear::f32_rows`] for bfloat16 weights, packed as by [`Linear::bf16`].
    ///
    /// # Errors
    /// Those of `read`.
    pub fn bf16_rows<E: Send>(
        [outputs, inputs]: [usize; 2],
        read: impl Fn(Range<usize>, &mut [bf16]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let failed = Mutex::new(None);
        let of_strip = PanelsBf16::words(inputs, STRIP).max(1);
        let pack = |tile: &mut Vec<bf16>, strip: usize, words: &mut [u32]| {
            let rows = strip * STRIP..outputs.min((strip + 1) * STRIP);
            tile.resize(rows.len() * inputs, bf16::ZERO);
            match read(rows.clone(), tile) {
                Ok(()) => PanelsBf16::pack(Mat::new(tile, rows.len(), inputs, inputs).t(), words),
                Err(error) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                }
            }
        };
        let words = PanelsBf16::words(inputs, outputs);
        let words = HostBuffer::by_runs_with(words, of_strip, Vec::new, pack);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => {
                Ok(Self { inputs, outputs, strips: Strips::Bf16(words, WeightReads::default()) })
            }
        }
    }

    /// Accumulates products of float32 weights in float64: each value of y is rounded once, even with cancellation. Launches count
    /// as `linear.f32_exact`.
    #[must_use]
    pub fn exact(mut self) -> Self {
        if let Strips::F32(_, sums, _) = &mut self.strips {
            *sums = Sums::F64;
        }
        self
    }

    /// Width of x.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of weights that one call reads.
    pub fn bytes(&self) -> usize {
        match &self.strips {
            Strips::F32(..) => self.inputs * self.outputs * size_of::<f32>(),
            Strips::Bf16(..) => self.inputs * self.outputs * size_of::<bf16>(),
            Strips::Integers(packed) => packed.bytes(),
        }
    }

    /// `y = x W^T`. `x` computes each row once, into the buffer that is multiplied, so a row derived from other tensors needs no
    /// temporary. The columns of y are split into parts of these widths, each `[rows, width]` without padding. The launch is counted
    /// as `linear.f32`, `linear.f32_exact`, `linear.bf16`, `linear.int4` or `linear.int8`. A row's result does not depend on the
    /// other rows.
    ///
    /// # Panics
    /// When the widths do not add up to the outputs.
    pub fn apply_made(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
        widths: &[usize],
    ) -> Vec<HostBuffer<f32>> {
        assert_eq!(widths.iter().sum::<usize>(), self.outputs, "columns of {widths:?}");
        self.product(device, rows, x, (widths, Epilogue::Identity))
    }

    /// `silu(gate) * up`, half as wide as the product x W^T. Rows of W alternate: [`GATES`] gates, then their ups; the last, shorter
    /// run is also half gates, half ups. The products themselves are never written to memory.
    ///
    /// # Panics
    /// When the weights cannot be halved.
    pub fn apply_gated(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        assert!(self.outputs.is_multiple_of(2), "{} gates and ups", self.outputs);
        let made = self.product(device, rows, x, (&[self.outputs / 2], Epilogue::SwiGlu));
        made.into_iter().next().unwrap_or_else(|| HostBuffer::filled(0.0, 0))
    }

    /// `max(0, x W^T)^2`, as wide as the product.
    pub fn apply_squared(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
    ) -> HostBuffer<f32> {
        let made = self.product(device, rows, x, (&[self.outputs], Epilogue::SquaredRelu));
        made.into_iter().next().unwrap_or_else(|| HostBuffer::filled(0.0, 0))
    }

    fn product(
        &self,
        device: &Device,
        rows: usize,
        x: impl Fn(usize, &mut [f32]) + Sync,
        into: (&[usize], Epilogue),
    ) -> Vec<HostBuffer<f32>> {
        match &self.strips {
            Strips::Integers(packed) => self.integers(packed, (device, rows), x, into),
            Strips::F32(isa, sums, strips) => {
                let made = Rows::made(rows, self.inputs, |_: &mut (), row, to| x(row, to));
                let kernel = match sums {
                    Sums::F32 => "linear.f32",
                    Sums::F64 => "linear.f32_exact",
                };
                self.run(device, kernel, [rows, STRIP], None, into, |range, strip, into| {
                    let (x, w) = (made.part(range), &strips[strip]);
                    match sums {
                        Sums::F32 => gemm_packed(*isa, 1.0, x, w, Store::Replace, into),
                        Sums::F64 => gemm_packed_wide(*isa, x, w, into),
                    }
                })
            }
            Strips::Bf16(words, walk) => {
                let made = Rows::made(rows, self.inputs, |wide: &mut Vec<f32>, row, to| {
                    wide.resize(to.len(), 0.0);
                    x(row, wide);
                    dispatch(Isa::Avx512Bf16, Round { from: wide, to });
                });
                // With one row a core has only a few strips, and half strips balance better. A gated strip needs gates and ups.
                let width = if rows == 1 && into.1 != Epilogue::SwiGlu { STRIP / 2 } else { STRIP };
                let of_strip = PanelsBf16::words(self.inputs, width);
                let walked = (walk, &words[..], of_strip * size_of::<u32>());
                self.run(
                    device,
                    "linear.bf16",
                    [rows, width],
                    Some(walked),
                    into,
                    |range, strip, into| {
                        let (_, words) = words.split_at(strip * of_strip);
                        let (words, behind) = words.split_at(of_strip.min(words.len()));
                        // Prefetch the next strip only after the last rows: earlier rows use this strip again.
                        let next = if range.end == rows { behind } else { &[] };
                        let w = PanelsBf16::new(words, self.inputs, into.columns).before(next);
                        gemm_panels_bf16(1.0, made.part(range), w, Store::Replace, into);
                    },
                )
            }
        }
    }

    /// Launches one block per strip of `strip` outputs and run of [`ROWS`] rows. A core gets consecutive strips, because memory is
    /// fastest for long sequential reads. With `walked`, idle threads prefetch the weights of the next blocks.
    fn run(
        &self,
        device: &Device,
        kernel: &str,
        [rows, strip]: [usize; 2],
        walked: Option<(&WeightReads, &[u32], usize)>,
        (widths, epilogue): (&[usize], Epilogue),
        multiply: impl Fn(Range<usize>, usize, MatMut<'_>) + Sync,
    ) -> Vec<HostBuffer<f32>> {
        let runs = rows.div_ceil(ROWS);
        // Columns of x W^T that become one of y.
        let share = match epilogue {
            Epilogue::Identity | Epilogue::SquaredRelu => 1,
            Epilogue::SwiGlu => 2,
        };
        // Not cleared: for a prompt, clearing costs a good part of the product's own time.
        let unwritten = |width: &usize| HostBuffer::<f32>::unwritten(rows * width);
        let mut parts: Vec<_> = widths.iter().map(unwritten).collect();
        let shared: Vec<_> = parts.iter_mut().map(|part| SharedMut::new(part)).collect();
        let grid = self.outputs.div_ceil(strip) * runs;
        let tile = || vec![0f32; strip * ROWS.min(rows)];
        let body = |tile: &mut Vec<f32>, block: usize| {
            let (nth, run) = (block / runs, block % runs);
            let rows = run * ROWS..rows.min((run + 1) * ROWS);
            let first = nth * strip;
            let width = strip.min(self.outputs - first);
            // In y a block's columns are next to those of other strips, so they are computed in a tile and then copied.
            multiply(rows.clone(), nth, MatMut::new(tile, rows.len(), width, strip));
            for (from, row) in tile.chunks_mut(strip).zip(rows) {
                let (gates, from) = from[..width].split_at_mut(width - width / share);
                match epilogue {
                    Epilogue::Identity => {}
                    Epilogue::SwiGlu => gate(device, GateActivation::Silu, from, gates),
                    // NaN stays NaN.
                    Epilogue::SquaredRelu => from.iter_mut().for_each(|x| *x *= x.max(0.0)),
                }
                let (first, mut start) = (first / share, 0);
                for (width, part) in widths.iter().zip(&shared) {
                    let end = start + width;
                    let (left, right) = (first.max(start), end.min(first + from.len()));
                    if left < right {
                        let (at, own) =
                            (row * width + left - start, &from[left - first..right - first]);
                        // SAFETY: blocks own disjoint rows or strips, and the slice is as long as what is copied.
                        unsafe {
                            let into = part.slice(at..at + own.len()).as_mut_ptr().cast::<f32>();
                            into.copy_from_nonoverlapping(own.as_ptr(), own.len());
                        }
                    }
                    start = end;
                }
            }
        };
        match walked.filter(|_| runs == 1) {
            Some(walked) => device.launch_prefetching(kernel, grid, walked, tile, body),
            None => device.launch_streaming(kernel, grid, tile, body),
        }
        // SAFETY: every block has run to its end, else `launch_streaming` panics; together they wrote all strips of all rows.
        parts.into_iter().map(|part| unsafe { part.written() }).collect()
    }
}

fn strips<T: Copy + Sync, P: Send>(
    b: Mat<'_, T>,
    pack: impl Fn(Mat<'_, T>) -> P + Sync + Send,
) -> Vec<P> {
    (0..b.columns).into_par_iter().step_by(STRIP).map(|first| pack(strip(b, first))).collect()
}

/// A strip's columns of B.
fn strip<T: Copy>(b: Mat<'_, T>, first: usize) -> Mat<'_, T> {
    let start = (first * b.column_stride).min(b.data.len());
    let columns = STRIP.min(b.columns - first);
    Mat { data: &b.data[start..], columns, ..b }
}

/// Rows of x as they are multiplied.
struct Rows<T> {
    values: Vec<T>,
    width: usize,
    /// An odd number of whole cache lines: model widths are powers of two, and at that stride all rows would map to the
    /// same sets of L1 and evict each other.
    stride: usize,
}

impl<T: Copy + Default + Send> Rows<T> {
    /// Computes each row by `make`, with a thread's scratch; on all cores when there is enough work.
    fn made<S: Default>(
        rows: usize,
        width: usize,
        make: impl Fn(&mut S, usize, &mut [T]) + Sync,
    ) -> Self {
        const MUCH: usize = 1 << 15;
        let line = 64 / size_of::<T>();
        let stride = (width.div_ceil(line) | 1) * line;
        let mut values = vec![T::default(); rows * stride];
        let make = |scratch: &mut S, (row, to): (usize, &mut [T])| {
            make(scratch, row, &mut to[..width]);
        };
        if values.len() < MUCH {
            let mut scratch = S::default();
            values.chunks_mut(stride).enumerate().for_each(|row| make(&mut scratch, row));
        } else {
            values.par_chunks_mut(stride).enumerate().for_each_init(S::default, make);
        }
        Self { values, width, stride }
    }

    /// Some of the rows.
    fn part(&self, rows: Range<usize>) -> Mat<'_, T> {
        Mat::new(&self.values[rows.start * self.stride..], rows.len(), self.width, self.stride)
    }
}

struct Round<'a> {
    from: &'a [f32],
    to: &'a mut [bf16],
}

impl SimdKernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        narrow(simd, self.from, self.to);
    }
}

#[cfg(test)]
mod tests;
