//! What a step does on the GPU, in order: run as it is planned, or kept to be recorded.

use super::pass::Pass;
use super::tensor::{GpuTensor, device_error};
use crate::Architecture;
use device::Device;
use device::cuda::Stream;
use kernels::cuda::Planned;
use kernels::{DType, OpError};

/// A piece of work for a stream.
#[derive(Debug)]
pub(super) enum Work {
    /// Kernels.
    Launches(Planned),
    /// Zeros into a tensor of 32-bit words.
    Clear(GpuTensor),
}

impl Work {
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        match self {
            Self::Launches(planned) => planned.enqueue(stream),
            Self::Clear(tensor) => stream.fill32(&tensor.buffer, 0).map_err(device_error),
        }
    }
}

/// The work of one step over the tokens of a pass.
pub(super) struct Program<'a> {
    pub(super) device: &'a Device,
    pub(super) stream: &'a Stream,
    pub(super) pass: &'a Pass,
    /// The residual stream `[tokens, hidden]` in float32.
    pub(super) x: GpuTensor,
    /// Another one, for what cannot be added in place.
    pub(super) spare: Option<GpuTensor>,
    /// Epsilon of the norms.
    pub(super) eps: f64,
    /// Factor on what layers add to x.
    pub(super) residual: f64,
    /// What was planned, where it is to be recorded.
    kept: Option<Vec<Work>>,
}

impl<'a> Program<'a> {
    /// A program that runs each piece at once, while the next is planned.
    pub(super) fn now(
        device: &'a Device,
        stream: &'a Stream,
        pass: &'a Pass,
        architecture: &Architecture,
    ) -> Result<Self, OpError> {
        let shape = [pass.tokens, architecture.hidden];
        let x = GpuTensor::allocate(stream, &shape, DType::F32)?;
        let spare =
            architecture.is_routed().then(|| GpuTensor::allocate(stream, &shape, DType::F32));
        Ok(Self {
            device,
            stream,
            pass,
            x,
            spare: spare.transpose()?,
            eps: architecture.eps,
            residual: architecture.residual_multiplier,
            kept: None,
        })
    }

    /// A program that keeps its pieces.
    pub(super) fn later(
        device: &'a Device,
        stream: &'a Stream,
        pass: &'a Pass,
        architecture: &Architecture,
    ) -> Result<Self, OpError> {
        Ok(Self { kept: Some(Vec::new()), ..Self::now(device, stream, pass, architecture)? })
    }

    /// Runs or keeps launches.
    pub(super) fn add(&mut self, planned: Planned) -> Result<(), OpError> {
        self.work(Work::Launches(planned))
    }

    /// Runs or keeps a piece of work.
    pub(super) fn work(&mut self, work: Work) -> Result<(), OpError> {
        match &mut self.kept {
            Some(kept) => {
                kept.push(work);
                Ok(())
            }
            None => work.enqueue(self.stream),
        }
    }

    /// A tensor for what goes from one piece to the next. Its memory is used again once it is dropped, in the order of the
    /// stream; what is kept holds it.
    pub(super) fn tensor(&self, shape: &[usize], dtype: DType) -> Result<GpuTensor, OpError> {
        GpuTensor::allocate(self.stream, shape, dtype)
    }

    /// What was kept.
    pub(super) fn into_work(self) -> Vec<Work> {
        self.kept.unwrap_or_default()
    }
}
