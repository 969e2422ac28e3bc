//! What a step keeps to be recorded. While one sequence decodes, calls in a row that can be phases of one kernel whose blocks stay become
//! one launch of it.

use super::run::Piece;
use device::Device;
use device::cuda::{CudaError, Stream};
use kernels::cuda::Planned;
use kernels::persistent::{self, Phase};
use kernels::{OpError, Typed};

/// Phases that a launch of their own is worth: fewer are launched as usual.
const FEWEST: usize = 3;

/// The pieces of a step, in order.
#[derive(Default)]
pub(super) struct Kept {
    pieces: Vec<Piece>,
    /// Whether calls are gathered at all.
    gathers: bool,
    /// Calls that are still gathered, as phases and as they are planned otherwise.
    ///
    /// Both hold the tensors that they are over, so none of their memory is given to another tensor of the step meanwhile. Phases see
    /// what those ahead of them wrote as launches do, so their order is all that matters.
    phases: Vec<Phase>,
    usual: Vec<Planned>,
}

impl Kept {
    /// None yet; of steps of one sequence calls are gathered.
    pub(super) fn new(gathers: bool) -> Self {
        Self { gathers, ..Self::default() }
    }

    /// Keeps a call, planned as usual.
    pub(super) fn call<C: Typed>(
        &mut self,
        call: &C,
        planned: Planned,
        (device, stream): (&Device, &Stream),
    ) -> Result<(), OpError> {
        let phase = match self.gathers {
            true => persistent::phase(call, device)?.ok(),
            false => None,
        };
        let Some(phase) = phase else {
            return self.push(Piece::Alone(planned), (device, stream));
        };
        if !phase.goes_with(&self.phases) {
            self.close((device, stream))?;
        }
        self.phases.push(phase);
        self.usual.push(planned);
        Ok(())
    }

    /// Keeps another piece.
    pub(super) fn push(&mut self, piece: Piece, on: (&Device, &Stream)) -> Result<(), OpError> {
        self.close(on)?;
        self.pieces.push(piece);
        Ok(())
    }

    /// Makes what was gathered a piece, or pieces.
    fn close(&mut self, (device, stream): (&Device, &Stream)) -> Result<(), OpError> {
        let (phases, usual) = (std::mem::take(&mut self.phases), std::mem::take(&mut self.usual));
        let chain = match phases.len() {
            0..FEWEST => None,
            _ => chain(device, stream, &phases)?,
        };
        let pieces = chain.map_or(usual, |chain| vec![chain]);
        self.pieces.extend(pieces.into_iter().map(Piece::Alone));
        Ok(())
    }

    /// How many pieces there are so far.
    pub(super) fn count(&mut self, on: (&Device, &Stream)) -> Result<usize, OpError> {
        self.close(on)?;
        Ok(self.pieces.len())
    }

    /// All of them.
    pub(super) fn into_pieces(mut self, on: (&Device, &Stream)) -> Result<Vec<Piece>, OpError> {
        self.close(on)?;
        Ok(self.pieces)
    }
}

/// Phases as one piece; none where their kernel is not built in and nothing is there to compile it: the calls are launched as usual then, whose
/// kernels may be.
fn chain(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Option<Planned>, OpError> {
    match persistent::chain(device, stream, phases) {
        Err(OpError::Cuda { error: CudaError::NoCompiler { .. }, .. }) => Ok(None),
        chain => chain.map(Some),
    }
}

#[cfg(test)]
mod tests;
