//! Products of scratch matrices as sums of bfloat16 pairs, by the AVX512-BF16 dot product: twice the rate of f32, sums
//! in f32. Operands are rounded here, so what is carried along (the state, sums of gates) stays in f32.
#![allow(unsafe_code)] // Intrinsics and raw loads and stores, bounds asserted first.

use super::CHUNK;
use super::matrix::{Matrix, View, ViewMut};
use super::products::{Between, Start};
use device::Isa;

/// Operands of products. An element is a word of two bfloat16 values: neighbours of a row on the left side of a
/// product, neighbours of a column on the right side.
#[derive(Default)]
pub(super) struct Words {
    /// `[CHUNK, K / 2]`.
    pub(super) left: Matrix,
    /// `[K / 2, V]`.
    pub(super) right: Matrix,
    /// Keys decayed to the chunk's end: `[K, CHUNK / 2]`.
    pub(super) keys: Matrix,
    /// U: `[CHUNK / 2, V]`.
    pub(super) written: Matrix,
}

impl Words {
    pub(super) fn resize(&mut self, channels: usize, columns: usize) {
        // Rows on the left side are rounded 32 values at a time.
        self.left.resize(CHUNK, channels.max(CHUNK).next_multiple_of(32) / 2);
        self.right.resize(channels / 2, columns);
        self.keys.resize(channels, CHUNK / 2);
        self.written.resize(CHUNK / 2, columns);
    }
}

/// Rounds `[rows, columns]` to words of neighbours in a row: the left side of a product. Columns beyond the size, up
/// to a multiple of 32, are rounded as well.
///
/// # Panics
/// When a matrix is too small or this processor lacks AVX512-BF16.
#[inline]
pub(super) fn round([rows, columns]: [usize; 2], from: View<'_>, to: &mut Matrix) {
    let columns = columns.next_multiple_of(32);
    let stride = to.stride();
    let to = to.data_mut();
    assert!(rows == 0 || (rows - 1) * from.stride + columns <= from.data.len(), "rows to round");
    assert!(rows == 0 || (rows - 1) * stride + columns / 2 <= to.len(), "rounded rows");
    assert!(Isa::Avx512Bf16.is_here(), "this processor has no bfloat16 dot product");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected and asserted above.
    unsafe {
        x86::round([rows, columns], from, to.as_mut_ptr(), stride);
    }
}

/// Rounds `[rows, columns]` to words of neighbours in a column: the right side of a product.
///
/// # Panics
/// When rows are odd, columns no multiple of 16, a matrix is too small, or this processor lacks AVX512-BF16.
#[inline]
pub(super) fn interleave([rows, columns]: [usize; 2], from: View<'_>, to: ViewMut<'_>) {
    assert!(
        rows.is_multiple_of(2) && columns.is_multiple_of(16),
        "{rows}x{columns} is no whole tile"
    );
    assert!(
        rows == 0 || (rows - 1) * from.stride + columns <= from.data.len(),
        "rows to interleave"
    );
    assert!(rows == 0 || (rows / 2 - 1) * to.stride + columns <= to.data.len(), "interleaved rows");
    assert!(Isa::Avx512Bf16.is_here(), "this processor has no bfloat16 dot product");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected and asserted above.
    unsafe {
        x86::interleave([rows, columns], from, to.data.as_mut_ptr(), to.stride);
    }
}

