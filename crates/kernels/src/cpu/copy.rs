//! Copying memory with all cores.
#![allow(unsafe_code)] // Each block copies its own share.

use device::{Device, SharedMut};

/// Copies `from` to `to`, one share a thread.
///
/// # Panics
/// When the lengths differ.
pub fn copy_parallel(device: &Device, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "lengths of a copy");
    let shares = device.capabilities().threads;
    let share = from.len().div_ceil(shares);
    let to = SharedMut::new(to);
    device.launch("copy", shares, || (), |(), block| {
        let range = (block * share).min(from.len())..((block + 1) * share).min(from.len());
        // SAFETY: shares do not overlap.
        unsafe { to.slice(range.clone()) }.copy_from_slice(&from[range]);
    });
}
