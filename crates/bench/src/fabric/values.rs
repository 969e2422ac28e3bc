//! What is sent, and with it what has to arrive.

use rayon::prelude::*;

/// Values repeat after so many: a prime, so that what lies a power of two away differs.
const PERIOD: usize = 4093;
/// The same of [`small`].
const SMALL_PERIOD: usize = 31;
/// Words that one thread takes at once.
const SHARE: usize = 1 << 14;

/// A word of a copy: all of its bits change from place to place and from GPU to GPU, and none is a NaN that nothing was written over.
pub(super) fn word(of: u32, at: usize) -> u32 {
    let mixed = (at as u32 ^ of.wrapping_mul(0x0100_0193)).wrapping_mul(0x9e37_79b1);
    (mixed ^ (mixed >> 15)) & 0x7f7f_ffff
}

/// What a rank gives: small integers, whose sums float32 holds exactly, in whatever order.
pub(super) fn value(rank: usize, at: usize) -> f32 {
    ((at % PERIOD + 1) * (rank + 1)) as f32
}

/// What all ranks' values add up to.
pub(super) fn sum(ranks: usize, at: usize) -> f32 {
    ((at % PERIOD + 1) * ranks * (ranks + 1) / 2) as f32
}

/// What a rank adds where a thousand sums pile up: small enough that those are exact too.
pub(super) fn small(rank: usize, at: usize) -> f32 {
    ((at % SMALL_PERIOD + 1) * (rank + 1)) as f32
}

/// What so many sums of what all ranks add come to.
pub(super) fn piled(times: usize, ranks: usize, at: usize) -> f32 {
    ((at % SMALL_PERIOD + 1) * times * ranks * (ranks + 1) / 2) as f32
}

/// Writes a word to each place.
pub(super) fn fill(bytes: &mut [u8], word: impl Fn(usize) -> u32 + Sync) {
    bytes.par_chunks_mut(4 * SHARE).enumerate().for_each(|(share, bytes)| {
        for (at, to) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = word(share * SHARE + at).to_ne_bytes();
        }
    });
}

/// How many words differ from those that are wanted.
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
    fn what_is_wrong_or_was_not_written_is_counted() {
        let mut bytes = vec![0xff; 8 * SHARE + 12];
        let words = (bytes.len() / 4) as u64;
        assert_eq!(wrong(&bytes, |at| word(1, at)), words);
        fill(&mut bytes, |at| word(1, at));
        assert_eq!(wrong(&bytes, |at| word(1, at)), 0);
        bytes[4 * SHARE] ^= 1;
        *bytes.last_mut().unwrap() = 0xff;
        assert_eq!(wrong(&bytes, |at| word(1, at)), 2);
        // Another GPU's words are others, and so are a neighbour's.
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
        assert_eq!(added, f64::from(piled(1200, 8, 30)));
        assert!(added < f64::from(1 << 24));
        assert!((0..100_000).all(|at| !f32::from_bits(word(7, at)).is_nan()));
        // A part that came from the wrong place, a power of two away, shows.
        assert!((2..26).all(|power| value(1, 5) != value(1, 5 + (1 << power))));
    }
}
