//! Vectors of f32 lanes, one implementation per instruction set, chosen at run time.
//!
//! A kernel is written once over [`Simd`] as a [`SimdKernel`] and runs through [`dispatch`], which enters a function
//! compiled for the instruction set. Everything a kernel calls with a `Simd` token must be `#[inline(always)]`, or it
//! is compiled for the baseline and every operation becomes a call.
#![allow(unsafe_code)] // Intrinsics and raw loads; a token exists only where its instruction set was detected.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod map;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod triples;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;

use device::Isa;

/// A token for one instruction set, and its vector operations on f32 lanes.
pub trait Simd: Copy + Send + Sync + 'static {
    /// The instruction set.
    const ISA: Isa;
    /// f32 lanes of a vector.
    const LANES: usize;
    /// Rows and columns of [`Simd::transpose`].
    const TRANSPOSE: usize;
    /// A vector.
    type V: Copy + Send + Sync;
    /// As many f64 lanes.
    type Wide: Copy + Send + Sync;

    /// All lanes the same.
    fn splat(self, x: f32) -> Self::V;
    /// `LANES` consecutive values.
    ///
    /// # Safety
    /// `from` must be readable for `LANES` values; no alignment is needed.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// The first `count` lanes from memory, the others zero.
    ///
    /// # Safety
    /// `from` must be readable for `count` values, `count <= LANES`.
    unsafe fn load_first(self, from: *const f32, count: usize) -> Self::V;
    /// Writes all lanes.
    ///
    /// # Safety
    /// `to` must be writable for `LANES` values; no alignment is needed.
    unsafe fn store(self, to: *mut f32, v: Self::V);
    /// Writes the first `count` lanes.
    ///
    /// # Safety
    /// `to` must be writable for `count` values, `count <= LANES`.
    unsafe fn store_first(self, to: *mut f32, v: Self::V, count: usize);
    /// Writes all lanes by a non-temporal store, for outputs much larger than the caches. [`device::Device::launch`]
    /// orders such writes before everything after the launch.
    ///
    /// # Safety
    /// As [`Simd::store`], and `to` must be aligned to the size of the vector.
    unsafe fn stream(self, to: *mut f32, v: Self::V);
    /// `LANES` bfloat16 values, widened.
    ///
    /// # Safety
    /// `from` must be readable for `LANES` values.
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V;
    /// `LANES` consecutive values, in float64.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load_wide(self, from: *const f32) -> Self::Wide;
    /// Transposes a `TRANSPOSE` x `TRANSPOSE` block; strides are in values.
    ///
    /// # Safety
    /// Every row of both blocks must be readable or writable for `TRANSPOSE` values.
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// `LANES` triples, in memory order in three vectors, as one vector of first, of second and of third members.
    fn split_triples(self, v: [Self::V; 3]) -> [Self::V; 3];
    /// The inverse of [`Simd::split_triples`].
    fn join_triples(self, v: [Self::V; 3]) -> [Self::V; 3];

    /// Lane-wise sum.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise difference.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise product.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise quotient.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// All float64 lanes the same.
    fn splat_wide(self, x: f64) -> Self::Wide;
    /// `a * b + c` in float64.
    fn fma_wide(self, a: Self::Wide, b: Self::Wide, c: Self::Wide) -> Self::Wide;
    /// Rounded to f32.
    fn narrow_wide(self, a: Self::Wide) -> Self::V;
    /// Lane-wise maximum; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lane-wise minimum; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `a > b ? yes : no` in each lane; `no` where either is NaN.
    fn select_gt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^n` for integers `-126 <= n <= 127`.
    fn exp2_whole(self, n: Self::V) -> Self::V;
    /// Exponent and mantissa of a positive normal number: `a = m * 2^e`, `1 <= m < 2`.
    fn split(self, a: Self::V) -> (Self::V, Self::V);
    /// Sum of all lanes, in an order fixed for the instruction set.
    fn reduce_add(self, a: Self::V) -> f32;
    /// Largest lane.
    fn reduce_max(self, a: Self::V) -> f32;
}

/// Work written once for every instruction set.
pub trait SimdKernel {
    /// Its result.
    type Output;
    /// Runs it; implement as `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`.
///
/// # Panics
/// When this processor does not have `isa`.
#[inline]
pub fn dispatch<K: SimdKernel>(isa: Isa, kernel: K) -> K::Output {
    // Feature detection is one cached load; it makes the unsafe calls below sound whatever the caller asked for.
    assert!(isa.is_here(), "instruction set {isa} was chosen but this processor does not have it");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected above.
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::enter(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected above.
        Isa::Avx2 => unsafe { avx2::enter(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: detected above.
        Isa::Neon => unsafe { neon::enter(kernel) },
        _ => kernel.run(Portable),
    }
}

#[cfg(test)]
mod tests;
