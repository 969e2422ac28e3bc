//! Transferred values, and the expected results.

use rayon::prelude::*;

/// Period of the values: a prime, so that values at a distance of a power of two differ.
const PERIOD: usize = 4093;
/// Period of [`small`].
const SMALL_PERIOD: usize = 31;
/// Words per thread and iteration.
const SHARE: usize = 1 << 14;

/// A word of a copy: all of its bits vary with index and GPU, and none is the NaN of an unwritten word.
pub(super) fn word(of: u32, at: usize) -> u32 {
    let mixed = (at as u32 ^ of.wrapping_mul(0x0100_0193)).wrapping_mul(0x9e37_79b1);
    (mixed ^ (mixed >> 15)) & 0x7f7f_ffff
}

/// A rank's value: small integers, whose sums are exact in float32 in any order.
pub(super) fn value(rank: usize, at: usize) -> f32 {
    ((at % PERIOD + 1) * (rank + 1)) as f32
}

/// The sum of all ranks' values.
pub(super) fn sum(ranks: usize, at: usize) -> f32 {
    ((at % PERIOD + 1) * ranks * (ranks + 1) / 2) as f32
}

/// A rank's contribution when a thousand sums accumulate: small enough that those are exact too.
pub(super) fn small(rank: usize, at: usize) -> f32 {
    ((at % SMALL_PERIOD + 1) * (rank + 1)) as f32
}

/// The result of accumulating `times` sums over all ranks.
pub(super) fn accumulated(times: usize, ranks: usize, at: usize) -> f32 {
    ((at % SMALL_PERIOD + 1) * times * ranks * (ranks + 1) / 2) as f32
}

/// Writes a word to each index.
pub(super) fn fill(bytes: &mut [u8], word: impl Fn(usize) -> u32 + Sync) {
    bytes.par_chunks_mut(4 * SHARE).enumerate().for_each(|(share, bytes)| {
        for (at, to) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = word(share * SHARE + at).to_ne_bytes();
        }
    });
}

/// Number of words that differ from the expected ones.
pub(super) fn wrong(bytes: &[u8], wanted: impl Fn(usize) -> u32 + Sync) -> u64 {
    let of_share = |(share, bytes): (usize, &[u8])| {
        let words = bytes.as_chunks::<4>().0.iter().enumerate();
        let differs =
            |(at, word): &(usize, &[u8; 4])| **word != wanted(share * SHARE + at).to_ne_bytes();
        words.filter(differs).count() as u64
    };
    bytes.par_chunks(4 * SHARE).enumerate().map(of_share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrong_and_unwritten_words() {
        let mut bytes = vec![0xff; 8 * SHARE + 12];
        let words = (bytes.len() / 4) as u64;
        assert_eq!(wrong(&bytes, |at| word(1, at)), words);
        fill(&mut bytes, |at| word(1, at));
        assert_eq!(wrong(&bytes, |at| word(1, at)), 0);
        bytes[4 * SHARE] ^= 1;
        *bytes.last_mut().unwrap() = 0xff;
        assert_eq!(wrong(&bytes, |at| word(1, at)), 2);
        // Another GPU's words differ, and so do neighboring ones.
        assert!(wrong(&bytes, |at| word(2, at)) > words - 10);
        assert!(wrong(&bytes, |at| word(1, at + 1)) > words - 10);
    }

    #[test]
    fn sums_are_exact_and_nothing_is_nan() {
        for ranks in [2, 3, 8, 64] {
            for at in [0, 1, PERIOD - 1, PERIOD, 1 << 26] {
                let added: f64 = (0..ranks).map(|rank| f64::from(value(rank, at))).sum();
                assert_eq!(added, f64::from(sum(ranks, at)), "{ranks} {at}");
                assert!(added < f64::from(1 << 24), "{ranks} {at}");
            }
        }
        let added: f64 = (0..8).map(|rank| 1200.0 * f64::from(small(rank, 30))).sum();
        assert_eq!(added, f64::from(accumulated(1200, 8, 30)));
        assert!(added < f64::from(1 << 24));
        assert!((0..100_000).all(|at| !f32::from_bits(word(7, at)).is_nan()));
        // Data from a wrong offset, by a power of two, is detected.
        assert!((2..26).all(|power| value(1, 5) != value(1, 5 + (1 << power))));
    }
}
