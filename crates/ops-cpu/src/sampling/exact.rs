//! Arithmetic that is bit-identical on CPU and GPU, so that a seed gives the same tokens on both: only operations that IEEE 754
//! rounds exactly, in a fixed order, and never a fused multiply-add. `bisect.cu` has the same operations.

use std::f32::consts::{LN_2, LOG2_E};

/// Fixed-point value of a weight of 1: weights are integers, so their sum does not depend on its order.
pub(super) const UNIT: f32 = (1u32 << 30) as f32;

/// Adding and subtracting this rounds to an integer.
const ROUNDS: f32 = 12_582_912.0;
/// ln 2 in two parts, of which multiples of the first are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Maps a float to an integer of the same order, above 0 for all but NaN.
#[inline(always)]
pub(super) fn key(x: f32) -> u32 {
    // -0 is 0.
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The float of a key.
#[inline(always)]
pub(super) fn value(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// `e^z` in units, rounded; z is at most 0.
#[inline(always)]
pub(super) fn weight(z: f32) -> u32 {
    // Below this it rounds to 0.
    let z = z.max(-30.0);
    let n = (z * LOG2_E + ROUNDS) - ROUNDS;
    let r = (z - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let two_to_n = f32::from_bits(((n as i32 + 127) << 23).cast_unsigned());
    ((p * two_to_n).min(1.0) * UNIT + 0.5) as i32 as u32
}

/// The factor of logits: one over the temperature, and finite.
#[inline(always)]
pub(super) fn factor(temperature: f32) -> f32 {
    (1.0 / temperature).min(1e30)
}

/// Four random words of a counter: Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011).
#[inline(always)]
pub(super) fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(c[0]) * 0xd251_1f53;
        let b = u64::from(c[2]) * 0xcd9e_8d57;
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

/// Maps a random word to an exponential variate: `-ln(u)` with `u = (word | 1) / 2^32`.
#[inline(always)]
pub(super) fn exponential(word: u32) -> f32 {
    let word = word | 1;
    // u = f / 2^halvings with f in [0.5, 1); 1 - f is exact.
    let halvings = word.leading_zeros();
    let lacks = (word << halvings).wrapping_neg() as f32 * (1.0 / 4_294_967_296.0);
    // -ln f = 2 artanh((1 - f) / (1 + f))
    let s = lacks / (2.0 - lacks);
    let q = s * s;
    let mut p = 1.0 / 13.0;
    for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        p = p * q + c;
    }
    halvings as f32 * LN_2 + (s + s) * p
}

/// Inverse arrival time of a token. Arrival times are exponential variates divided by the weights; the token that arrives first is
/// sampled, with a probability proportional to its weight.
#[inline(always)]
pub(super) fn earliness(weight: u32, word: u32) -> f32 {
    weight as f32 / exponential(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_e_to_the_z() {
        assert_eq!(weight(0.0), 1 << 30);
        assert_eq!(weight(-0.0), 1 << 30);
        assert_eq!([weight(-30.0), weight(-1e30), weight(f32::NEG_INFINITY)], [0; 3]);
        for step in 1..60_000 {
            let z = -(step as f32) * 4e-4;
            let (got, want) = (f64::from(weight(z)), f64::from(z).exp() * f64::from(UNIT));
            assert!((got - want).abs() <= 0.51 + 3e-7 * want, "{z}: {got}, wanted {want}");
        }
    }

    #[test]
    fn keys_are_in_the_order_of_floats() {
        let floats =
            [f32::NEG_INFINITY, f32::MIN, -1.5, -1e-40, 0.0, 1e-40, 1.0, f32::MAX, f32::INFINITY];
        assert!(floats.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
        assert!(floats.iter().all(|x| key(*x) > 0 && value(key(*x)) == *x));
        assert_eq!(key(-0.0), key(0.0));
    }

    #[test]
    fn exponential_numbers_are_logarithms() {
        let words = (0..32).flat_map(|bit| [1u32 << bit, (1 << bit) + 77, !(1 << bit)]);
        for word in words.chain([0, u32::MAX, u32::MAX - 2]) {
            let want = -(f64::from(word | 1) / 4_294_967_296.0).ln();
            let got = f64::from(exponential(word));
            assert!((got / want - 1.0).abs() < 3e-7, "{word:#x}: {got}, wanted {want}");
        }
    }

    #[test]
    fn random_words_are_those_that_its_authors_published() {
        // The known answers of Random123.
        let all = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([all; 4], [all; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }
}
