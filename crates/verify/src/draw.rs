//! Test inputs from a seed, the same on every machine.

use kernels::{DType, Tensor};

/// A small random generator (SplitMix64): the same seed gives the same inputs everywhere.
#[derive(Debug, Clone)]
pub struct Draw {
    state: u64,
}

impl Draw {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x5851_f42d_4c95_7f2d }
    }

    /// A generator whose seed is a name, so that adding a case changes no other case's inputs.
    pub fn named(name: &str) -> Self {
        // FNV-1a.
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

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number in 0..below.
    pub fn below(&mut self, below: usize) -> usize {
        (self.uniform(0.0, below as f64) as usize).min(below.saturating_sub(1))
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        // Box and Muller; 1 - u keeps the logarithm finite.
        let radius = (-2.0 * (1.0 - self.uniform(0.0, 1.0)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(0.0, 1.0)).cos()
    }

    /// A tensor of values from `value`, rounded to `dtype`.
    pub fn tensor(
        &mut self,
        shape: &[usize],
        dtype: DType,
        mut value: impl FnMut(&mut Self) -> f64,
    ) -> Tensor {
        let count = shape.iter().product();
        Tensor::new(shape, (0..count).map(|_| value(self)).collect::<Vec<f64>>()).cast(dtype)
    }

    /// A tensor of standard normal values times `scale`.
    pub fn normals(&mut self, shape: &[usize], dtype: DType, scale: f64) -> Tensor {
        self.tensor(shape, dtype, |draw| draw.normal() * scale)
    }

    /// A tensor of values uniform in [low, high).
    pub fn uniforms(&mut self, shape: &[usize], dtype: DType, low: f64, high: f64) -> Tensor {
        self.tensor(shape, dtype, |draw| draw.uniform(low, high))
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn draws_are_fixed_by_the_seed_and_normals_look_normal() {
        assert_eq!(Draw::new(7).bits(), Draw::new(7).bits());
        assert_ne!(Draw::named("a").bits(), Draw::named("b").bits());
        let mut draw = Draw::new(1);
        let values: Vec<f64> = (0..100_000).map(|_| draw.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
