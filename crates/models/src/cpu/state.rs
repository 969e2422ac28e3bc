//! Pools of recurrent states, one row per slot of the engine.

use super::step::{Step, in_f32};
use ops::{OpError, RecurrentCall, States, Tensor, TensorMap, Typed};

/// The states of an op in one layer.
pub(super) struct StatePool {
    /// States of all slots `[slots, ..]` in float32; zero before a sequence's first token.
    pub(super) pool: Tensor,
    /// Output tensors of the last step, reused by the next one.
    outputs: TensorMap,
}

impl StatePool {
    /// A state of this shape for each slot.
    pub(super) fn new(slots: usize, state: &[usize]) -> Self {
        let shape = [&[slots], state].concat();
        let zeros = Tensor::new(&shape, vec![0f32; shape.iter().product()]);
        Self { pool: zeros, outputs: TensorMap::new() }
    }

    /// Runs an op over the pool, advances the states and returns `o` in float32.
    pub(super) fn advance<C: Typed>(&mut self, step: &Step, call: &C) -> Result<Tensor, OpError> {
        let states = States { before: Some(&self.pool), slots: Some(&step.slots), after: None };
        let over = RecurrentCall { call, offsets: Some(&step.offsets), states, o: None };
        step.run(&over, &mut self.outputs)?;
        // Two pools alternate: the next step writes the one that this step read.
        if let Some(written) = self.outputs.get_mut("final_state") {
            std::mem::swap(&mut self.pool, written);
        }
        Ok(in_f32(&mut self.outputs, "o"))
    }

    /// Copies the state of one slot to another.
    pub(super) fn fork(&mut self, from: usize, to: usize) {
        let width: usize = self.pool.shape()[1..].iter().product();
        if let Some(values) = self.pool.view_mut::<f32>() {
            values.copy_within(from * width..(from + 1) * width, to * width);
        }
    }

    /// Zeroes the state of a slot.
    pub(super) fn reset(&mut self, slot: usize) {
        let width: usize = self.pool.shape()[1..].iter().product();
        if let Some(values) = self.pool.view_mut::<f32>() {
            values[slot * width..(slot + 1) * width].fill(0.0);
        }
    }
}
