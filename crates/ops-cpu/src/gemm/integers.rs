//! Products with int4, int8 and E2M1 weights, dequantized in registers: `y = x W^T`, a weight being `scale * (number - zero)`.
//!
//! The sum over a group of columns is multiplied by its scale, so weights are exact even when x is rounded to bfloat16.

use super::{Mat, MatMut, PackedB, Store, gemm_packed};
use crate::simd::{Simd, SimdKernel, dispatch};
use device::Isa;
use half::bf16;
use std::ops::Range;

/// Outputs of a panel: two AVX-512 vectors.
pub(crate) const PANEL: usize = 32;
/// Columns dequantized to float32 at once on processors without AVX512-BF16: with 64 outputs they fit in L2.
const DEPTH: usize = 512;

/// Magnitudes of E2M1, times 2.
const E2M1: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// Storage format of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerFormat {
    /// Bits of a value: 4 or 8.
    pub bits: usize,
    /// Whether 4-bit values are E2M1, times 2: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
    pub float: bool,
    /// Group size: columns of W that share a scale, a multiple of the values in a 32-bit word; at least all columns for one
    /// scale per row.
    pub group: usize,
    /// Whether groups have zero points other than 0.
    pub zeros: bool,
}

/// Some quantized rows of W.
#[derive(Debug)]
pub struct IntegerRows<'a> {
    /// `[rows, inputs]`, from -8 to 7 for int4, or E2M1 values times 2.
    pub values: &'a mut [i8],
    /// `[rows, groups]`.
    pub scales: &'a mut [f32],
    /// `[rows, groups]`, in the range of `values` but not always integers; empty when all are 0.
    pub zeros: &'a mut [f32],
}

impl IntegerFormat {
    /// Groups of a row of `inputs` columns.
    pub fn groups(self, inputs: usize) -> usize {
        inputs.div_ceil(self.group)
    }

    /// Values of one output that share a word.
    fn in_word(self) -> usize {
        32 / self.bits
    }

    /// Columns of a group.
    fn columns(self, group: usize, inputs: usize) -> Range<usize> {
        group * self.group..inputs.min((group + 1).saturating_mul(self.group))
    }

    /// Rows of [`PANEL`] words that scales and zero points of a group take.
    fn head(self) -> usize {
        1 + usize::from(self.zeros)
    }

    /// Words of a panel: per group the scales, the zero points and the values.
    pub(crate) fn words(self, inputs: usize) -> usize {
        // A group longer than the row has only the row's columns.
        let (whole, rest) = (inputs / self.group, inputs % self.group);
        let numbers = [whole * self.group, rest].map(|columns| columns.div_ceil(self.in_word()));
        (self.groups(inputs) * self.head() + numbers[0] + numbers[1]) * PANEL
    }

    /// Packs up to [`PANEL`] rows into the words of a panel, which must be zero.
    pub(crate) fn pack(self, inputs: usize, rows: &IntegerRows<'_>, words: &mut [u32]) {
        let groups = self.groups(inputs);
        let mut rest = words.chunks_exact_mut(PANEL);
        for group in 0..groups {
            for factors in [&rows.scales, &rows.zeros].into_iter().take(self.head()) {
                let of = factors.iter().skip(group).step_by(groups);
                let into = rest.next().into_iter().flatten();
                into.zip(of).for_each(|(word, factor)| *word = factor.to_bits());
            }
            let columns = self.columns(group, inputs);
            for first in columns.clone().step_by(self.in_word()) {
                let end = columns.end.min(first + self.in_word());
                let Some(into) = rest.next() else { return };
                for (word, row) in into.iter_mut().zip(rows.values.chunks_exact(inputs)) {
                    let bits = row[first..end].iter().enumerate();
                    *word = bits.fold(0, |word, (at, number)| word | self.place(at, *number));
                }
            }
        }
    }

    /// A value's bits in its word. Neighbours are 16 bits apart, so that a shifted word has a pair in the layout of the dot product.
    /// An 8-bit value takes two table lookups, one per half.
    fn place(self, at: usize, number: i8) -> u32 {
        let bits = match self.bits {
            4 if self.float => {
                let size = number.unsigned_abs();
                let bits = E2M1.iter().position(|of| *of == size).unwrap_or(0) as u8;
                bits | u8::from(number < 0) << 3
            }
            4 => (number + 8).cast_unsigned() & 15,
            _ => number.cast_unsigned(),
        };
        u32::from(bits) << (16 * (at % 2) + self.bits * (at / 2))
    }

