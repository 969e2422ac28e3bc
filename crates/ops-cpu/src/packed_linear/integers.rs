//! Quantized weights, dequantized in registers by every call.

use super::{Epilogue, Linear, Round, Rows, STRIP, Strips};
use crate::gemm::{IntegerFormat, IntegerPanels, IntegerRows, PANEL, PackedB};
use crate::simd::dispatch;
use device::{Device, HostBuffer, Isa, WeightReads};
use half::bf16;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Packed quantized weights; panels are contiguous.
#[derive(Debug)]
pub(super) struct Packed {
    isa: Isa,
    format: IntegerFormat,
    /// The column of x for each column of W.
    order: Option<Vec<u32>>,
    words: HostBuffer<u32>,
    walk: WeightReads,
}

thread_local! {
    /// Dequantized weights for float32 products, unpacked and packed.
    static DEQUANTIZED: RefCell<(Vec<f32>, PackedB)> = RefCell::default();
}

impl Linear {
    /// Packs quantized weights `[outputs, inputs]`. `read` fills adjacent rows and is called on all cores. If the columns of W were
    /// reordered, `order` has the column of x for each. x is rounded to bfloat16 if `isa` has the bfloat16 dot product.
    /// Launches count as `linear.int4` or `linear.int8`.
    ///
    /// # Errors
    /// Those of `read`.
    ///
    /// # Panics
    /// When this processor lacks `isa`.
    pub fn integer_rows<E: Send>(
        isa: Isa,
        [outputs, inputs]: [usize; 2],
        format: IntegerFormat,
        order: Option<Vec<u32>>,
        read: impl Fn(Range<usize>, &mut IntegerRows<'_>) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let failed = Mutex::new(None);
        let of_panel = format.words(inputs).max(1);
        let pack =
            |(values, scales_and_zeros): &mut (Vec<i8>, Vec<f32>), panel, words: &mut [u32]| {
                let rows = panel * PANEL..outputs.min((panel + 1) * PANEL);
                let all = rows.len() * format.groups(inputs);
                values.resize(rows.len() * inputs, 0);
                scales_and_zeros.resize(2 * all, 0.0);
                let (scales, zeros) = scales_and_zeros.split_at_mut(all);
                let zeros = if format.zeros { zeros } else { &mut [] };
                words.fill(0);
                let mut of = IntegerRows { values, scales, zeros };
                match read(rows, &mut of) {
                    Ok(()) => format.pack(inputs, &of, words),
                    Err(error) => {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert(error);
                    }
                }
            };
        let words = outputs.div_ceil(PANEL) * format.words(inputs);
        let words = HostBuffer::from_runs_with(words, of_panel, Default::default, pack);
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let packed = Packed { isa, format, order, words, walk: WeightReads::default() };
        Ok(Self { inputs, outputs, strips: Strips::Integers(packed) })
    }

    pub(super) fn integers(
        &self,
        of: &Packed,
        (device, rows): (&Device, usize),
        x: impl Fn(usize, &mut [f32]) + Sync,
        into: (&[usize], Epilogue),
    ) -> Vec<HostBuffer<f32>> {
        let (format, inputs) = (of.format, self.inputs);
        let kernel = if format.bits == 4 { "linear.int4" } else { "linear.int8" };
        let make = |wide: &mut Vec<f32>, row, to: &mut [f32]| match &of.order {
            Some(order) => {
                wide.resize(inputs, 0.0);
                x(row, wide);
                to.iter_mut().zip(order).for_each(|(to, from)| *to = wide[*from as usize]);
            }
            None => x(row, to),
        };
        let each = format.words(inputs);
        let panels = |strip: usize, width: usize, columns: usize| {
            let first = strip * width / PANEL * each;
            let words = &of.words[first..first + columns.div_ceil(PANEL) * each];
            IntegerPanels { format, inputs, each, words }
        };
        if of.isa != Isa::Avx512Bf16 {
            let made = Rows::made(rows, inputs, make);
            return self.run(device, kernel, [rows, STRIP], None, into, |range, strip, into| {
                let panels = panels(strip, STRIP, into.columns);
                DEQUANTIZED.with_borrow_mut(|scratch| {
                    panels.multiply_f32(of.isa, made.part(range), scratch, into);
                });
            });
        }
        let rounded = |(wide, sorted): &mut (Vec<f32>, Vec<f32>), row, to: &mut [bf16]| {
            wide.resize(inputs, 0.0);
            make(sorted, row, wide);
            dispatch(Isa::Avx512Bf16, Round { from: wide, to });
        };
        let made = Rows::made(rows, inputs, rounded);
        let sums = if format.zeros { of_groups(&made, rows, format.group) } else { Vec::new() };
        let groups = format.groups(inputs);
        // With one row of x a core has only a few strips, so narrower ones balance better.
        let width = if rows == 1 && into.1 != Epilogue::SwiGlu { PANEL } else { STRIP };
        let of_strip = width / PANEL * each * size_of::<u32>();
        let walked = Some((&of.walk, &of.words[..], of_strip)).filter(|_| of_strip > 0);
        self.run(device, kernel, [rows, width], walked, into, |range, strip, into| {
            let own = if format.zeros { range.start * groups..range.end * groups } else { 0..0 };
            panels(strip, width, into.columns).multiply_bf16(made.part(range), &sums[own], into);
        })
    }
}

impl Packed {
    /// Bytes that one call reads.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.words[..])
    }
}

/// Sums of x over the columns of each group, `[rows, groups]`.
fn of_groups(x: &Rows<bf16>, rows: usize, group: usize) -> Vec<f32> {
    let row = |row: usize| &x.values[row * x.stride..][..x.width];
    let sum = |part: &[bf16]| part.iter().map(|x| x.to_f32()).sum::<f32>();
    (0..rows).flat_map(|nth| row(nth).chunks(group).map(sum)).collect()
}
