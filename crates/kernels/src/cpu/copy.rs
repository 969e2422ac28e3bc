//! Copying memory with all cores.
#![allow(unsafe_code)] // Each block copies its own share, past the caches.

use super::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa, SharedMut};

/// Copies `from` to `to`, one share a thread, with streaming stores: a plain store would first read the line it is
/// about to overwrite, a third of all traffic.
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

struct Copy<'a> {
    from: &'a [f32],
    to: &'a mut [f32],
}

impl SimdKernel for Copy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { from, to } = self;
        // Streaming stores want the alignment of a vector; what stands before it and after the last one is copied
        // plainly.
        let head = to.as_ptr().align_offset(S::LANES * size_of::<f32>()).min(to.len());
        let body = (to.len() - head) / S::LANES * S::LANES;
        to[..head].copy_from_slice(&from[..head]);
        for at in (head..head + body).step_by(S::LANES) {
            // SAFETY: `at + LANES` values lie in both slices, and `to` is aligned from `head` on.
            unsafe { simd.stream(to.as_mut_ptr().add(at), simd.load(from.as_ptr().add(at))) };
        }
        to[head + body..].copy_from_slice(&from[head + body..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_copied_at_any_offset() {
        let device = device::open(facts::BackendKind::Cpu).unwrap();
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