/// `c = start + a b` for `[rows, depth]` times `[depth, columns]`, a and b in words. Rows and columns are multiples of
/// 16 and the depth is even.
///
/// # Panics
/// When a size does not fit or this processor lacks AVX512-BF16.
#[inline]
pub(super) fn multiply(
    [rows, columns, depth]: [usize; 3],
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
    c: ViewMut<'_>,
    between: &mut impl Between,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(rows.is_multiple_of(16) && columns.is_multiple_of(16) && depth.is_multiple_of(2));
    let words = depth / 2;
    assert!(words == 0 || (rows - 1) * a.stride + words <= a.data.len(), "a is too small");
    assert!(words == 0 || (words - 1) * b.stride + columns <= b.data.len(), "b is too small");
    assert!((rows - 1) * c.stride + columns <= c.data.len(), "c is too small");
    if let Start::Scaled(factors) = start {
        assert!(factors.len() >= rows, "a factor for each row");
    }
    assert!(Isa::Avx512Bf16.is_here(), "this processor has no bfloat16 dot product");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected and asserted above.
    unsafe {
        x86::multiply([rows, columns, words], a, b, start, c, between);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = between;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Between, Start, View, ViewMut};
    use crate::kda::chunk::products::STRETCH;
    use std::arch::x86_64::*;

    /// Rows of a register tile; with two vectors of columns 16 sums, which hide the latency of the dot product.
    const ROWS: usize = 8;

    /// # Safety
    /// The processor must have AVX512-BF16; sizes must fit, columns be a multiple of 32.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn round(
        [rows, columns]: [usize; 2],
        from: View<'_>,
        to: *mut f32,
        stride: usize,
    ) {
        for row in 0..rows {
            for column in (0..columns).step_by(32) {
                // SAFETY: the caller's contract.
                unsafe {
                    let from = from.data.as_ptr().add(row * from.stride + column);
                    let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
                    let words: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                    _mm512_storeu_si512(to.add(row * stride + column / 2).cast(), words);
                }
            }
        }
    }

    /// # Safety
    /// The processor must have AVX512-BF16; sizes must fit, rows be even and columns a multiple of 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn interleave(
        [rows, columns]: [usize; 2],
        from: View<'_>,
        to: *mut f32,
        stride: usize,
    ) {
        // Value i of the upper row after value i of the lower one; in 32-bit words: i | (i + 16) << 16.
        let first = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let second = _mm512_slli_epi32::<16>(_mm512_add_epi32(first, _mm512_set1_epi32(16)));
        let order = _mm512_or_si512(first, second);
        for row in (0..rows).step_by(2) {
            for column in (0..columns).step_by(16) {
                // SAFETY: the caller's contract.
                unsafe {
                    let from_low = from.data.as_ptr().add(row * from.stride + column);
                    let low = _mm512_loadu_ps(from_low);
                    let high = _mm512_loadu_ps(from_low.add(from.stride));
                    let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                    let words = _mm512_permutexvar_epi16(order, both);
                    _mm512_storeu_si512(to.add(row / 2 * stride + column).cast(), words);
                }
            }
        }
    }

    /// # Safety
    /// The processor must have AVX512-BF16; sizes must fit, rows and columns be multiples of 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    pub(super) unsafe fn multiply(
        [rows, columns, words]: [usize; 3],
        a: View<'_>,
        b: View<'_>,
        start: Start<'_>,
        c: ViewMut<'_>,
        between: &mut impl Between,
    ) {
        let product = Product { words, a, b, start, c: c.data.as_mut_ptr(), c_stride: c.stride };
        let mut column = 0;
        // SAFETY: the caller's contract.
        unsafe {
            while column + 32 <= columns {
                for row in (0..rows).step_by(ROWS) {
                    product.tile::<2>(row, column, between);
                }
                column += 32;
            }
            if column < columns {
                for row in (0..rows).step_by(ROWS) {
                    product.tile::<1>(row, column, between);
                }
            }
        }
    }

    struct Product<'a> {
        words: usize,
        a: View<'a>,
        b: View<'a>,
        start: Start<'a>,
        c: *mut f32,
        c_stride: usize,
    }

    impl Product<'_> {
        /// # Safety
        /// The processor must have AVX512-BF16; the tile must be inside.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
        unsafe fn tile<const VECTORS: usize>(
            &self,
            row: usize,
            column: usize,
            between: &mut impl Between,
        ) {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            // SAFETY: the caller's contract.
            unsafe {
                let a = self.a.data.as_ptr().add(row * self.a.stride);
                let b = self.b.data.as_ptr().add(column);
                let c = self.c.add(row * self.c_stride + column);
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let old = c.add(i * self.c_stride + 16 * j);
                        *sum = match self.start {
                            Start::Zero => _mm512_setzero_ps(),
                            Start::Old => _mm512_loadu_ps(old),
                            Start::Scaled(factors) => {
                                let factor = _mm512_set1_ps(*factors.get_unchecked(row + i));
                                _mm512_mul_ps(factor, _mm512_loadu_ps(old))
                            }
                        };
                    }
                }
                for stretch in (0..self.words).step_by(STRETCH) {
                    for word in stretch..(stretch + STRETCH).min(self.words) {
                        let mut b_row = [_mm512_setzero_si512(); VECTORS];
                        for (j, b_row) in b_row.iter_mut().enumerate() {
                            *b_row =
                                _mm512_loadu_si512(b.add(word * self.b.stride + 16 * j).cast());
                        }
                        for (i, sums) in sums.iter_mut().enumerate() {
                            let pair = a.add(i * self.a.stride + word).cast::<i32>().read();
                            let pair: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair));
                            for (sum, b) in sums.iter_mut().zip(b_row) {
                                let b: __m512bh = std::mem::transmute(b);
                                *sum = _mm512_dpbf16_ps(*sum, b, pair);
                            }
                        }
                    }
                    between.next();
                }
                for (i, sums) in sums.iter().enumerate() {
                    for (j, sum) in sums.iter().enumerate() {
                        _mm512_storeu_ps(c.add(i * self.c_stride + 16 * j), *sum);
                    }
                }
            }
        }
    }
}
