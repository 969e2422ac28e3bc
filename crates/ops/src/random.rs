//! Random numbers that are the same on every machine.

use crate::{Element, Tensor};

/// SplitMix64 (Steele, Lea and Flood, 2014): the same seed gives the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x5851_f42d_4c95_7f2d }
    }

    /// A generator whose seed is the FNV-1a hash of a name.
    pub fn named(name: &str) -> Self {
        Self::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Values drawn from one generator; runs are drawn in parallel, so values do not depend on the number of cores.
const RUN: usize = 1 << 16;

impl Tensor {
    /// A tensor of values uniform in [low, high), seeded by its name.
    pub fn uniform<E: Element>(name: &str, shape: &[usize], [low, high]: [f32; 2]) -> Self {
        Self::from_runs::<E>(shape, RUN, |run, stored| {
            let mut random = SplitMix64::named(&format!("{name}/{run}"));
            // Each 64-bit number gives two values of 24 bits.
            let mut values = vec![0.0; stored.len().next_multiple_of(2)];
            for pair in values.as_chunks_mut().0 {
                let bits = random.bits();
                *pair = [bits as u32, (bits >> 32) as u32]
                    .map(|half| low + (high - low) * (half >> 8) as f32 / (1 << 24) as f32);
            }
            E::narrow(&values[..stored.len()], stored);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_values_fill_their_range_and_depend_on_the_name() {
        for count in [0, 1, 7, RUN, 3 * RUN + 1] {
            let tensor = Tensor::uniform::<f32>("x", &[count], [-1.0, 3.0]);
            let values = tensor.view::<f32>().unwrap();
            assert!(values.iter().all(|value| (-1.0..3.0).contains(value)));
            if count > 1000 {
                let mean = values.iter().sum::<f32>() / count as f32;
                assert!((mean - 1.0).abs() < 0.02, "{mean}");
                assert!(values[..count / 2] != values[count - count / 2..]);
            }
            // A shorter tensor of the name begins with the same values.
            let shorter = Tensor::uniform::<f32>("x", &[count / 2], [-1.0, 3.0]);
            assert_eq!(shorter.view::<f32>().unwrap(), &values[..count / 2]);
        }
        let of = |name| Tensor::uniform::<f32>(name, &[64], [0.0, 1.0]);
        assert_ne!(of("x"), of("y"));
    }
}
