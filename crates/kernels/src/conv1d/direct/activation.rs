//! The activation over vectors.

use crate::conv1d::Activation;
use crate::cpu::simd::Simd;

/// Applies it.
#[inline(always)]
pub(super) fn activate<S: Simd>(simd: S, activation: Activation, y: S::V) -> S::V {
    match activation {
        Activation::None => y,
        Activation::Silu => silu(simd, y),
    }
}

/// `x / (1 + e^-x)` in fewer operations than [`crate::cpu::simd::math::silu`]: with the activation the op would
/// otherwise wait for arithmetic instead of memory. The exponent is clamped instead of carried to infinity and reduced
/// in one step, so that the relative error grows from 4e-7 around 0 to 8e-6 at x = -80, where the result is 1e-33;
/// below -87 it is 0.
#[inline(always)]
fn silu<S: Simd>(simd: S, x: S::V) -> S::V {
    let t = simd.mul(x, simd.splat(-std::f32::consts::LOG2_E));
    // The order of the operands lets NaN through.
    let t = simd.min(simd.splat(126.0), simd.max(simd.splat(-126.0), t));
    let n = simd.round(t);
    let f = simd.sub(t, n);
    // 2^f on |f| <= 1/2: the coefficients of Cephes exp2f.
    let mut p = simd.splat(1.535_336_2e-4);
    for c in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0] {
        p = simd.fma(p, f, simd.splat(c));
    }
    let e = simd.mul(p, simd.exp2_whole(n));
    let y = simd.div(x, simd.add(e, simd.splat(1.0)));
    simd.select_gt(simd.splat(-87.0), x, simd.splat(0.0), y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{SimdKernel, dispatch};
    use device::Isa;

    struct Apply<'a>(&'a mut [f32]);

    impl SimdKernel for Apply<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for values in self.0.chunks_mut(S::LANES) {
                // SAFETY: both read and write only the values there are.
                unsafe {
                    let v = simd.load_first(values.as_ptr(), values.len());
                    let v = activate(simd, Activation::Silu, v);
                    simd.store_first(values.as_mut_ptr(), v, values.len());
                }
            }
        }
    }

    #[test]
    fn silu_is_accurate_where_it_matters() {
        let xs: Vec<f32> = (-8000..=8000).map(|i| i as f32 * 0.01).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let mut got = xs.clone();
            dispatch(isa, Apply(&mut got));
            for (x, got) in xs.iter().zip(&got) {
                let exact = f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
                let limit = 4e-7 + 1e-7 * f64::from(x.min(0.0).abs());
                let error = (f64::from(*got) - exact).abs() / exact.abs().max(1e-37);
                assert!(error <= limit, "{isa}: silu({x}) = {got:e}, wanted {exact:e}, {error:e}");
            }
            let mut edges = [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN, f32::NEG_INFINITY];
            dispatch(isa, Apply(&mut edges));
            assert!(edges[0].is_nan(), "{isa}");
            assert_eq!(edges[1..], [f32::INFINITY, f32::MAX, 0.0, 0.0], "{isa}");
        }
    }
}
