//! Reading memory with all cores: the bandwidth limit of a kernel that reads its operands once.
#![allow(unsafe_code)] // Vectors loaded through raw pointers; the bounds are checked first.

use super::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa};
use std::sync::atomic::{AtomicU64, Ordering};

/// Values of one block: large enough to make scheduling cheap, small enough that threads finish together.
const BLOCK: usize = 1 << 16;

/// Returns the sum of all values. Each value is read once, and each thread reads consecutive blocks, as in a projection.
/// The launch is counted as `read`.
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
                // SAFETY: the slice has at least `at + wide` values.
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
