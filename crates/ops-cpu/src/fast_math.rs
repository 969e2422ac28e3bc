//! Elementary functions with fewer instructions than [`crate::simd::math`], for kernels that are bound by arithmetic. The
//! range is reduced in one step, so the relative error grows with the argument. They are for results that, for large
//! arguments, are added to larger values or rounded.
#![allow(unsafe_code)] // The tests load and store vectors.

use crate::simd::Simd;

/// `2^t` for `-126 <= t <= 126`; t is clamped to that range, and NaN gives NaN.
#[inline(always)]
fn exp2<S: Simd>(simd: S, t: S::V) -> S::V {
    // This order of operands propagates NaN.
    let t = simd.min(simd.splat(126.0), simd.max(simd.splat(-126.0), t));
    let n = simd.round(t);
    let f = simd.sub(t, n);
    // 2^f on |f| <= 1/2: the coefficients of Cephes exp2f.
    let mut p = simd.splat(1.535_336_2e-4);
    for c in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0] {
        p = simd.fma(p, f, simd.splat(c));
    }
    simd.mul(p, simd.exp2_whole(n))
}

/// `e^x` for `x <= 0`: relative error at most 2e-7 + 1e-7 |x|, so absolute error at most 2e-7; 0 below -87.
#[inline(always)]
pub(crate) fn decay<S: Simd>(simd: S, x: S::V) -> S::V {
    let e = exp2(simd, simd.mul(x, simd.splat(std::f32::consts::LOG2_E)));
    simd.select_gt(simd.splat(-87.0), x, simd.splat(0.0), e)
}

/// `x / (1 + e^-x)`: relative error at most 4e-7 + 1e-7 |x| for negative x, 4e-7 for positive; 0 below -87.
#[inline(always)]
pub(crate) fn silu<S: Simd>(simd: S, x: S::V) -> S::V {
    let e = exp2(simd, simd.mul(x, simd.splat(-std::f32::consts::LOG2_E)));
    let y = simd.div(x, simd.add(e, simd.splat(1.0)));
    simd.select_gt(simd.splat(-87.0), x, simd.splat(0.0), y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{SimdKernel, dispatch};
    use device::Isa;

    struct Apply<'a>(&'a mut [f32], &'a mut [f32]);

    impl SimdKernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for (a, b) in self.0.chunks_mut(S::LANES).zip(self.1.chunks_mut(S::LANES)) {
                // SAFETY: both read and write only the chunk's elements.
                unsafe {
                    let v = decay(simd, simd.load_first(a.as_ptr(), a.len()));
                    simd.store_first(a.as_mut_ptr(), v, a.len());
                    let v = silu(simd, simd.load_first(b.as_ptr(), b.len()));
                    simd.store_first(b.as_mut_ptr(), v, b.len());
                }
            }
        }
    }

    fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_here())
    }

    #[test]
    fn errors_are_within_the_documented_bounds() {
        let xs: Vec<f32> = (-8000..=8000).map(|i| i as f32 * 0.01).collect();
        let falling: Vec<f32> = xs.iter().map(|x| x.min(0.0)).collect();
        for isa in available() {
            let (mut decays, mut silus) = (falling.clone(), xs.clone());
            dispatch(isa, Apply(&mut decays, &mut silus));
            for (at, x) in xs.iter().enumerate() {
                let (x, f) = (f64::from(*x), f64::from(falling[at]));
                let limit = 1e-7 * f.abs();
                for (name, got, want, limit) in [
                    ("decay", decays[at], f.exp(), 2e-7 + limit),
                    ("silu", silus[at], x / (1.0 + (-x).exp()), 4e-7 + limit),
                ] {
                    let error = (f64::from(got) - want).abs() / want.abs().max(1e-37);
                    assert!(error <= limit, "{isa}: {name}({x}) = {got:e}, wanted {want:e}");
                }
            }
        }
    }

    #[test]
    fn zeros_infinities_and_nan_have_the_limits_of_the_functions() {
        for isa in available() {
            let mut decays = [f32::NAN, 0.0, -0.0, f32::MIN, f32::NEG_INFINITY];
            let mut silus = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, f32::NEG_INFINITY];
            dispatch(isa, Apply(&mut decays, &mut silus));
            assert!(decays[0].is_nan() && silus[0].is_nan(), "{isa}");
            assert_eq!(decays[1..], [1.0, 1.0, 0.0, 0.0], "{isa}");
            assert_eq!(silus[1..], [f32::INFINITY, f32::MAX, 0.0, 0.0], "{isa}");
        }
    }
}
