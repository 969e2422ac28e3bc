//! SplitMix64, the random generator of weights and tokens.

/// Increment of the state.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output for a state; every bit of the state affects every bit of it.
pub(crate) fn mix(state: u64) -> u64 {
    let x = state.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_match_splitmix64() {
        // The first outputs of the published generator for the seed 1234567.
        let first = [0u64, 1, 2].map(|i| mix(1_234_567u64.wrapping_add(i.wrapping_mul(STEP))));
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
