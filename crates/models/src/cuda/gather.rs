//! Collects the launches of a step to capture. For a single decoding sequence, consecutive calls that can be stages of
//! a persistent kernel become one launch of it.

use super::run::Piece;
use device::Device;
use device::cuda::{DeviceError, Stream};
use ops::{OpError, Typed};
use ops_cuda::PlannedLaunches;
use ops_cuda::persistent::{self, PersistentStage};

/// Minimum stages of a persistent kernel; shorter runs are launched separately.
const FEWEST: usize = 3;

/// The launches of a step, in order.
#[derive(Default)]
pub(super) struct StepLaunches {
    pieces: Vec<Piece>,
    /// Whether calls are fused.
    gathers: bool,
    /// Calls that can still be fused, both as stages and as separate launches.
    ///
    /// Both hold the tensors that they use, so the step does not reuse that memory in the meantime. Stages see the
    /// writes of earlier stages just as launches do, so only their order matters.
    stages: Vec<PersistentStage>,
    usual: Vec<PlannedLaunches>,
}

impl StepLaunches {
    /// An empty list; calls are fused for steps of one sequence.
    pub(super) fn new(gathers: bool) -> Self {
        Self { gathers, ..Self::default() }
    }

    /// Adds a call, with its separate launch as fallback.
    pub(super) fn call<C: Typed>(
        &mut self,
        call: &C,
        planned: PlannedLaunches,
        (device, stream): (&Device, &Stream),
    ) -> Result<(), OpError> {
        let stage = match self.gathers {
            true => ops_cuda::plan_stage(call, device)?.ok(),
            false => None,
        };
        let Some(stage) = stage else {
            return self.push(Piece::Alone(planned), (device, stream));
        };
        if !stage.can_share_kernel(&self.stages) {
            self.close((device, stream))?;
        }
        self.stages.push(stage);
        self.usual.push(planned);
        Ok(())
    }

    /// Adds another piece of work.
    pub(super) fn push(&mut self, piece: Piece, on: (&Device, &Stream)) -> Result<(), OpError> {
        self.close(on)?;
        self.pieces.push(piece);
        Ok(())
    }

    /// Turns the pending calls into one or more pieces.
    fn close(&mut self, (device, stream): (&Device, &Stream)) -> Result<(), OpError> {
        let (stages, usual) = (std::mem::take(&mut self.stages), std::mem::take(&mut self.usual));
        let chain = match stages.len() {
            0..FEWEST => None,
            _ => chain(device, stream, &stages)?,
        };
        let pieces = chain.map_or(usual, |chain| vec![chain]);
        self.pieces.extend(pieces.into_iter().map(Piece::Alone));
        Ok(())
    }

    /// Number of pieces so far.
    pub(super) fn count(&mut self, on: (&Device, &Stream)) -> Result<usize, OpError> {
        self.close(on)?;
        Ok(self.pieces.len())
    }

    /// All pieces.
    pub(super) fn into_pieces(mut self, on: (&Device, &Stream)) -> Result<Vec<Piece>, OpError> {
        self.close(on)?;
        Ok(self.pieces)
    }
}

/// The stages as one launch; `None` if their kernel is neither built in nor can be compiled: then the calls are
/// launched separately.
fn chain(
    device: &Device,
    stream: &Stream,
    stages: &[PersistentStage],
) -> Result<Option<PlannedLaunches>, OpError> {
    match persistent::chain(device, stream, stages) {
        Err(OpError::Device { error: DeviceError::NoCompiler { .. }, .. }) => Ok(None),
        chain => chain.map(Some),
    }
}

#[cfg(test)]
mod tests;
