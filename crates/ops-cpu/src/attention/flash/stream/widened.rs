#![allow(unsafe_code)] // Rows are read through pointers, ahead of use.

use super::super::scheme::Widened;
use super::super::storage::Storage;
use super::products::{KEYS, Products};
use super::reduce;
use super::rows::Rows;
use crate::simd::Simd;

impl<E: Storage> Products for Widened<E> {
    #[inline(always)]
    unsafe fn stage<S: Simd>(s: S, from: *const E, dim: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { E::widen_row(s, from, to, dim) }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const SIDE: usize>(
        s: S,
        [keys, next]: [&Rows<E>; 2],
        dim: usize,
        q: (*const f32, usize),
        wide: *mut f32,
        to: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if E::LOADS {
                scores::<S, E, E, ROWS, SIDE>(s, keys, next, dim, q, to);
            } else {
                let keys = widen(s, keys, dim, wide);
                scores::<S, f32, E, ROWS, SIDE>(s, &keys, next, dim, q, to);
            }
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const SIDE: usize>(
        s: S,
        [values, next]: [&Rows<E>; 2],
        dim: usize,
        weights: *mut f32,
        rescale: &[f32; ROWS],
        wide: *mut f32,
        o: (*mut f32, usize),
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            if E::LOADS {
                outputs::<S, E, E, ROWS, SIDE>(s, values, next, dim, weights, rescale, o);
            } else {
                let values = widen(s, values, dim, wide);
                outputs::<S, f32, E, ROWS, SIDE>(s, &values, next, dim, weights, rescale, o);
            }
        }
    }
}

/// # Safety
/// Every row must be readable for `dim` values, `wide` writable for KEYS rows.
#[inline(always)]
unsafe fn widen<S: Simd, E: Storage>(
    s: S,
    rows: &Rows<E>,
    dim: usize,
    wide: *mut f32,
) -> Rows<f32> {
    let mut widened = Rows { at: [std::ptr::null(); KEYS], count: rows.count };
    for j in 0..rows.count {
        let to = wide.wrapping_add(j * dim);
        // SAFETY: the caller's contract.
        unsafe { E::widen_row(s, rows.at[j], to, dim) };
        widened.at[j] = to;
    }
    widened
}

/// `scores[r][j] = q[r] . k[j]` for all rows and the tile's keys.
#[inline(always)]
unsafe fn scores<S: Simd, E: Storage, N: Storage, const ROWS: usize, const SIDE: usize>(
    s: S,
    keys: &Rows<E>,
    next: &Rows<N>,
    dim: usize,
    (q, q_stride): (*const f32, usize),
    scores: *mut f32,
) {
    let whole = dim - dim % S::LANES;
    for first in (0..keys.count).step_by(SIDE) {
        let mut sums = [[s.splat(0.0); ROWS]; SIDE];
        // Past the last key the last one is read again; its score means nothing.
        let mut at = [keys.at[first]; SIDE];
        for (i, at) in at.iter_mut().enumerate() {
            next.prefetch(first + i, dim);
            *at = keys.at[(first + i).min(keys.count - 1)];
        }
        // SAFETY: the caller's contract: keys have `dim` values, queries are padded with zeros to whole vectors.
        unsafe {
            for d in (0..whole).step_by(S::LANES) {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = E::load(s, at.add(d));
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(k, s.load(q.add(r * q_stride + d)), *sum);
                    }
                }
            }
            if whole < dim {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = E::load_first(s, at.add(whole), dim - whole);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(k, s.load(q.add(r * q_stride + whole)), *sum);
                    }
                }
            }
            reduce::store(s, &sums, scores.add(first), KEYS);
        }
    }
}

/// `o[r] = rescale[r] * o[r] + sum over j of weights[r][j] * v[j]`.
#[inline(always)]
unsafe fn outputs<S: Simd, E: Storage, N: Storage, const ROWS: usize, const SIDE: usize>(
    s: S,
    values: &Rows<E>,
    next: &Rows<N>,
    dim: usize,
    weights: *const f32,
    rescale: &[f32; ROWS],
    (o, o_stride): (*mut f32, usize),
) {
    let whole = dim - dim % S::LANES;
    let mut at = 0;
    // SAFETY: the caller's contract: values have `dim` channels, outputs are padded to whole vectors.
    unsafe {
        while at + SIDE * S::LANES <= whole {
            columns::<S, E, N, ROWS, SIDE>(
                s,
                values,
                next,
                (at, S::LANES, dim),
                weights,
                rescale,
                (o.add(at), o_stride),
            );
            at += SIDE * S::LANES;
        }
        while at < dim {
            let count = S::LANES.min(dim - at);
            columns::<S, E, N, ROWS, 1>(
                s,
                values,
                next,
                (at, count, dim),
                weights,
                rescale,
                (o.add(at), o_stride),
            );
            at += S::LANES;
        }
    }
}

/// [`outputs`] for `VECTORS` vectors of channels from `at` on (of `dim`), the last one of `count` lanes.
#[inline(always)]
unsafe fn columns<S: Simd, E: Storage, N: Storage, const ROWS: usize, const VECTORS: usize>(
    s: S,
    values: &Rows<E>,
    next: &Rows<N>,
    (at, count, dim): (usize, usize, usize),
    weights: *const f32,
    rescale: &[f32; ROWS],
    (o, o_stride): (*mut f32, usize),
) {
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    // SAFETY: the caller's contract.
    unsafe {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.mul(s.load(o.add(r * o_stride + i * S::LANES)), s.splat(rescale[r]));
            }
        }
        for j in 0..values.count {
            if at == 0 {
                next.prefetch(j, dim);
            }
            let from = values.at[j].add(at);
            let mut v = [s.splat(0.0); VECTORS];
            if VECTORS == 1 && count < S::LANES {
                v[0] = E::load_first(s, from, count);
            } else {
                for (i, v) in v.iter_mut().enumerate() {
                    *v = E::load(s, from.add(i * S::LANES));
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(r * KEYS + j));
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = s.fma(weight, v, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                s.store(o.add(r * o_stride + i * S::LANES), *sum);
            }
        }
    }
}
