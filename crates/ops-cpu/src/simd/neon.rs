use super::{Simd, SimdKernel};
use device::Isa;
use std::arch::aarch64::*;

/// Token for NEON; made only by [`super::dispatch`] after detection.
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

/// # Safety
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn enter<K: SimdKernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

// SAFETY of every unsafe block below: a token exists only inside `enter`, so the instructions exist; memory contracts
// are the trait's.
impl Simd for Neon {
    const ISA: Isa = Isa::Neon;
    const LANES: usize = 4;
    const TRANSPOSE: usize = 4;
    type V = float32x4_t;
    type Wide = [float64x2_t; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> float32x4_t {
        let mut lanes = [0f32; 4];
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count.min(4));
            vld1q_f32(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(to, v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, v: float32x4_t, count: usize) {
        let mut lanes = [0f32; 4];
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count.min(4));
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: float32x4_t) {
        // Arm has no streaming store intrinsic; its cores detect streams of full lines themselves.
        unsafe { vst1q_f32(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_wide(self, from: *const f32) -> [float64x2_t; 2] {
        unsafe { [vcvt_f64_f32(vld1_f32(from)), vcvt_f64_f32(vld1_f32(from.add(2)))] }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        unsafe {
            let row = |i: usize| vld1q_f32(from.add(i * from_stride));
            let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
            let (a0, a1) = (vtrn1q_f32(r0, r1), vtrn2q_f32(r0, r1));
            let (a2, a3) = (vtrn1q_f32(r2, r3), vtrn2q_f32(r2, r3));
            let low =
                |a: float32x4_t, b: float32x4_t| vcombine_f32(vget_low_f32(a), vget_low_f32(b));
            let high =
                |a: float32x4_t, b: float32x4_t| vcombine_f32(vget_high_f32(a), vget_high_f32(b));
            vst1q_f32(to, low(a0, a2));
            vst1q_f32(to.add(to_stride), low(a1, a3));
            vst1q_f32(to.add(2 * to_stride), high(a0, a2));
            vst1q_f32(to.add(3 * to_stride), high(a1, a3));
        }
    }

    #[inline(always)]
    fn split_triples(self, v: [float32x4_t; 3]) -> [float32x4_t; 3] {
        // The de-interleaving load is the instruction for it; the store before it stays in the store buffer.
        let mut values = [0f32; 12];
        unsafe {
            vst1q_f32_x3(values.as_mut_ptr(), float32x4x3_t(v[0], v[1], v[2]));
            let split = vld3q_f32(values.as_ptr());
            [split.0, split.1, split.2]
        }
    }
    #[inline(always)]
    fn join_triples(self, v: [float32x4_t; 3]) -> [float32x4_t; 3] {
        let mut values = [0f32; 12];
        unsafe {
            vst3q_f32(values.as_mut_ptr(), float32x4x3_t(v[0], v[1], v[2]));
            let joined = vld1q_f32_x3(values.as_ptr());
            [joined.0, joined.1, joined.2]
        }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn splat_wide(self, x: f64) -> [float64x2_t; 2] {
        unsafe { [vdupq_n_f64(x); 2] }
    }
    #[inline(always)]
    fn fma_wide(
        self,
        a: [float64x2_t; 2],
        b: [float64x2_t; 2],
        c: [float64x2_t; 2],
    ) -> [float64x2_t; 2] {
        unsafe { [vfmaq_f64(c[0], a[0], b[0]), vfmaq_f64(c[1], a[1], b[1])] }
    }
    #[inline(always)]
    fn narrow_wide(self, a: [float64x2_t; 2]) -> float32x4_t {
        unsafe { vcombine_f32(vcvt_f32_f64(a[0]), vcvt_f32_f64(a[1])) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // vmaxq gives NaN where either is NaN; the trait promises `b` there, as x86 has it.
        self.select_gt(a, b, a, b)
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        self.select_gt(b, a, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: float32x4_t) -> float32x4_t {
        unsafe { vsqrtq_f32(a) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn select_gt(
        self,
        a: float32x4_t,
        b: float32x4_t,
        yes: float32x4_t,
        no: float32x4_t,
    ) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), yes, no) }
    }
    #[inline(always)]
    fn exp2_whole(self, n: float32x4_t) -> float32x4_t {
        unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        }
    }
    #[inline(always)]
    fn split(self, a: float32x4_t) -> (float32x4_t, float32x4_t) {
        unsafe {
            let bits = vreinterpretq_u32_f32(a);
            let exponent =
                vsubq_s32(vreinterpretq_s32_u32(vshrq_n_u32::<23>(bits)), vdupq_n_s32(127));
            let mantissa =
                vorrq_u32(vandq_u32(bits, vdupq_n_u32(0x007f_ffff)), vdupq_n_u32(0x3f80_0000));
            (vcvtq_f32_s32(exponent), vreinterpretq_f32_u32(mantissa))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: float32x4_t) -> f32 {
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn reduce_max(self, a: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(a) }
    }
}
