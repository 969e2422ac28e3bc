use super::Simd;
use device::Isa;

/// Token for plain Rust, always available. Four lanes are a register of every baseline; more lanes make no loop faster.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

const LANES: usize = 4;
type V = [f32; LANES];

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> V {
    std::array::from_fn(f)
}

// SAFETY of every unsafe block below: memory contracts are the trait's.
impl Simd for Portable {
    const ISA: Isa = Isa::Portable;
    const LANES: usize = LANES;
    const TRANSPOSE: usize = 4;
    type V = V;
    type Wide = [f64; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> V {
        unsafe { from.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> V {
        let mut lanes = [0f32; LANES];
        unsafe { std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count.min(LANES)) };
        lanes
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: V) {
        unsafe { to.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, v: V, count: usize) {
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), to, count.min(LANES)) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: V) {
        unsafe { self.store(to, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> V {
        each(|i| unsafe { from.add(i).read_unaligned() }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_wide(self, from: *const f32) -> [f64; LANES] {
        unsafe { self.load(from) }.map(f64::from)
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        for row in 0..4 {
            for column in 0..4 {
                unsafe {
                    *to.add(column * to_stride + row) = *from.add(row * from_stride + column)
                };
            }
        }
    }

    #[inline(always)]
    fn split_triples(self, v: [V; 3]) -> [V; 3] {
        std::array::from_fn(|k| each(|c| v[(3 * c + k) / LANES][(3 * c + k) % LANES]))
    }
    #[inline(always)]
    fn join_triples(self, v: [V; 3]) -> [V; 3] {
        std::array::from_fn(|j| each(|lane| v[(LANES * j + lane) % 3][(LANES * j + lane) / 3]))
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // `mul_add` is a library call where the baseline has no fused instruction: two roundings are the price of
        // staying vectorised there.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            each(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn splat_wide(self, x: f64) -> [f64; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    fn fma_wide(self, a: [f64; LANES], b: [f64; LANES], c: [f64; LANES]) -> [f64; LANES] {
        // Rounded twice, but the product of two widened f32 is exact.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn narrow_wide(self, a: [f64; LANES]) -> V {
        each(|i| a[i] as f32)
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sqrt(self, a: V) -> V {
        each(|i| a[i].sqrt())
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        // Adding and taking away 1.5 * 2^23 rounds to nearest even in plain float arithmetic; larger values are whole.
        const BIG: f32 = 12_582_912.0;
        each(|i| if a[i].abs() < 4_194_304.0 { (a[i] + BIG) - BIG } else { a[i] })
    }
    #[inline(always)]
    fn select_gt(self, a: V, b: V, yes: V, no: V) -> V {
        each(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn exp2_whole(self, n: V) -> V {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn split(self, a: V) -> (V, V) {
        (
            each(|i| ((a[i].to_bits() >> 23) as i32 - 127) as f32),
            each(|i| f32::from_bits((a[i].to_bits() & 0x007f_ffff) | 0x3f80_0000)),
        )
    }
    #[inline(always)]
    fn reduce_add(self, a: V) -> f32 {
        a.iter().sum()
    }
    #[inline(always)]
    fn reduce_max(self, a: V) -> f32 {
        a.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}
