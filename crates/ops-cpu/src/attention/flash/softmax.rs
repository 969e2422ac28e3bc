//! The online softmax, in base 2: running maxima, sums and the factors that rescale earlier sums.
#![allow(unsafe_code)] // Scratch is reached through pointers, as the register tiles around it do.

use crate::simd::{Simd, math};
use std::f32::consts::LOG2_E;

/// How raw products become logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Logits {
    /// Set when products must be scaled (and capped) before the maximum is taken: a cap, or a scale that does not keep
    /// their order.
    before: Option<(f32, Option<f32>)>,
    /// Factor from (transformed) products to base-2 logits, above 0.
    factor: f32,
}

impl Logits {
    pub(super) fn new(scale: f64, softcap: Option<f64>) -> Self {
        if softcap.is_some() || scale <= 0.0 {
            let cap = softcap.map(|cap| cap as f32);
            return Self { before: Some((scale as f32, cap)), factor: LOG2_E };
        }
        Self { before: None, factor: (scale * std::f64::consts::LOG2_E) as f32 }
    }

    /// Scales and caps `count` products in place, if that must precede the maximum. Masking must follow: a cap would
    /// make -inf finite.
    ///
    /// # Safety
    /// `products` must be readable and writable for `count` values, a multiple of the lanes.
    #[inline(always)]
    pub(super) unsafe fn transform<S: Simd>(&self, s: S, products: *mut f32, count: usize) {
        let Some((scale, cap)) = self.before else { return };
        for at in (0..count).step_by(S::LANES) {
            // SAFETY: the caller's contract.
            unsafe {
                let logit = s.mul(s.load(products.add(at)), s.splat(scale));
                let logit = match cap {
                    Some(cap) => s.mul(math::tanh(s, s.div(logit, s.splat(cap))), s.splat(cap)),
                    None => logit,
                };
                s.store(products.add(at), logit);
            }
        }
    }
}

/// 2^x for x <= 0 (or a rounding error above); exactly 0 below -126.5, so that a masked key weighs nothing.
#[inline(always)]
#[allow(clippy::approx_constant)] // A coefficient near ln 2 that is not ln 2.
pub(super) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    // The order of the arguments keeps NaN (see `Simd::max`).
    let x = s.max(s.splat(-127.0), x);
    let n = s.round(x);
    let r = s.sub(x, n);
    // Minimax polynomial of 2^r on |r| <= 1/2 by the Remez exchange: relative error 7.5e-8.
    let mut p = s.splat(1.327_647_2e-3);
    for c in [9.675_542e-3, 5.550_713_3e-2, 2.402_212e-1, 6.931_47e-1, 1.000_000_1] {
        p = s.fma(p, r, s.splat(c));
    }
    // 2^-127 is not a normal number: the exponent bits are those of 0.
    s.mul(p, s.exp2_whole(n))
}

/// Online softmax state of a row of queries between key tiles; one value per lane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    /// Largest base-2 logit so far.
    pub(super) max: *mut f32,
    /// Sum of 2^(logit - max).
    pub(super) sum: *mut f32,
    /// Rescale factor for earlier tiles' sums.
    pub(super) rescale: *mut f32,
}

/// One key tile with queries in lanes: turns transformed `scores` [keys][VECTORS * LANES] into weights 2^(logit - max).
///
/// # Safety
/// `scores` must hold `keys` rows; the running values one row each.
#[inline(always)]
pub(super) unsafe fn panel<S: Simd, const VECTORS: usize>(
    s: S,
    logits: Logits,
    scores: *mut f32,
    keys: usize,
    running: Running,
) {
    let width = VECTORS * S::LANES;
    let factor = s.splat(logits.factor);
    // SAFETY: the caller's contract.
    unsafe {
        let mut largest = [s.splat(f32::NEG_INFINITY); VECTORS];
        for j in 0..keys {
            for (v, largest) in largest.iter_mut().enumerate() {
                *largest = s.max(*largest, s.load(scores.add(j * width + v * S::LANES)));
            }
        }
        let mut minus_base = largest;
        let mut sums = largest;
        for v in 0..VECTORS {
            let at = v * S::LANES;
            let before = s.load(running.max.add(at));
            let max = s.max(before, s.mul(largest[v], factor));
            let base = base(s, max);
            let rescale = exp2(s, s.sub(before, base));
            s.store(running.max.add(at), max);
            s.store(running.rescale.add(at), rescale);
            minus_base[v] = s.sub(s.splat(0.0), base);
            sums[v] = s.mul(s.load(running.sum.add(at)), rescale);
        }
        for j in 0..keys {
            for v in 0..VECTORS {
                let at = scores.add(j * width + v * S::LANES);
                let weight = exp2(s, s.fma(s.load(at), factor, minus_base[v]));
                sums[v] = s.add(sums[v], weight);
                s.store(at, weight);
            }
        }
        for (v, sums) in sums.iter().enumerate() {
            s.store(running.sum.add(v * S::LANES), *sums);
        }
    }
}

/// One key tile with keys in lanes: turns transformed `scores` into weights and returns the new (max, sum) and the factor for what
/// was accumulated before. `count` is a multiple of the lanes; scores past the tile's keys are -inf.
///
/// # Safety
/// `scores` must hold `count` values.
#[inline(always)]
pub(super) unsafe fn row<S: Simd>(
    s: S,
    logits: Logits,
    scores: *mut f32,
    count: usize,
    (max, sum): (f32, f32),
) -> (f32, f32, f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut largest = s.splat(f32::NEG_INFINITY);
        for at in (0..count).step_by(S::LANES) {
            largest = s.max(largest, s.load(scores.add(at)));
        }
        let new_max =
            s.max(s.splat(max), s.mul(s.splat(s.reduce_max(largest)), s.splat(logits.factor)));
        let base = base(s, new_max);
        let rescale = exp2(s, s.sub(s.splat(max), base));
        let mut sums = s.splat(0.0);
        for at in (0..count).step_by(S::LANES) {
            let logit = s.load(scores.add(at));
            let weight = exp2(s, s.fma(logit, s.splat(logits.factor), s.sub(s.splat(0.0), base)));
            sums = s.add(sums, weight);
            s.store(scores.add(at), weight);
        }
        let (mut max, mut factor) = (0.0, 0.0);
        s.store_first(&raw mut max, new_max, 1);
        s.store_first(&raw mut factor, rescale, 1);
        (max, sum * factor + s.reduce_add(sums), factor)
    }
}

/// The maximum, or 0 where no key was visible yet: -inf - -inf would be NaN.
#[inline(always)]
fn base<S: Simd>(s: S, max: S::V) -> S::V {
    s.select_gt(max, s.splat(f32::NEG_INFINITY), max, s.splat(0.0))
}
