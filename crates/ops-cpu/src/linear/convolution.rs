//! The step of a depthwise causal convolution over columns of the product.
#![allow(unsafe_code)] // Blocks write states of disjoint columns.

use device::SharedMut;
use ops::linear::Convolution;
use ops::{Inputs, TensorMap, elements, elements_mut, floats};

/// The step over float32 columns that a block has just finished.
pub(super) struct Step<'a> {
    of: &'a Convolution,
    /// `[C, W]`.
    weight: Vec<f32>,
    /// `[C]`.
    bias: Option<Vec<f32>>,
    /// `[slots, C, W - 1]`; initially the state before the step.
    state: SharedMut<'a, f32>,
}

impl<'a> Step<'a> {
    /// `outputs` holds the final state, and nothing else that this keeps.
    pub(super) fn new(of: &'a Convolution, inputs: Inputs<'_>, outputs: &'a mut TensorMap) -> Self {
        let state = elements_mut::<f32>(outputs.get_mut("final_state"));
        state.copy_from_slice(elements(inputs.tensor("initial_state")));
        Self {
            of,
            weight: floats(inputs.tensor("conv_weight")).into_owned(),
            bias: inputs.get("conv_bias").map(|bias| floats(bias).into_owned()),
            state: SharedMut::new(state),
        }
    }

    /// Convolves those of a row's columns `first ..` that are channels; one block alone may have these columns.
    pub(super) fn apply(&self, token: usize, first: usize, values: &mut [f32]) {
        let Convolution { first: start, channels, width, silu, .. } = *self.of;
        let here = first.max(start)..(first + values.len()).min(start + channels);
        for column in here {
            let (value, channel) = (&mut values[column - first], column - start);
            let Some(slot) = self.of.slots.of(token) else {
                *value = 0.0;
                continue;
            };
            let at = (slot * channels + channel) * (width - 1);
            // SAFETY: a slot is one token's, and a column one block's.
            let past = unsafe { self.state.slice(at..at + width - 1) };
            let taps = &self.weight[channel * width..][..width];
            let new = std::mem::replace(value, self.bias.as_ref().map_or(0.0, |b| b[channel]));
            *value += taps.iter().zip(past.iter().chain([&new])).map(|(w, x)| w * x).sum::<f32>();
            if silu {
                *value /= 1.0 + (-*value).exp();
            }
            past.rotate_left(1);
            past[width - 2] = new;
        }
    }
}
