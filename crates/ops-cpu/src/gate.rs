//! Gates of feed-forward parts and mixers, vectors at a time.
#![allow(unsafe_code)] // Vectors loaded and stored through raw pointers; the lengths are checked first.

use super::simd::{Simd, SimdKernel, dispatch, math};
use device::{Device, Isa};

/// Activation of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateActivation {
    /// `g / (1 + e^-g)`.
    Silu,
    /// `1 / (1 + e^-g)`.
    Sigmoid,
}

/// `x *= act(gate)`, by the device's best vectors, on the calling thread.
///
/// # Panics
/// When the lengths differ.
pub fn gate(device: &Device, act: GateActivation, x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "values and their gates");
    let isa = device.capabilities().isas.first().copied().unwrap_or(Isa::Portable);
    dispatch(isa, Gated { act, x, gate });
}

struct Gated<'a> {
    act: GateActivation,
    x: &'a mut [f32],
    gate: &'a [f32],
}

impl SimdKernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, gate) in self.x.chunks_mut(S::LANES).zip(self.gate.chunks(S::LANES)) {
            // SAFETY: both read and write only the values there are, as many in both.
            unsafe {
                let logit = simd.load_first(gate.as_ptr(), gate.len());
                let factor = match self.act {
                    GateActivation::Silu => math::silu(simd, logit),
                    GateActivation::Sigmoid => math::sigmoid(simd, logit),
                };
                let y = simd.mul(simd.load_first(x.as_ptr(), x.len()), factor);
                simd.store_first(x.as_mut_ptr(), y, x.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_gated_on_every_instruction_set() {
        let device = device::Device::processor();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let device = device.limited_to(isa);
            for len in [0, 1, 16, 61] {
                let logits: Vec<f32> = (0..len).map(|i| (i as f32 - 30.0) * 0.7).collect();
                for act in [GateActivation::Silu, GateActivation::Sigmoid] {
                    let mut x: Vec<f32> = (0..len).map(|i| i as f32 * 0.25 - 3.0).collect();
                    let want: Vec<f64> = x
                        .iter()
                        .zip(&logits)
                        .map(|(x, g)| {
                            let (x, g) = (f64::from(*x), f64::from(*g));
                            let sigmoid = 1.0 / (1.0 + (-g).exp());
                            x * if act == GateActivation::Silu { g * sigmoid } else { sigmoid }
                        })
                        .collect();
                    gate(&device, act, &mut x, &logits);
                    for (got, want) in x.iter().zip(want) {
                        let off = (f64::from(*got) - want).abs();
                        assert!(off <= 1e-6 * want.abs() + 1e-9, "{isa} {act:?}: {got} {want}");
                    }
                }
            }
        }
    }
}
