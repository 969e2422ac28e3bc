//! A planned variant over buffers that the caller keeps: what models are made of.
#![allow(unsafe_code)] // Launches of kernels.

use super::BUNDLE;
use super::planner::{Buffers, Planner, Step};
use super::variant::CudaVariant;
use crate::{Inputs, OpError, Problem};
use device::Device;
use device::cuda::{Args, Buffer, Cuda, CudaError, KernelSource, Launch, Stream};
use std::sync::Arc;

/// Launches over buffers that stay where they are: it can be enqueued any number of times, and captured in a graph.
#[derive(Debug)]
pub struct Planned {
    op: &'static str,
    steps: Vec<Step>,
    /// Everything the launches point to.
    _held: Vec<Arc<Buffer>>,
}

impl Planned {
    /// Plans a variant. Inputs that lie on the GPU and outputs are those of `buffers`; what is not among them is uploaded
    /// or allocated.
    pub(crate) fn new<P: Problem + 'static>(
        kernel: &str,
        variant: &CudaVariant<P>,
        problem: &P,
        inputs: Inputs<'_>,
        (device, cuda): (&Device, &Cuda),
        buffers: &Buffers,
    ) -> Result<Self, CudaError> {
        let Some(here) = &device.capabilities().cuda else {
            return Err(CudaError::Refused { what: "the device is no GPU".to_owned() });
        };
        let mut planner = Planner::new(cuda, here, kernel, inputs, problem.outputs(), buffers)?;
        (variant.plan)(problem, &mut planner)?;
        let mut held = planner.inputs();
        held.extend(planner.outputs.into_iter().map(|(_, buffer)| buffer));
        held.extend(planner.scratch.into_iter().map(|(buffer, _)| buffer));
        Ok(Self { op: inputs.op(), steps: planner.steps, _held: held })
    }

    /// One launch that no op stands behind: what answers for the arguments is where it is planned.
    pub(crate) fn single(
        cuda: &Cuda,
        op: &'static str,
        source: &KernelSource,
        launch: Launch,
        args: Args,
        held: impl IntoIterator<Item = Arc<Buffer>>,
    ) -> Result<Self, CudaError> {
        let kernel = cuda.kernel(source, &BUNDLE)?;
        let name = kernel.name().replacen('_', ".", 1);
        let steps = vec![Step { name, kernel, launch, args }];
        Ok(Self { op, steps, _held: held.into_iter().collect() })
    }

    /// Gives its launches to a stream, in order, and returns at once.
    ///
    /// # Errors
    /// [`OpError::Cuda`] when the driver refuses one.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        for step in &self.steps {
            // SAFETY: the variant planned these arguments for this kernel over buffers that `self` holds. They go back to
            // a pool that hands them out again in the order of the stream, so dropping `self` early is safe as well.
            let launched =
                unsafe { stream.launch(&step.name, &step.kernel, &step.launch, &step.args) };
            launched.map_err(|error| OpError::Cuda { op: self.op, error })?;
        }
        Ok(())
    }
}