    /// The value at a place of a word.
    #[inline(always)]
    fn number(self, word: u32, at: usize) -> f32 {
        let shifted = word >> (16 * (at % 2) + self.bits * (at / 2));
        match self.bits {
            4 if self.float => {
                // (1.m or, for subnormals, 0.m) times a power of two; m is the mantissa bit.
                let (exponent, last) = (shifted >> 1 & 3, shifted & 1);
                let whole = u32::from(exponent > 0);
                let size = ((2 * whole + last) << (exponent - whole)) as i32;
                (if shifted & 8 == 0 { size } else { -size }) as f32
            }
            4 => (shifted & 15) as f32 - 8.0,
            _ => f32::from((shifted & 255) as u8 as i8),
        }
    }
}

/// Neighbouring packed panels and their format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IntegerPanels<'a> {
    pub(crate) format: IntegerFormat,
    pub(crate) inputs: usize,
    /// Words of one panel.
    pub(crate) each: usize,
    pub(crate) words: &'a [u32],
}

impl IntegerPanels<'_> {
    /// C = A W^T on one thread, by the bfloat16 dot product. Rows of A are padded with zeros to a multiple of 8 columns; `sums`
    /// `[rows, groups]` are A's sums over each group, needed only with zero points.
    ///
    /// # Panics
    /// When sizes disagree or this processor lacks AVX512-BF16.
    pub(crate) fn multiply_bf16(self, a: Mat<'_, bf16>, sums: &[f32], c: MatMut<'_>) {
        let format = self.format;
        let groups = format.groups(self.inputs);
        assert_eq!(self.words.len(), c.columns.div_ceil(PANEL) * self.each, "words of the panels");
        assert_eq!((a.rows, a.columns, a.column_stride), (c.rows, self.inputs, 1), "sizes of A");
        assert!(!format.zeros || sums.len() == a.rows * groups, "sums of {groups} groups");
        let last = a.rows.saturating_sub(1) * a.row_stride + a.columns.next_multiple_of(8);
        assert!(a.rows == 0 || last <= a.data.len(), "rows of A to a multiple of 8 columns");
        assert!(Isa::Avx512Bf16.is_here(), "this processor has no bfloat16 dot product");
        #[cfg(target_arch = "x86_64")]
        for (panel, column) in
            self.words.chunks_exact(self.each.max(1)).zip((0..c.columns).step_by(PANEL))
        {
            let columns = PANEL.min(c.columns - column);
            for row in (0..a.rows).step_by(x86::ROWS) {
                let rows = x86::ROWS.min(a.rows - row);
                let tile = x86::Tile {
                    format,
                    inputs: self.inputs,
                    words: panel.as_ptr(),
                    a: a.data[row * a.row_stride..].as_ptr(),
                    a_stride: a.row_stride,
                    sums: sums.as_ptr().wrapping_add(row * groups),
                    to: c.data[row * c.row_stride + column..].as_mut_ptr(),
                    to_stride: c.row_stride,
                    columns,
                };
                // SAFETY: detected above; the tile reads `rows` rows of A and writes as many of C, whose sizes were asserted.
                unsafe { tile.multiply(rows) };
            }
        }
    }

    /// C = A W^T on one thread, in float32: dequantizes and packs [`DEPTH`] columns of W at a time.
    ///
    /// # Panics
    /// When sizes disagree or this processor lacks `isa`.
    pub(crate) fn multiply_f32(
        self,
        isa: Isa,
        a: Mat<'_>,
        scratch: &mut (Vec<f32>, PackedB),
        c: MatMut<'_>,
    ) {
        let (weights, packed) = scratch;
        let width = c.columns.next_multiple_of(PANEL);
        // Pieces of whole words, except the last word of a group.
        for start in (0..self.inputs).step_by(DEPTH) {
            let columns = start..self.inputs.min(start + DEPTH);
            weights.resize(columns.len() * width, 0.0);
            dispatch(isa, Widen { of: self, columns: columns.clone(), width, into: weights });
            packed.pack(isa, Mat::new(weights, columns.len(), c.columns, width));
            let store = if start == 0 { Store::Replace } else { Store::Add };
            let a = Mat { data: &a.data[start..], columns: columns.len(), ..a };
            let c = MatMut { data: &mut *c.data, ..c };
            gemm_packed(isa, 1.0, a, packed, store, c);
        }
    }
}

