//! The products of [`super::branch`] over bfloat16 inputs with the dot product of AVX512-BF16: two steps of the depth
//! in each multiply-add. A pair of bfloat16 values is one 32-bit word, the earlier value in the low half.
//!
//! Queries and keys keep their exact values (the scale is applied to the sums); the softmax weights are rounded to
//! bfloat16. Block selection does not use these products; it stays in float32.

use super::branch::{RUN, Run};
use super::tile::{Lanes, LeftMatrix};
use device::Isa;
use half::bf16;
use std::arch::x86_64::*;

/// f32 lanes of a vector.
const LANES: usize = 16;

/// Rows of one key head in an input.
#[derive(Clone, Copy)]
pub(super) struct PairRows<'a> {
    pub(super) values: &'a [bf16],
    pub(super) start: usize,
    pub(super) stride: usize,
    pub(super) size: usize,
}

impl<'a> PairRows<'a> {
    fn row(&self, token: usize) -> &'a [bf16] {
        &self.values[self.start + token * self.stride..][..self.size]
    }
}

#[derive(Debug, Default)]
pub(super) struct PairBuffers {
    /// [vectors][D / 2][LANES], the queries of the tile, not scaled.
    q: Vec<u32>,
    /// [RUN][D / 2] keys, or [RUN / 2][Dv] values.
    tile: Vec<u32>,
    /// [vectors of the unit][pairs of tokens][LANES]
    weights: Vec<u32>,
}

fn pair(low: bf16, high: bf16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

impl PairBuffers {
    pub(super) fn reset(&mut self, vectors: usize, head_dim: usize, value_dim: usize) {
        let pairs = head_dim.div_ceil(2);
        self.q.clear();
        self.q.resize(vectors * pairs * LANES, 0);
        self.tile.clear();
        self.tile.resize((RUN * pairs).max(RUN.div_ceil(2) * value_dim), 0);
    }

    /// Stores the query of one lane as pairs. The values come from a bfloat16 tensor, so narrowing them is exact.
    pub(super) fn put_query(&mut self, lane: usize, row: &[f32]) {
        let start = lane / LANES * row.len().div_ceil(2) * LANES + lane % LANES;
        for (pairs, to) in row.chunks(2).zip(self.q[start..].iter_mut().step_by(LANES)) {
            let high = pairs.get(1).copied().unwrap_or(0.0);
            *to = pair(bf16::from_f32(pairs[0]), bf16::from_f32(high));
        }
    }

    /// `scores[vector][token][lane] = scale * q k` over the runs, for `vectors` vectors from `first_vector` on.
    #[inline(always)]
    pub(super) fn score(
        &mut self,
        (first_vector, vectors): (usize, usize),
        runs: &[Run],
        tokens: usize,
        keys: PairRows<'_>,
        scale: f32,
        scores: &mut [f32],
    ) {
        let depth = keys.size.div_ceil(2);
        let right_stride = depth * LANES;
        let mut first = 0;
        for run in runs {
            for (row, to) in self.tile.chunks_exact_mut(depth).take(run.len).enumerate() {
                let row = keys.row(run.start + row);
                let whole = row.chunks_exact(2);
                if let ([last], Some(to)) = (whole.remainder(), to.last_mut()) {
                    *to = pair(*last, bf16::ZERO);
                }
                to.iter_mut().zip(whole).for_each(|(to, from)| *to = pair(from[0], from[1]));
            }
            let data = &self.tile[..];
            let left =
                LeftMatrix { data, rows: run.len, depth, row_stride: depth, depth_stride: 1 };
            let lanes = Lanes { vectors, right_stride, out_stride: tokens * LANES };
            let right = &self.q[first_vector * right_stride..];
            multiply(left, right, &mut scores[first * LANES..], lanes, Epilogue::Scale(scale));
            first += run.len;
        }
    }

    /// `out[vector][n][lane] = sum over tokens of weight * v[n]`, the weights in the layout of scores.
    #[inline(always)]
    pub(super) fn weigh(
        &mut self,
        vectors: usize,
        runs: &[Run],
        tokens: usize,
        values: PairRows<'_>,
        weights: &[f32],
        out: &mut [f32],
    ) {
        let size = values.size;
        let pairs: usize = runs.iter().map(|run| run.len.div_ceil(2)).sum();
        if self.weights.len() < vectors * pairs * LANES {
            self.weights.resize(vectors * pairs * LANES, 0);
        }
        for vector in 0..vectors {
            let mut from = &weights[vector * tokens * LANES..][..tokens * LANES];
            let mut to = &mut self.weights[vector * pairs * LANES..][..pairs * LANES];
            for run in runs {
                let (here, rest) = from.split_at(run.len * LANES);
                let (pairs, later) = to.split_at_mut(run.len.div_ceil(2) * LANES);
                round(here, pairs);
                (from, to) = (rest, later);
            }
        }
        let mut first = 0;
        for (index, run) in runs.iter().enumerate() {
            for (at, to) in self.tile.chunks_exact_mut(size).take(run.len.div_ceil(2)).enumerate() {
                let low = values.row(run.start + 2 * at);
                if 2 * at + 1 < run.len {
                    let both = low.iter().zip(values.row(run.start + 2 * at + 1));
                    to.iter_mut().zip(both).for_each(|(to, (low, high))| *to = pair(*low, *high));
                } else {
                    to.iter_mut().zip(low).for_each(|(to, low)| *to = pair(*low, bf16::ZERO));
                }
            }
            let depth = run.len.div_ceil(2);
            let data = &self.tile[..];
            let left = LeftMatrix { data, rows: size, depth, row_stride: 1, depth_stride: size };
            let lanes = Lanes { vectors, right_stride: pairs * LANES, out_stride: size * LANES };
            let end = if index == 0 { Epilogue::Scale(1.0) } else { Epilogue::Add };
            multiply(left, &self.weights[first * LANES..], out, lanes, end);
            first += depth;
        }
    }
}

/// Epilogue of a product.
#[derive(Clone, Copy)]
enum Epilogue {
    /// They replace what is there, times this.
    Scale(f32),
    /// They are added to what is there.
    Add,
}

/// [`super::tile::multiply`] over pairs.
///
/// # Panics
/// When a matrix leaves its slice, or the processor lacks AVX512-BF16.
fn multiply(
    left: LeftMatrix<'_, u32>,
    right: &[u32],
    out: &mut [f32],
    lanes: Lanes,
    end: Epilogue,
) {
    assert!(Isa::Avx512Bf16.is_here());
    if left.rows == 0 || left.depth == 0 || lanes.vectors == 0 {
        return;
    }
    let last = (left.rows - 1) * left.row_stride + (left.depth - 1) * left.depth_stride;
    assert!(last < left.data.len());
    assert!((lanes.vectors - 1) * lanes.right_stride + left.depth * LANES <= right.len());
    assert!((lanes.vectors - 1) * lanes.out_stride + left.rows * LANES <= out.len());
    // SAFETY: the instructions are there and every element is inside its slice, by the asserts above.
    unsafe { product(left, right, out, lanes, end) }
}

/// # Safety
/// As [`multiply`] asserts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn product(
    left: LeftMatrix<'_, u32>,
    right: &[u32],
    out: &mut [f32],
    lanes: Lanes,
    end: Epilogue,
) {
    let mut vector = 0;
    while vector < lanes.vectors {
        let pair = vector + 1 < lanes.vectors;
        let mut row = 0;
        while row < left.rows {
            let remaining = left.rows - row;
            // SAFETY: the caller's contract.
            unsafe {
                let a = left.data.as_ptr().add(row * left.row_stride);
                let b = right.as_ptr().add(vector * lanes.right_stride);
                let c = out.as_mut_ptr().add(vector * lanes.out_stride + row * LANES);
                row += match pair {
                    true if remaining >= 8 => tile::<8, 2>(&left, &lanes, a, b, c, end),
                    true if remaining >= 4 => tile::<4, 2>(&left, &lanes, a, b, c, end),
                    true => tile::<1, 2>(&left, &lanes, a, b, c, end),
                    false if remaining >= 8 => tile::<8, 1>(&left, &lanes, a, b, c, end),
                    false if remaining >= 4 => tile::<4, 1>(&left, &lanes, a, b, c, end),
                    false => tile::<1, 1>(&left, &lanes, a, b, c, end),
                };
            }
        }
        vector += 1 + usize::from(pair);
    }
}

