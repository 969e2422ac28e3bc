//! Copies with non-temporal stores.
#![allow(unsafe_code)] // Aligned vector stores through raw pointers; the bounds are checked first.

use crate::simd::Simd;
use ops::StateSlots;

/// Outputs of at least this many bytes are written by non-temporal stores. They would be evicted before anything reads
/// them, and a plain store first reads the line that it overwrites, a third more traffic. About two thirds of the 32 MiB
/// L3 that a core complex of current server processors shares.
pub(crate) const STREAM_BYTES: usize = 20 << 20;

/// [`STREAM_BYTES`] for pooled states. A pool has one layer's states, and the weights of all other layers are read before
/// its next step.
const POOL_BYTES: usize = 1 << 20;

/// Whether states are written by non-temporal stores.
pub(crate) fn past_caches(states: &[f32], slots: &StateSlots) -> bool {
    size_of_val(states) >= if slots.is_pool() { POOL_BYTES } else { STREAM_BYTES }
}

/// Prefetches a slice into L2. For rows with a stride too large for the hardware prefetcher.
#[inline(always)]
pub(crate) fn prefetch<E>(values: &[E]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(64 / size_of::<E>()) {
        // SAFETY: a prefetch has no effect but on caches; SSE is part of the architecture.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(
                line.as_ptr().cast(),
            );
        }
    }
    // Other architectures have no stable intrinsic for it.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Copies a slice with non-temporal stores; elements before the first and after the last whole aligned vector are written
/// by plain stores.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub(crate) fn stream_copy<S: Simd, E: Copy>(simd: S, from: &[E], to: &mut [E]) {
    assert_eq!(from.len(), to.len(), "lengths of a copy");
    let bytes = S::LANES * size_of::<f32>();
    let per_vector = bytes / size_of::<E>();
    let head = to.as_ptr().align_offset(bytes).min(to.len());
    let vectors = (to.len() - head) / per_vector;
    let tail = head + vectors * per_vector;
    to[..head].copy_from_slice(&from[..head]);
    for vector in 0..vectors {
        let at = head + vector * per_vector;
        // SAFETY: a whole vector from `at` on is before `tail` in both slices, and `to` is aligned there. Vectors are
        // only moved, so it does not matter that they may not hold f32 values.
        unsafe {
            simd.stream(to.as_mut_ptr().add(at).cast(), simd.load(from.as_ptr().add(at).cast()));
        }
    }
    to[tail..].copy_from_slice(&from[tail..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{SimdKernel, dispatch};
    use device::Isa;
    use half::bf16;

    struct Copies<E>(Vec<E>, usize, usize);

    impl<E: Copy + Default + PartialEq + std::fmt::Debug> SimdKernel for Copies<E> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Copies(from, skip, len) = self;
            let mut to = vec![E::default(); from.len()];
            stream_copy(simd, &from[skip..skip + len], &mut to[skip..skip + len]);
            assert_eq!(to[skip..skip + len], from[skip..skip + len]);
            assert!(to[skip + len..].iter().chain(&to[..skip]).all(|x| *x == E::default()));
        }
    }

    #[test]
    fn every_offset_and_length_is_copied_and_nothing_else() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            for skip in 0..40 {
                for len in [0, 1, 2, 15, 16, 31, 33, 64, 200] {
                    let words: Vec<f32> = (1..=300).map(|x| x as f32).collect();
                    let halves = words.iter().map(|x| bf16::from_f32(*x)).collect();
                    dispatch(isa, Copies(words, skip, len));
                    dispatch(isa, Copies::<bf16>(halves, skip, len));
                }
            }
        }
    }
}
