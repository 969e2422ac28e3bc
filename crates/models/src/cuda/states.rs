//! Pools of recurrent states, one for each place of the engine.

use super::call::OpCall;
use super::pass::Pass;
use super::program::Program;
use super::tensor::{GpuTensor, device_error};
use super::weights::Weights;
use crate::ModelError;
use device::cuda::Stream;
use kernels::{DType, OpError};

/// States `[places, ..]` in float32, zero before a sequence's first token.
pub(super) struct States {
    pool: GpuTensor,
}

impl States {
    pub(super) fn new(
        weights: &Weights<'_>,
        places: usize,
        state: &[usize],
    ) -> Result<Self, ModelError> {
        Ok(Self { pool: weights.zeros(&[&[places], state].concat(), DType::F32)? })
    }

    /// Plans an op with recurrent states over `count` rows from `first` on of each state, counted in the state's first
    /// dimension: all of it, or the channels of a part.
    ///
    /// One token a sequence advances states where they lie. A kernel that cuts a sequence into segments may write the last
    /// state while the first is still to be read, so more tokens begin with a copy; new sequences begin with none.
    pub(super) fn plan(
        &self,
        call: OpCall,
        program: &mut Program<'_>,
        part: (usize, usize),
    ) -> Result<(), OpError> {
        let pass = program.pass;
        if pass.one_token {
            return self.advance(call, pass).plan(program);
        }
        let stream = program.stream;
        let mut shape = self.pool.shape.clone();
        (shape[0], shape[1]) = (pass.sequences, part.1);
        let call = if pass.fresh {
            call
        } else {
            let before = program.tensor(&shape, DType::F32)?;
            for (index, place) in pass.places.iter().enumerate() {
                copy(stream, &self.part(*place, part)?, &before.rows(index, 1)?)?;
            }
            call.input("initial_state", &before)
        };
        let call = pass.name_sequences(call);
        if let [place] = pass.places[..] {
            return call.output("final_state", &self.part(place, part)?).plan(program);
        }
        let after = program.tensor(&shape, DType::F32)?;
        call.output("final_state", &after).plan(program)?;
        for (index, place) in pass.places.iter().enumerate() {
            copy(stream, &after.rows(index, 1)?, &self.part(*place, part)?)?;
        }
        Ok(())
    }

    /// A call of one token a sequence over all of its state, where it lies.
    pub(super) fn advance(&self, call: OpCall, pass: &Pass) -> OpCall {
        let call = call.input("initial_state", &self.pool).output("final_state", &self.pool);
        pass.name_places(call)
    }

    /// `count` rows from `first` on of the state of a place.
    fn part(&self, place: usize, (first, count): (usize, usize)) -> Result<GpuTensor, OpError> {
        self.pool.rows(place, 1)?.shaped(&self.pool.shape[1..]).rows(first, count)
    }

    /// A zero state for one place.
    pub(super) fn reset(&self, stream: &Stream, place: usize) -> Result<(), OpError> {
        let state = self.pool.rows(place, 1)?;
        stream.fill32(&state.buffer, 0).map_err(device_error)
    }
}

/// Copies as many bytes as the second one has.
fn copy(stream: &Stream, from: &GpuTensor, to: &GpuTensor) -> Result<(), OpError> {
    stream.copy(&from.buffer, &to.buffer, to.bytes()).map_err(device_error)
}