/// Dequantizes some columns of W into `[columns, width]`.
struct Widen<'a> {
    of: IntegerPanels<'a>,
    columns: Range<usize>,
    width: usize,
    into: &'a mut [f32],
}

impl SimdKernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { of, columns, width, into } = self;
        let format = of.format;
        for (nth, words) in of.words.chunks_exact(of.each).enumerate() {
            let mut rows = words.chunks_exact(PANEL);
            for group in 0..format.groups(of.inputs) {
                let scales = rows.next().unwrap_or_default();
                let zeros =
                    if format.zeros { rows.next().unwrap_or_default() } else { &[0; PANEL] };
                let own = format.columns(group, of.inputs);
                for first in own.clone().step_by(format.in_word()) {
                    let words = rows.next().unwrap_or_default();
                    if first < columns.start || first >= columns.end {
                        continue;
                    }
                    for at in 0..format.in_word().min(own.end - first) {
                        let start = (first - columns.start + at) * width + nth * PANEL;
                        let into = &mut into[start..start + PANEL];
                        for lane in 0..PANEL {
                            let [scale, zero] = [scales[lane], zeros[lane]].map(f32::from_bits);
                            into[lane] = (format.number(words[lane], at) - zero) * scale;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{IntegerFormat, PANEL, bf16};
    use std::arch::x86_64::*;

    /// Rows of a register tile: 4 x 2 x 2 sums and 4 x 2 totals leave registers for the lookup tables.
    pub(super) const ROWS: usize = 4;
    /// Words of prefetch distance into L2: 8 KiB. Two cores of an AMD EPYC 9005 read 77 GB/s with it, 71 with the 16 KiB of
    /// bfloat16, and 72 with 4 KiB.
    const DISTANCE: usize = 2048;

    /// A panel times some rows.
    pub(super) struct Tile {
        pub(super) format: IntegerFormat,
        pub(super) inputs: usize,
        pub(super) words: *const u32,
        pub(super) a: *const bf16,
        pub(super) a_stride: usize,
        pub(super) sums: *const f32,
        pub(super) to: *mut f32,
        pub(super) to_stride: usize,
        pub(super) columns: usize,
    }

    /// bfloat16 bits of each 4-bit value, by the lowest five bits of the index; the fifth bit belongs to another value and is ignored.
    const fn table(from: i32, factor: i32, signed: bool) -> [u16; 32] {
        let mut table = [0; 32];
        let mut at = 0;
        while at < 32 {
            let bits = at as i32 % 16;
            let number = if signed && bits > 7 { bits - 16 } else { bits };
            // Integers this small are exact in bfloat16.
            table[at] = ((((number + from) * factor) as f32).to_bits() >> 16) as u16;
            at += 1;
        }
        table
    }

    /// bfloat16 bits of each E2M1 value times 2; -0 becomes 0.
    const fn e2m1() -> [u16; 32] {
        let mut table = [0; 32];
        let mut at = 0;
        while at < 32 {
            let size = super::E2M1[at % 8] as f32;
            let number = if at % 16 < 8 { size } else { -size };
            table[at] = (number.to_bits() >> 16) as u16;
            at += 1;
        }
        table
    }

    const FLOAT: [u16; 32] = e2m1();
    const FOUR: [u16; 32] = table(-8, 1, false);
    const LOW: [u16; 32] = table(0, 1, false);
    const HIGH: [u16; 32] = table(0, 16, true);

    impl Tile {
        /// # Safety
        /// The processor must have AVX512-BF16; the panel's words, `rows` rows of A to a multiple of 8 columns and of sums must be
        /// readable, `rows` x `columns` of C writable.
        pub(super) unsafe fn multiply(&self, rows: usize) {
            // SAFETY: the caller's contract.
            unsafe {
                match (self.format.bits, rows) {
                    (4, 1) => self.run::<1, 4>(),
                    (4, 2) => self.run::<2, 4>(),
                    (4, 3) => self.run::<3, 4>(),
                    (4, _) => self.run::<ROWS, 4>(),
                    (_, 1) => self.run::<1, 8>(),
                    (_, 2) => self.run::<2, 8>(),
                    (_, 3) => self.run::<3, 8>(),
                    _ => self.run::<ROWS, 8>(),
                }
            }
        }

        /// # Safety
        /// As of [`Tile::multiply`], of `ROWS` rows.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn run<const ROWS: usize, const BITS: usize>(&self) {
            // SAFETY: the caller's contract; words are read in the order in which they were packed.
            unsafe {
                let four = if self.format.float { FLOAT } else { FOUR };
                let [four, low, high] =
                    [four, LOW, HIGH].map(|table| _mm512_loadu_epi16(table.as_ptr().cast()));
                let groups = self.format.groups(self.inputs);
                let mut words = self.words;
                let mut total = [[_mm512_setzero_ps(); 2]; ROWS];
                for group in 0..groups {
                    let floats = |words: *const u32| {
                        [_mm512_loadu_ps(words.cast()), _mm512_loadu_ps(words.add(16).cast())]
                    };
                    let scales = floats(words);
                    let zeros = floats(words.add((self.format.head() - 1) * PANEL));
                    words = words.add(self.format.head() * PANEL);
                    let columns = self.format.columns(group, self.inputs);
                    // Two sums of each, which need not wait for one another.
                    let mut sums = [[[_mm512_setzero_ps(); 2]; 2]; ROWS];
                    for column in columns.step_by(32 / BITS) {
                        if ROWS == 1 {
                            let later = words.wrapping_add(DISTANCE);
                            _mm_prefetch::<_MM_HINT_T1>(later.cast());
                            _mm_prefetch::<_MM_HINT_T1>(later.wrapping_add(16).cast());
                        }
                        let w: [__m512i; 2] = [
                            _mm512_loadu_si512(words.cast()),
                            _mm512_loadu_si512(words.add(16).cast()),
                        ];
                        words = words.add(PANEL);
                        let mut dot = |w: [__m512i; 2], place: usize| {
                            let table = match (BITS, place % 2) {
                                (4, _) => four,
                                (_, 0) => low,
                                _ => high,
                            };
                            let pair = if BITS == 4 { place } else { place / 2 };
                            let b = w.map(|w| _mm512_permutexvar_epi16(w, table));
                            for (row, sums) in sums.iter_mut().enumerate() {
                                let a = self.a.add(row * self.a_stride + column + 2 * pair);
                                let a = _mm512_set1_epi32(a.cast::<i32>().read_unaligned());
                                let a = std::mem::transmute::<__m512i, __m512bh>(a);
                                for (sum, b) in sums[place % 2].iter_mut().zip(b) {
                                    let b = std::mem::transmute::<__m512i, __m512bh>(b);
                                    *sum = _mm512_dpbf16_ps(*sum, a, b);
                                }
                            }
                        };
                        dot(w, 0);
                        dot(w.map(|w| _mm512_srli_epi16::<4>(w)), 1);
                        dot(w.map(|w| _mm512_srli_epi16::<8>(w)), 2);
                        dot(w.map(|w| _mm512_srli_epi16::<12>(w)), 3);
                    }
                    for (row, (total, sums)) in total.iter_mut().zip(&sums).enumerate() {
                        for half in 0..2 {
                            let mut sum = _mm512_add_ps(sums[0][half], sums[1][half]);
                            if self.format.zeros {
                                let of_x = _mm512_set1_ps(*self.sums.add(row * groups + group));
                                sum = _mm512_fnmadd_ps(zeros[half], of_x, sum);
                            }
                            total[half] = _mm512_fmadd_ps(scales[half], sum, total[half]);
                        }
                    }
                }
                for (row, total) in total.iter().enumerate() {
                    for (half, total) in total.iter().enumerate() {
                        let columns = self.columns.saturating_sub(16 * half).min(16);
                        let mask = ((1u32 << columns) - 1) as __mmask16;
                        let to = self.to.add(row * self.to_stride).wrapping_add(16 * half);
                        _mm512_mask_storeu_ps(to, mask, *total);
                    }
                }
            }
        }
    }
}
