//! Pools of recurrent states, one slot for each place of the engine.

use super::step::{Step, take};
use device::HostBuffer;
use kernels::{Op, OpError, Settings, Tensor, TensorMap};

const INITIAL: &str = "initial_state";

/// An op with recurrent states in one layer.
pub(super) struct Recurrence {
    /// The tensors that are the same in every step, beside which each step lays its own, and the states of all places
    /// `[places, ..]` in float32: zero before a sequence's first token.
    inputs: TensorMap,
    settings: Settings,
    /// What the last step gave, whose memory the next one writes.
    outputs: TensorMap,
}

impl Recurrence {
    /// An op over these weights, with a state of this shape for each place.
    pub(super) fn new(
        weights: impl IntoIterator<Item = (&'static str, Tensor)>,
        settings: Settings,
        places: usize,
        state: &[usize],
    ) -> Self {
        let shape = [&[places], state].concat();
        let zeros = Tensor::new(&shape, vec![0f32; shape.iter().product()]);
        let weights = weights.into_iter().chain([(INITIAL, zeros)]);
        let inputs = weights.map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        Self { inputs, settings, outputs: TensorMap::new() }
    }

    /// Runs the op over the step's tokens, advances the states and gives `o`.
    pub(super) fn run<'t>(
        &mut self,
        op: &dyn Op,
        step: &Step<'_>,
        tensors: impl IntoIterator<Item = (&'t str, Tensor)>,
    ) -> Result<HostBuffer<f32>, OpError> {
        let mut names = Vec::new();
        for (name, tensor) in tensors {
            names.push(name);
            self.inputs.insert(name.to_owned(), tensor);
        }
        step.name_states(&mut self.inputs);
        let inputs = (&self.inputs, &[INITIAL][..]);
        step.run(op, inputs, &self.settings, &mut self.outputs)?;
        // Two pools in turn: the one that was read is written by the next step.
        let written = self.outputs.get_mut("final_state");
        if let (Some(states), Some(written)) = (self.inputs.get_mut(INITIAL), written) {
            std::mem::swap(states, written);
        }
        // Kept until the next step, these would take memory in every layer.
        names.into_iter().for_each(|name| drop(self.inputs.remove(name)));
        Ok(take(&mut self.outputs, "o"))
    }

    /// A zero state for one place.
    pub(super) fn reset(&mut self, place: usize) {
        let Some(states) = self.inputs.get_mut(INITIAL) else { return };
        let width: usize = states.shape()[1..].iter().product();
        if let Some(values) = states.view_mut::<f32>() {
            values[place * width..(place + 1) * width].fill(0.0);
        }
    }
}
