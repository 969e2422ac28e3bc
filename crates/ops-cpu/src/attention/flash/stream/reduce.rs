//! Sums over lanes, many vectors at once.
#![allow(unsafe_code)] // Intrinsics and scratch pointers.

use crate::simd::Simd;

/// `to[r * stride + i]` = sum over the lanes of `sums[i][r]`.
///
/// # Safety
/// `to` must be writable for `ROWS` rows of `SIDE` values, `stride` apart.
#[inline(always)]
pub(super) unsafe fn store<S: Simd, const ROWS: usize, const SIDE: usize>(
    s: S,
    sums: &[[S::V; ROWS]; SIDE],
    to: *mut f32,
    stride: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if const { is_zmm::<S>() && ROWS * SIDE <= 16 } {
        use std::arch::x86_64::*;
        // SAFETY: the condition says that S::V is __m512, and that the processor has AVX-512.
        unsafe {
            let mut vectors = [_mm512_setzero_ps(); 16];
            for (i, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    vectors[r * SIDE + i] = std::mem::transmute_copy(sum);
                }
            }
            let mut totals = [0.0f32; 16];
            _mm512_storeu_ps(totals.as_mut_ptr(), sum16(&vectors));
            for r in 0..ROWS {
                std::ptr::copy_nonoverlapping(
                    totals.as_ptr().add(r * SIDE),
                    to.add(r * stride),
                    SIDE,
                );
            }
        }
        return;
    }
    for (i, sums) in sums.iter().enumerate() {
        for (r, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { *to.add(r * stride + i) = s.reduce_add(*sum) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
const fn is_zmm<S: Simd>() -> bool {
    matches!(S::ISA, device::Isa::Avx512 | device::Isa::Avx512Bf16)
}

/// Lane `n` of the result is the sum over the lanes of `vectors[n]`: four rounds that halve the vectors and add, 45
/// instructions where 16 separate sums take about 130.
///
/// # Safety
/// The processor must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn sum16(vectors: &[std::arch::x86_64::__m512; 16]) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::*;
    // SAFETY: the caller's contract.
    unsafe {
        let mut halves = [_mm512_setzero_ps(); 8];
        for (n, half) in halves.iter_mut().enumerate() {
            // The rounds leave the sum of the vector at place 4 e + l in lane 4 l + e, so that is how they are taken.
            let (a, b) = (2 * n, 2 * n + 1);
            let (a, b) = (vectors[4 * (a % 4) + a / 4], vectors[4 * (b % 4) + b / 4]);
            *half = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x44>(a, b),
                _mm512_shuffle_f32x4::<0xee>(a, b),
            );
        }
        let mut quarters = [_mm512_setzero_ps(); 4];
        for (n, quarter) in quarters.iter_mut().enumerate() {
            let (a, b) = (halves[2 * n], halves[2 * n + 1]);
            *quarter = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0x88>(a, b),
                _mm512_shuffle_f32x4::<0xdd>(a, b),
            );
        }
        let mut pairs = [_mm512_setzero_ps(); 2];
        for (n, pair) in pairs.iter_mut().enumerate() {
            let (a, b) = (quarters[2 * n], quarters[2 * n + 1]);
            *pair = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        let [a, b] = pairs;
        _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::simd::{SimdKernel, dispatch};
    use device::Isa;

    struct Sums;

    impl SimdKernel for Sums {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let lanes: Vec<f32> = (0..16 * S::LANES).map(|x| ((x * x) % 1009) as f32).collect();
            let mut sums = [[s.splat(0.0); 4]; 4];
            let mut to = vec![0.0; 4 * 7];
            // SAFETY: 16 vectors of lanes, four rows of seven values.
            unsafe {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.load(lanes.as_ptr().add((i * 4 + r) * S::LANES));
                    }
                }
                store(s, &sums, to.as_mut_ptr(), 7);
            }
            for i in 0..4 {
                for r in 0..4 {
                    let want: f32 = lanes[(i * 4 + r) * S::LANES..][..S::LANES].iter().sum();
                    assert_eq!(to[r * 7 + i], want, "{} key {i} row {r}", S::ISA);
                }
            }
            to
        }
    }

    #[test]
    fn every_sum_lands_in_its_place() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            assert_eq!(dispatch(isa, Sums).len(), 28);
        }
    }
}
