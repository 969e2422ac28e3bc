//! Test inputs from a seed, the same on every machine.

use ops::{DType, SplitMix64, Tensor};

/// Inputs of a seed.
#[derive(Debug, Clone)]
pub struct TensorRng {
    random: SplitMix64,
}

impl TensorRng {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed) }
    }

    /// A generator seeded by a name, so that adding a case changes no other case's inputs.
    pub fn named(name: &str) -> Self {
        Self { random: SplitMix64::named(name) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.random.bits()
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
        // Box-Muller; 1 - u keeps the logarithm finite.
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
    use super::TensorRng;

    #[test]
    fn random_tensors_depend_on_the_seed_and_normals_are_normal() {
        assert_eq!(TensorRng::new(7).bits(), TensorRng::new(7).bits());
        assert_ne!(TensorRng::named("a").bits(), TensorRng::named("b").bits());
        let mut draw = TensorRng::new(1);
        let values: Vec<f64> = (0..100_000).map(|_| draw.normal()).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
