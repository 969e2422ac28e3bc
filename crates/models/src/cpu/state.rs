//! Pools of recurrent states, one slot for each place of the engine.

use super::step::take;
use device::HostBuffer;
use kernels::{OpError, Tensor, TensorMap};

/// The states of an op in one layer, and what it gave.
pub(super) struct Recurrence {
    /// The states of all places `[places, ..]` in float32: zero before a sequence's first token.
    pub(super) pool: Tensor,
    /// What the last step gave, whose memory the next one writes.
    outputs: TensorMap,
}

impl Recurrence {
    /// A state of this shape for each place.
    pub(super) fn new(places: usize, state: &[usize]) -> Self {
        let shape = [&[places], state].concat();
        let zeros = Tensor::new(&shape, vec![0f32; shape.iter().product()]);
        Self { pool: zeros, outputs: TensorMap::new() }
    }

    /// Runs an op over the pool, advances the states and gives `o`.
    pub(super) fn advance(
        &mut self,
        run: impl FnOnce(&Tensor, &mut TensorMap) -> Result<(), OpError>,
    ) -> Result<HostBuffer<f32>, OpError> {
        run(&self.pool, &mut self.outputs)?;
        // Two pools alternate: the one that was read is written by the next step.
        if let Some(written) = self.outputs.get_mut("final_state") {
            std::mem::swap(&mut self.pool, written);
        }
        Ok(take(&mut self.outputs, "o"))
    }

    /// The state of one place for another one too.
    pub(super) fn fork(&mut self, from: usize, to: usize) {
        let width: usize = self.pool.shape()[1..].iter().product();
        if let Some(values) = self.pool.view_mut::<f32>() {
            values.copy_within(from * width..(from + 1) * width, to * width);
        }
    }

    /// A zero state for one place.
    pub(super) fn reset(&mut self, place: usize) {
        let width: usize = self.pool.shape()[1..].iter().product();
        if let Some(values) = self.pool.view_mut::<f32>() {
            values[place * width..(place + 1) * width].fill(0.0);
        }
    }
}
