//! Rows of float32 values as whole vectors: padding, factors and sums.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers into chunks of whole vectors.

use super::simd::Simd;

/// f32 values of a cache line, which are whole vectors of any instruction set.
const LINE: usize = 16;

/// Length of a row's buffer: `channels` rounded up to whole cache lines, and so to whole vectors.
pub(crate) fn padded(channels: usize) -> usize {
    channels.next_multiple_of(LINE)
}

/// Rows of `channels` values, each padded with zeros.
pub(crate) fn pad(values: &[f32], channels: usize) -> Vec<f32> {
    let mut rows = Vec::new();
    for row in values.chunks(channels.max(1)) {
        rows.extend_from_slice(row);
        rows.resize(rows.len().next_multiple_of(LINE), 0.0);
    }
    rows
}

/// `x *= factor`. The slice is whole vectors.
#[inline(always)]
pub(crate) fn scale<S: Simd>(simd: S, x: &mut [f32], factor: f32) {
    let factor = simd.splat(factor);
    for x in x.chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk is a vector.
        unsafe { simd.store(x.as_mut_ptr(), simd.mul(simd.load(x.as_ptr()), factor)) };
    }
}

/// `x *= factors`, value by value. The slices are whole vectors.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub(crate) fn multiply<S: Simd>(simd: S, x: &mut [f32], factors: &[f32]) {
    assert_eq!(x.len(), factors.len(), "lengths of a product");
    for (x, factors) in x.chunks_exact_mut(S::LANES).zip(factors.chunks_exact(S::LANES)) {
        // SAFETY: chunks are vectors.
        unsafe {
            let product = simd.mul(simd.load(x.as_ptr()), simd.load(factors.as_ptr()));
            simd.store(x.as_mut_ptr(), product);
        }
    }
}

/// The sum of squares, in four sums that do not wait for each other. The slice is whole vectors.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let mut sums = [simd.splat(0.0); 4];
    for (vector, x) in x.chunks_exact(S::LANES).enumerate() {
        // SAFETY: a chunk is a vector.
        let v = unsafe { simd.load(x.as_ptr()) };
        sums[vector % 4] = simd.fma(v, v, sums[vector % 4]);
    }
    simd.reduce_add(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}

/// The products of `a` with itself and with `b` in float64, in eight sums each that do not wait for each other. Their order is the same on
/// every instruction set. The slices are whole cache lines.
#[inline(always)]
pub(crate) fn dots_wide(a: &[f32], b: &[f32]) -> [f64; 2] {
    let mut sums = [[0f64; 8]; 2];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for lane in 0..8 {
            let [a, b] = [a[lane], b[lane]].map(f64::from);
            sums[0][lane] += a * a;
            sums[1][lane] += a * b;
        }
    }
    sums.map(|sums| sums.iter().sum())
}
