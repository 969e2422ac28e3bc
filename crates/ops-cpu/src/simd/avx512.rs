use super::{Simd, SimdKernel, triples};
use device::Isa;
use std::arch::x86_64::*;

/// Token for AVX-512 (F, BW, DQ, VL); made only by [`super::dispatch`] after detection.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn enter<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

#[inline(always)]
fn first(count: usize) -> __mmask16 {
    debug_assert!(count <= 16);
    ((1u32 << count) - 1) as __mmask16
}

// SAFETY of every unsafe block below: a token exists only inside `enter`, so the instructions exist; memory contracts
// are the trait's.
impl Simd for Avx512 {
    const ISA: Isa = Isa::Avx512;
    const LANES: usize = 16;
    const TRANSPOSE: usize = 8;
    type V = __m512;
    type Wide = [__m512d; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(count), from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, v: __m512, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(count), v) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: __m512) {
        debug_assert!(to.addr().is_multiple_of(64));
        unsafe { _mm512_stream_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> __m512 {
        unsafe {
            let bits = _mm256_loadu_si256(from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_wide(self, from: *const f32) -> [__m512d; 2] {
        unsafe {
            let high = _mm256_loadu_ps(from.add(8));
            [_mm512_cvtps_pd(_mm256_loadu_ps(from)), _mm512_cvtps_pd(high)]
        }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        unsafe { super::avx2::transpose8(from, from_stride, to, to_stride) }
    }

    #[inline(always)]
    fn split_triples(self, v: [__m512; 3]) -> [__m512; 3] {
        const fn mask(j: usize, k: usize) -> __mmask16 {
            triples::mask(16, j, k) as __mmask16
        }
        const LANES: [[i32; 16]; 3] = [triples::lanes(0), triples::lanes(1), triples::lanes(2)];
        unsafe {
            let gather = |second: __mmask16, third: __mmask16, lanes: &[i32; 16]| {
                let two = _mm512_mask_blend_ps(second, v[0], v[1]);
                let all = _mm512_mask_blend_ps(third, two, v[2]);
                _mm512_permutexvar_ps(_mm512_loadu_epi32(lanes.as_ptr()), all)
            };
            [
                gather(const { mask(1, 0) }, const { mask(2, 0) }, &LANES[0]),
                gather(const { mask(1, 1) }, const { mask(2, 1) }, &LANES[1]),
                gather(const { mask(1, 2) }, const { mask(2, 2) }, &LANES[2]),
            ]
        }
    }
    #[inline(always)]
    fn join_triples(self, v: [__m512; 3]) -> [__m512; 3] {
        const fn mask(j: usize, k: usize) -> __mmask16 {
            triples::mask(16, j, k) as __mmask16
        }
        const TRIPLES: [[i32; 16]; 3] =
            [triples::triples(0), triples::triples(1), triples::triples(2)];
        unsafe {
            let spread =
                |k: usize| _mm512_permutexvar_ps(_mm512_loadu_epi32(TRIPLES[k].as_ptr()), v[k]);
            let v = [spread(0), spread(1), spread(2)];
            let scatter = |second: __mmask16, third: __mmask16| {
                _mm512_mask_blend_ps(third, _mm512_mask_blend_ps(second, v[0], v[1]), v[2])
            };
            [
                scatter(const { mask(0, 1) }, const { mask(0, 2) }),
                scatter(const { mask(1, 1) }, const { mask(1, 2) }),
                scatter(const { mask(2, 1) }, const { mask(2, 2) }),
            ]
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn splat_wide(self, x: f64) -> [__m512d; 2] {
        unsafe { [_mm512_set1_pd(x); 2] }
    }
    #[inline(always)]
    fn fma_wide(self, a: [__m512d; 2], b: [__m512d; 2], c: [__m512d; 2]) -> [__m512d; 2] {
        unsafe { [_mm512_fmadd_pd(a[0], b[0], c[0]), _mm512_fmadd_pd(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn narrow_wide(self, a: [__m512d; 2]) -> __m512 {
        unsafe {
            let low = _mm512_castps256_ps512(_mm512_cvtpd_ps(a[0]));
            _mm512_insertf32x8::<1>(low, _mm512_cvtpd_ps(a[1]))
        }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }
    #[inline(always)]
    fn select_gt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn exp2_whole(self, n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn split(self, a: __m512) -> (__m512, __m512) {
        unsafe {
            (_mm512_getexp_ps(a), _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_SRC>(a))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
}
