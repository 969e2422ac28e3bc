//! Reading memory with all cores: the limit of a kernel that looks at much memory once.
#![allow(unsafe_code)] // Vectors loaded through raw pointers; the bounds are checked first.

use super::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa};
use std::sync::atomic::{AtomicU64, Ordering};

/// Values of one block: long enough that handing it out costs nothing, short enough that threads end together.
const BLOCK: usize = 1 << 16;

/// The sum of all values, each read once; threads walk ranges of their own, as those of a projection do. The launch is
/// counted as `read`.
pub fn sum_parallel(device: &Device, values: &[f32]) -> f64 {
    let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
    let total = AtomicU64::new(0f64.to_bits());
    device.launch_streaming(
        "read",
        values.len().div_ceil(BLOCK),
        || (),
        |(), block| {
            let part = &values[block * BLOCK..values.len().min((block + 1) * BLOCK)];
            let sum = f64::from(dispatch(isa, Sum(part)));
            // Adding is rare; only the total of all threads is shared.
            let add = |bits| Some((f64::from_bits(bits) + sum).to_bits());
            let _ = total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        },
    );
    f64::from_bits(total.into_inner())
}

struct Sum<'a>(&'a [f32]);

impl SimdKernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        // Independent sums, as many as hide the latency of an addition.
        const SUMS: usize = 8;
        let mut sums = [simd.splat(0.0); SUMS];
        let wide = S::LANES * SUMS;
        let whole = self.0.len() / wide * wide;
        for at in (0..whole).step_by(wide) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `wide` values from `at` on lie in the slice.
                *sum =
                    simd.add(*sum, unsafe { simd.load(self.0.as_ptr().add(at + lane * S::LANES)) });
            }
        }
        let all = sums.into_iter().reduce(|a, b| simd.add(a, b));
        all.map_or(0.0, |all| simd.reduce_add(all)) + self.0[whole..].iter().sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_once() {
        let device = device::Device::processor();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = device.limited_to(isa).with_threads(3);
            for len in [0, 1, 100, BLOCK, 3 * BLOCK + 77] {
                let values: Vec<f32> = (0..len).map(|i| (i % 3) as f32).collect();
                let want: f64 = values.iter().map(|x| f64::from(*x)).sum();
                assert_eq!(sum_parallel(&device, &values), want, "{isa} {len}");
            }
        }
    }
}
