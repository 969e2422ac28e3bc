//! A function of vectors over every value of a slice.

use super::Simd;

/// Operation of [`map`] on a vector. Not a closure: a closure of more than a few vector operations is compiled for the baseline
/// instead of being inlined, and every operation becomes a call.
pub(crate) trait Map: Copy {
    /// Implement as `#[inline(always)]`.
    fn map<S: Simd>(self, simd: S, v: S::V) -> S::V;
}

/// `v` times the factor.
#[derive(Clone, Copy)]
pub(crate) struct Scale(pub(crate) f32);

impl Map for Scale {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, v: S::V) -> S::V {
        simd.mul(v, simd.splat(self.0))
    }
}

/// `e^v`.
#[derive(Clone, Copy)]
pub(crate) struct Exp;

impl Map for Exp {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, v: S::V) -> S::V {
        super::math::exp(simd, v)
    }
}

/// Applies `f` to every value.
#[inline(always)]
pub(crate) fn map<S: Simd>(simd: S, values: &mut [f32], f: impl Map) {
    let whole = values.len() / S::LANES * S::LANES;
    let start = values.as_mut_ptr();
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: `LANES` values from `at` on are inside the slice.
        unsafe { simd.store(start.add(at), f.map(simd, simd.load(start.add(at)))) };
    }
    let rest = values.len() - whole;
    if rest > 0 {
        // SAFETY: `rest` values are left.
        unsafe {
            let v = f.map(simd, simd.load_first(start.add(whole), rest));
            simd.store_first(start.add(whole), v, rest);
        }
    }
}
