//! Copying memory, reading it and changing it in place, with all cores: the bandwidth limits of memory-bound kernels.
#![allow(unsafe_code)] // Each block copies its own share by non-temporal stores.

use super::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa, SharedMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Copies `from` to `to`, one share per thread, with non-temporal stores: a plain store would first read the line that it
/// overwrites, a third of all traffic.
///
/// # Panics
/// When the lengths differ.
pub fn copy_parallel(device: &Device, from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "lengths of a copy");
    let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
    let shares = device.capabilities().threads;
    let share = from.len().div_ceil(shares);
    let to = SharedMut::new(to);
    device.launch(
        "copy",
        shares,
        || (),
        |(), block| {
            let range = (block * share).min(from.len())..((block + 1) * share).min(from.len());
            // SAFETY: shares do not overlap.
            let to = unsafe { to.slice(range.clone()) };
            dispatch(isa, Copy { from: &from[range], to });
        },
    );
}

/// Returns the sum of all values, one share per thread, to measure read bandwidth.
pub fn read_parallel(device: &Device, from: &[f32]) -> f32 {
    let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
    let shares = device.capabilities().threads;
    let share = from.len().div_ceil(shares).max(1);
    let sums: Vec<AtomicU32> = (0..shares).map(|_| AtomicU32::new(0)).collect();
    device.launch(
        "read",
        shares,
        || (),
        |(), block| {
            let range = (block * share).min(from.len())..((block + 1) * share).min(from.len());
            let sum = dispatch(isa, StreamRead(&from[range]));
            sums[block].store(sum.to_bits(), Ordering::Relaxed);
        },
    );
    sums.iter().map(|sum| f32::from_bits(sum.load(Ordering::Relaxed))).sum()
}

/// Negates all values in place, one share per thread: each line is read and written back, as for a state update.
pub fn negate_parallel(device: &Device, values: &mut [f32]) {
    let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
    let shares = device.capabilities().threads;
    let (len, share) = (values.len(), values.len().div_ceil(shares));
    let values = SharedMut::new(values);
    device.launch(
        "negate",
        shares,
        || (),
        |(), block| {
            let range = (block * share).min(len)..((block + 1) * share).min(len);
            // SAFETY: shares do not overlap.
            dispatch(isa, Negate(unsafe { values.slice(range) }));
        },
    );
}

struct StreamRead<'a>(&'a [f32]);

impl SimdKernel for StreamRead<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        // Independent sums, enough to hide the latency of an addition.
        const SUMS: usize = 8;
        let step = SUMS * S::LANES;
        let body = self.0.len() / step * step;
        let mut sums = [simd.splat(0.0); SUMS];
        for at in (0..body).step_by(step) {
            for (nth, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the slice has at least `at + step` values.
                let values = unsafe { simd.load(self.0.as_ptr().add(at + nth * S::LANES)) };
                *sum = simd.add(*sum, values);
            }
        }
        let rest: f32 = self.0[body..].iter().sum();
        sums.into_iter().map(|sum| simd.reduce_add(sum)).sum::<f32>() + rest
    }
}

struct Negate<'a>(&'a mut [f32]);

impl SimdKernel for Negate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let body = self.0.len() / S::LANES * S::LANES;
        let (start, sign) = (self.0.as_mut_ptr(), simd.splat(-1.0));
        for at in (0..body).step_by(S::LANES) {
            // SAFETY: the slice has at least `at + LANES` values.
            unsafe { simd.store(start.add(at), simd.mul(simd.load(start.add(at)), sign)) };
        }
        self.0[body..].iter_mut().for_each(|value| *value = -*value);
    }
}

struct Copy<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
}

impl SimdKernel for Copy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { from, to } = self;
        // Streaming stores need vector alignment; the unaligned head and the tail are copied with plain stores.
        let head = to.as_ptr().align_offset(S::LANES * size_of::<f32>()).min(to.len());
        let body = (to.len() - head) / S::LANES * S::LANES;
        to[..head].copy_from_slice(&from[..head]);
        for at in (head..head + body).step_by(S::LANES) {
            // SAFETY: both slices have at least `at + LANES` values, and `to` is aligned from `head` on.
            unsafe { simd.stream(to.as_mut_ptr().add(at), simd.load(from.as_ptr().add(at))) };
        }
        to[head + body..].copy_from_slice(&from[head + body..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_read_and_negated_at_any_length() {
        let device = device::Device::processor();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = device.limited_to(isa).with_threads(3);
            for length in [0, 1, 2, 7, 31, 64, 500, 1000] {
                let mut values: Vec<f32> = (0..length).map(|i| i as f32).collect();
                let sum = (length * (length as i64 - 1).max(0) as usize / 2) as f32;
                assert_eq!(read_parallel(&device, &values), sum, "{isa} {length}");
                negate_parallel(&device, &mut values);
                assert!((0..length).all(|i| values[i] == -(i as f32)), "{isa} {length}");
            }
        }
    }

    #[test]
    fn every_element_is_copied_at_any_offset() {
        let device = device::Device::processor();
        let from: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = device.limited_to(isa).with_threads(3);
            for (start, length) in [(0, 0), (0, 1), (1, 999), (3, 64), (7, 500), (5, 31)] {
                let mut to = vec![f32::NAN; 1000];
                copy_parallel(
                    &device,
                    &from[start..start + length],
                    &mut to[start..start + length],
                );
                assert_eq!(to[start..start + length], from[start..start + length], "{isa}");
                assert!(
                    to[..start].iter().chain(&to[start + length..]).all(|x| x.is_nan()),
                    "{isa}"
                );
            }
        }
    }
}
