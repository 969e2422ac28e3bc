use super::{Simd, SimdKernel, triples};
use device::Isa;
use std::arch::x86_64::*;

/// Token for AVX2 with FMA; made only by [`super::dispatch`] after detection.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// # Safety
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn enter<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

#[inline(always)]
fn first(count: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    debug_assert!(count <= 8);
    // SAFETY: eight values from 8 - count lie inside the sixteen.
    unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - count.min(8)).cast()) }
}

/// Transposes 8 x 8 values; strides in values.
///
/// # Safety
/// The processor must have AVX; rows must be readable and writable for 8 values.
#[inline(always)]
pub(super) unsafe fn transpose8(
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
) {
    unsafe {
        let row = |i: usize| _mm256_loadu_ps(from.add(i * from_stride));
        let (r0, r1, r2, r3, r4, r5, r6, r7) =
            (row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7));
        let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let (a4, a5) = (_mm256_unpacklo_ps(r4, r5), _mm256_unpackhi_ps(r4, r5));
        let (a6, a7) = (_mm256_unpacklo_ps(r6, r7), _mm256_unpackhi_ps(r6, r7));
        let b0 = _mm256_shuffle_ps::<0x44>(a0, a2);
        let b1 = _mm256_shuffle_ps::<0xee>(a0, a2);
        let b2 = _mm256_shuffle_ps::<0x44>(a1, a3);
        let b3 = _mm256_shuffle_ps::<0xee>(a1, a3);
        let b4 = _mm256_shuffle_ps::<0x44>(a4, a6);
        let b5 = _mm256_shuffle_ps::<0xee>(a4, a6);
        let b6 = _mm256_shuffle_ps::<0x44>(a5, a7);
        let b7 = _mm256_shuffle_ps::<0xee>(a5, a7);
        let put = |i: usize, v: __m256| _mm256_storeu_ps(to.add(i * to_stride), v);
        put(0, _mm256_permute2f128_ps::<0x20>(b0, b4));
        put(1, _mm256_permute2f128_ps::<0x20>(b1, b5));
        put(2, _mm256_permute2f128_ps::<0x20>(b2, b6));
        put(3, _mm256_permute2f128_ps::<0x20>(b3, b7));
        put(4, _mm256_permute2f128_ps::<0x31>(b0, b4));
        put(5, _mm256_permute2f128_ps::<0x31>(b1, b5));
        put(6, _mm256_permute2f128_ps::<0x31>(b2, b6));
        put(7, _mm256_permute2f128_ps::<0x31>(b3, b7));
    }
}

// SAFETY of every unsafe block below: a token exists only inside `enter`, so the instructions exist; memory contracts
// are the trait's.
impl Simd for Avx2 {
    const ISA: Isa = Isa::Avx2;
    const LANES: usize = 8;
    const TRANSPOSE: usize = 8;
    type V = __m256;
    type Wide = [__m256d; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(from, first(count)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, v: __m256, count: usize) {
        unsafe { _mm256_maskstore_ps(to, first(count), v) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: __m256) {
        debug_assert!(to.addr().is_multiple_of(32));
        unsafe { _mm256_stream_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> __m256 {
        unsafe {
            let bits = _mm_loadu_si128(from.cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
        }
    }
    #[inline(always)]
    unsafe fn load_wide(self, from: *const f32) -> [__m256d; 2] {
        unsafe { [_mm256_cvtps_pd(_mm_loadu_ps(from)), _mm256_cvtps_pd(_mm_loadu_ps(from.add(4)))] }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        unsafe { transpose8(from, from_stride, to, to_stride) }
    }

    #[inline(always)]
    fn split_triples(self, v: [__m256; 3]) -> [__m256; 3] {
        const fn mask(j: usize, k: usize) -> i32 {
            triples::mask(8, j, k) as i32
        }
        const LANES: [[i32; 8]; 3] = [triples::lanes(0), triples::lanes(1), triples::lanes(2)];
        unsafe {
            let all = [
                _mm256_blend_ps::<{ mask(2, 0) }>(
                    _mm256_blend_ps::<{ mask(1, 0) }>(v[0], v[1]),
                    v[2],
                ),
                _mm256_blend_ps::<{ mask(2, 1) }>(
                    _mm256_blend_ps::<{ mask(1, 1) }>(v[0], v[1]),
                    v[2],
                ),
                _mm256_blend_ps::<{ mask(2, 2) }>(
                    _mm256_blend_ps::<{ mask(1, 2) }>(v[0], v[1]),
                    v[2],
                ),
            ];
            let order = |k: usize| {
                _mm256_permutevar8x32_ps(all[k], _mm256_loadu_si256(LANES[k].as_ptr().cast()))
            };
            [order(0), order(1), order(2)]
        }
    }
    #[inline(always)]
    fn join_triples(self, v: [__m256; 3]) -> [__m256; 3] {
        const fn mask(j: usize, k: usize) -> i32 {
            triples::mask(8, j, k) as i32
        }
        const TRIPLES: [[i32; 8]; 3] =
            [triples::triples(0), triples::triples(1), triples::triples(2)];
        unsafe {
            let spread = |k: usize| {
                _mm256_permutevar8x32_ps(v[k], _mm256_loadu_si256(TRIPLES[k].as_ptr().cast()))
            };
            let v = [spread(0), spread(1), spread(2)];
            [
                _mm256_blend_ps::<{ mask(0, 2) }>(
                    _mm256_blend_ps::<{ mask(0, 1) }>(v[0], v[1]),
                    v[2],
                ),
                _mm256_blend_ps::<{ mask(1, 2) }>(
                    _mm256_blend_ps::<{ mask(1, 1) }>(v[0], v[1]),
                    v[2],
                ),
                _mm256_blend_ps::<{ mask(2, 2) }>(
                    _mm256_blend_ps::<{ mask(2, 1) }>(v[0], v[1]),
                    v[2],
                ),
            ]
        }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn splat_wide(self, x: f64) -> [__m256d; 2] {
        unsafe { [_mm256_set1_pd(x); 2] }
    }
    #[inline(always)]
    fn fma_wide(self, a: [__m256d; 2], b: [__m256d; 2], c: [__m256d; 2]) -> [__m256d; 2] {
        unsafe { [_mm256_fmadd_pd(a[0], b[0], c[0]), _mm256_fmadd_pd(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn narrow_wide(self, a: [__m256d; 2]) -> __m256 {
        unsafe { _mm256_set_m128(_mm256_cvtpd_ps(a[1]), _mm256_cvtpd_ps(a[0])) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn select_gt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn exp2_whole(self, n: __m256) -> __m256 {
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn split(self, a: __m256) -> (__m256, __m256) {
        unsafe {
            let bits = _mm256_castps_si256(a);
            let exponent = _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127));
            let mantissa = _mm256_or_si256(
                _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff)),
                _mm256_set1_epi32(0x3f80_0000),
            );
            (_mm256_cvtepi32_ps(exponent), _mm256_castsi256_ps(mantissa))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: __m256) -> f32 {
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(quarter, _mm_shuffle_ps::<1>(quarter, quarter)))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: __m256) -> f32 {
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(quarter, _mm_shuffle_ps::<1>(quarter, quarter)))
        }
    }
}