/// One register tile; gives its number of rows.
///
/// # Safety
/// The tile must lie inside its matrices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
    left: &LeftMatrix<'_, u32>,
    lanes: &Lanes,
    a: *const u32,
    b: *const u32,
    c: *mut f32,
    end: Epilogue,
) -> usize {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller's contract, for every access below; vectors of pairs are plain bits.
    unsafe {
        for k in 0..left.depth {
            let mut right = [_mm512_setzero_si512(); VECTORS];
            for (vector, right) in right.iter_mut().enumerate() {
                *right = _mm512_loadu_si512(b.add(vector * lanes.right_stride + k * LANES).cast());
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = *a.add(row * left.row_stride + k * left.depth_stride);
                let x = _mm512_set1_epi32(x.cast_signed());
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm512_dpbf16_ps(*sum, bits(x), bits(right));
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                let to = c.add(vector * lanes.out_stride + row * LANES);
                let value = match end {
                    Epilogue::Scale(scale) => _mm512_mul_ps(*sum, _mm512_set1_ps(scale)),
                    Epilogue::Add => _mm512_add_ps(*sum, _mm512_loadu_ps(to)),
                };
                _mm512_storeu_ps(to, value);
            }
        }
    }
    ROWS
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bits(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(pairs) }
}

/// Rounds rows of LANES weights to pairs of rows, to nearest even; a last odd row is paired with zeros.
fn round(from: &[f32], to: &mut [u32]) {
    assert!(Isa::Avx512Bf16.is_here());
    // SAFETY: detected above.
    unsafe { round_rows(from, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn round_rows(from: &[f32], to: &mut [u32]) {
    // Lane i of the result holds element i of both halves.
    let order: [u16; 32] = std::array::from_fn(|i| (i / 2 + i % 2 * 16) as u16);
    for (rows, to) in from.chunks(2 * LANES).zip(to.chunks_exact_mut(LANES)) {
        // SAFETY: rows are LANES or 2 LANES long, `to` and `order` one vector.
        unsafe {
            let order = _mm512_loadu_si512(order.as_ptr().cast());
            let low = _mm512_loadu_ps(rows[..LANES].as_ptr());
            let high = match rows.get(LANES..2 * LANES) {
                Some(row) => _mm512_loadu_ps(row.as_ptr()),
                None => _mm512_setzero_ps(),
            };
            let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutexvar_epi16(order, halves));
        }
    }
}
