//! Elementary functions over vectors, accurate to a few units in the last place.

// Coefficients are quoted in full as Cephes prints them; the compiler rounds them once.
#![allow(clippy::excessive_precision)]

use super::Simd;

/// e^x. 0 below -87.33 (where the result would be subnormal), infinity above 88.72, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // The clamp keeps 2^n a normal number; its order keeps NaN (see `Simd::max`).
    let clamped = s.min(s.splat(88.72), s.max(s.splat(-87.33), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts (Cody and Waite): n * high is exact for |n| < 2^9.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // Minimax polynomial of e^r on |r| <= ln2 / 2 (the coefficients of Cephes expf).
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let e = s.fma(s.mul(r, r), p, s.add(r, s.splat(1.0)));
    // 2^128 is no f32, yet e^88.7 is: the last factor 2 is multiplied apart.
    let y = s.mul(e, s.exp2_whole(s.min(n, s.splat(127.0))));
    let y = s.mul(y, s.select_gt(n, s.splat(127.5), s.splat(2.0), s.splat(1.0)));
    let y = s.select_gt(x, s.splat(88.72), s.splat(f32::INFINITY), y);
    s.select_gt(s.splat(-87.33), x, s.splat(0.0), y)
}

/// Natural logarithm of a positive normal number.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::V) -> S::V {
    let (e, m) = s.split(x);
    // Mantissas above sqrt 2 are halved so that the polynomial sees values around 1.
    let big = s.splat(std::f32::consts::SQRT_2);
    let e = s.select_gt(m, big, s.add(e, s.splat(1.0)), e);
    let m = s.select_gt(m, big, s.mul(m, s.splat(0.5)), m);
    let r = s.sub(m, s.splat(1.0));
    let z = s.mul(r, r);
    // The coefficients of Cephes logf.
    let mut p = s.splat(7.037_683_6e-2);
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333_1e-1,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let y = s.mul(s.mul(p, r), z);
    let y = s.fma(e, s.splat(-2.121_944_4e-4), y);
    let y = s.fma(z, s.splat(-0.5), y);
    s.fma(e, s.splat(0.693_359_4), s.add(r, y))
}

/// ln(1 + e^x), the identity above 20 as the Mamba and KDA layers have it.
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let u = exp(s, s.min(x, s.splat(20.0)));
    // Kahan's log1p: the quotient restores what 1 + u rounded away.
    let w = s.add(u, s.splat(1.0));
    let rounded = s.sub(w, s.splat(1.0));
    let positive = s.select_gt(rounded, s.splat(0.0), rounded, s.splat(1.0));
    let log1p = s.mul(ln(s, w), s.div(u, positive));
    let y = s.select_gt(rounded, s.splat(0.0), log1p, u);
    s.select_gt(x, s.splat(20.0), x, y)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// The sigmoids of x and of -x; the second is not 1 less the first, which is 0 for large x.
#[inline(always)]
pub fn sigmoids<S: Simd>(s: S, x: S::V) -> [S::V; 2] {
    // Finite, because it multiplies a quotient that may be 0.
    let e = exp(s, s.min(s.splat(88.0), s.sub(s.splat(0.0), x)));
    let sigmoid = s.div(s.splat(1.0), s.add(s.splat(1.0), e));
    [sigmoid, s.mul(e, sigmoid)]
}

/// x * sigmoid(x).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    // x / inf is -0 for very negative x, as it should be.
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.mul(x, s.splat(2.0)));
    let large = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    // Near zero the difference above cancels: the odd polynomial of Cephes tanhf.
    let z = s.mul(x, x);
    let mut p = s.splat(-5.704_988e-3);
    for c in [2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, z, s.splat(c));
    }
    let small = s.fma(s.mul(p, z), x, x);
    s.select_gt(s.splat(0.390_625), z, small, large)
}
