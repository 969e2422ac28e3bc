//! The product for scores `K Q^T`, outputs `V^T P` and learned pooling, with queries (or columns) in vector lanes and the
//! other operand broadcast element by element.
//!
//! NSA gathers different keys for each query, so packing an operand does not pay; broadcasting needs no packing. With
//! queries in lanes, softmax and masks never reduce across a vector.
//!
//! Each element is a sum of multiply-adds over the depth in order, independent of its tile: equal rows give bit-equal
//! results, so blocks that tie stay tied.

use crate::simd::Simd;
use device::Isa;

/// A matrix inside a slice, read element by element.
#[derive(Clone, Copy)]
pub(super) struct LeftMatrix<'a, T = f32> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Distance of two rows, in elements.
    pub(super) row_stride: usize,
    /// Distance of two steps along the depth, in elements.
    pub(super) depth_stride: usize,
}

/// `vectors` matrices of `[depth or rows][LANES]`, `stride` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub(super) vectors: usize,
    pub(super) right_stride: usize,
    pub(super) out_stride: usize,
}

/// `out[v][row][lane] = sum_k left[row][k] right[v][k][lane]`, added to `out` if `add`.
///
/// # Panics
/// If a matrix exceeds its slice.
#[inline(always)]
pub(super) fn multiply<S: Simd>(
    s: S,
    left: LeftMatrix<'_>,
    right: &[f32],
    out: &mut [f32],
    lanes: Lanes,
    add: bool,
) {
    let LeftMatrix { rows, depth, row_stride, depth_stride, .. } = left;
    let Lanes { vectors, right_stride, out_stride } = lanes;
    if rows == 0 || vectors == 0 {
        return;
    }
    if depth > 0 {
        assert!((rows - 1) * row_stride + (depth - 1) * depth_stride < left.data.len());
    }
    assert!((vectors - 1) * right_stride + depth * S::LANES <= right.len());
    assert!((vectors - 1) * out_stride + rows * S::LANES <= out.len());
    // Register tiles: sums and operands fit the registers, with enough sums to hide the latency of a multiply-add.
    let pair_rows = match S::ISA {
        Isa::Portable => 0,
        Isa::Avx2 => 6,
        _ => 8,
    };
    let mut vector = 0;
    while vector < vectors {
        let pair = vector + 1 < vectors && pair_rows > 0;
        let mut row = 0;
        while row < rows {
            let remaining = rows - row;
            // SAFETY: the three asserts above hold for every row and vector below.
            unsafe {
                let a = left.data.as_ptr().add(row * row_stride);
                let b = right.as_ptr().add(vector * right_stride);
                let c = out.as_mut_ptr().add(vector * out_stride + row * S::LANES);
                let at = TileAddresses {
                    depth,
                    a,
                    row_stride,
                    depth_stride,
                    b,
                    right_stride,
                    c,
                    out_stride,
                };
                row += match pair {
                    true if remaining >= 8 && pair_rows == 8 => tile::<S, 8, 2>(s, at, add),
                    true if remaining >= 6 && pair_rows == 6 => tile::<S, 6, 2>(s, at, add),
                    true if remaining >= 4 => tile::<S, 4, 2>(s, at, add),
                    true => tile::<S, 1, 2>(s, at, add),
                    false if remaining >= 8 && pair_rows > 0 => tile::<S, 8, 1>(s, at, add),
                    false if remaining >= 4 => tile::<S, 4, 1>(s, at, add),
                    false => tile::<S, 1, 1>(s, at, add),
                };
            }
        }
        vector += 1 + usize::from(pair);
    }
}

/// Addresses and strides of a register tile.
#[derive(Clone, Copy)]
struct TileAddresses {
    depth: usize,
    a: *const f32,
    row_stride: usize,
    depth_stride: usize,
    b: *const f32,
    right_stride: usize,
    c: *mut f32,
    out_stride: usize,
}

/// Computes one register tile and returns its number of rows.
///
/// # Safety
/// The tile must be inside its matrices.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    at: TileAddresses,
    add: bool,
) -> usize {
    let TileAddresses { depth, a, row_stride, depth_stride, b, right_stride, c, out_stride } = at;
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    // SAFETY: the caller's contract, for every access below.
    unsafe {
        if add {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load(c.add(vector * out_stride + row * S::LANES));
                }
            }
        }
        for k in 0..depth {
            let mut right = [s.splat(0.0); VECTORS];
            for (vector, right) in right.iter_mut().enumerate() {
                *right = s.load(b.add(vector * right_stride + k * S::LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*a.add(row * row_stride + k * depth_stride));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = s.fma(x, right, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                s.store(c.add(vector * out_stride + row * S::LANES), *sum);
            }
        }
    }
    ROWS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{SimdKernel, dispatch};

    struct Check {
        rows: usize,
        depth: usize,
        vectors: usize,
        transposed: bool,
        add: bool,
    }

    impl SimdKernel for Check {
        type Output = ();
        fn run<S: Simd>(self, s: S) {
            let Self { rows, depth, vectors, transposed, add } = self;
            // Small integers: every sum is exact, so any wrong element shows.
            let number = |i: usize| ((i * 7 + 3) % 11) as f32 - 5.0;
            let a: Vec<f32> = (0..(rows + 2) * (depth + 3)).map(number).collect();
            let (row_stride, depth_stride) =
                if transposed { (1, rows + 2) } else { (depth + 3, 1) };
            let right_stride = depth * S::LANES + 5;
            let out_stride = rows * S::LANES + 7;
            let b: Vec<f32> = (0..right_stride * vectors).map(|i| number(i + 5)).collect();
            let old: Vec<f32> = (0..out_stride * vectors).map(|i| number(i + 1)).collect();
            let mut out = old.clone();
            let left = LeftMatrix { data: &a, rows, depth, row_stride, depth_stride };
            multiply(s, left, &b, &mut out, Lanes { vectors, right_stride, out_stride }, add);
            for (index, (new, old)) in out.iter().zip(&old).enumerate() {
                let (v, row, lane) = (
                    index / out_stride,
                    index % out_stride / S::LANES,
                    index % out_stride % S::LANES,
                );
                let mut expect = if add || row >= rows { *old } else { 0.0 };
                if row < rows {
                    for k in 0..depth {
                        expect += a[row * row_stride + k * depth_stride]
                            * b[v * right_stride + k * S::LANES + lane];
                    }
                }
                assert_eq!(*new, expect, "{} vector {v} row {row} lane {lane}", S::ISA);
            }
        }
    }

    #[test]
    fn products_are_exact_for_every_tile_and_tail() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            for rows in [1, 3, 4, 5, 6, 7, 8, 9, 13, 64] {
                for (depth, vectors) in [(0, 1), (1, 1), (5, 2), (64, 3), (100, 4)] {
                    for (transposed, add) in [(false, false), (true, true)] {
                        dispatch(isa, Check { rows, depth, vectors, transposed, add });
                    }
                }
            }
        }
    }
}
