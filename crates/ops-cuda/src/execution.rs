//! Executes a planned variant over tensors on the GPU.
#![allow(unsafe_code)] // Launches of kernels.

use crate::gpu;
use crate::plan::Step;
use crate::planner::{Output, Pieces, Planner, Scratch};
use device::Device;
use device::cuda::{Buffer, DeviceError, Graph, Stream};
use ops::{Execution, Inputs, OpError, OutputSpec, Slots, Tensor, TensorMap};
use std::sync::Arc;

/// A planned variant over tensors on the GPU; outputs are copied to the host on request.
pub(crate) struct CudaExecution<'b> {
    kernel: String,
    op: &'static str,
    stream: &'b Stream,
    steps: Vec<Step>,
    outputs: Vec<Output>,
    scratch: Vec<Scratch>,
    /// Keeps the launches' inputs alive.
    _inputs: Vec<Arc<Buffer>>,
    /// Twice the L2 size: overwritten before each timed run to evict the inputs from L2.
    flush: Option<Buffer>,
    flush_bytes: usize,
    /// The captured graph, and its number of runs.
    recorded: Option<(u32, Graph)>,
    host: TensorMap,
}

impl<'b> CudaExecution<'b> {
    /// Uploads the inputs, allocates outputs and scratch memory, plans, and poisons the outputs.
    ///
    /// # Errors
    /// [`DeviceError`] when the device is not an NVIDIA GPU, memory is short, or the variant cannot be planned.
    pub(crate) fn new(
        kernel: String,
        (wanted, plan): (Vec<OutputSpec>, impl FnOnce(&mut Planner<'_>) -> Result<(), DeviceError>),
        inputs: Inputs<'_>,
        device: &'b Device,
    ) -> Result<Self, DeviceError> {
        let cuda = gpu(device)?;
        let none = Slots::new(&[]);
        let mut planner = Planner::new(cuda, &kernel, Pieces::Allocated, inputs, wanted, &none)?;
        plan(&mut planner)?;
        let held = planner.inputs();
        let (steps, outputs, scratch) = (planner.steps, planner.outputs, planner.scratch);
        let execution = Self {
            kernel,
            op: inputs.op(),
            stream: cuda.stream(),
            steps,
            outputs,
            scratch,
            _inputs: held,
            flush: None,
            flush_bytes: 2 * cuda.capabilities().l2_bytes as usize,
            recorded: None,
            host: TensorMap::new(),
        };
        execution.fill()?;
        Ok(execution)
    }

    fn fill(&self) -> Result<(), DeviceError> {
        // This includes the outputs.
        for Scratch { buffer, poison } in &self.scratch {
            poison.fill(self.stream, buffer)?;
        }
        self.stream.synchronize()
    }

    fn enqueue(&self) -> Result<(), DeviceError> {
        for step in &self.steps {
            // SAFETY: the variant planned these arguments for this kernel over buffers that this execution holds.
            unsafe { self.stream.launch(&step.name, &step.kernel, &step.launch, &step.args)? };
        }
        Ok(())
    }

    fn timed(
        &mut self,
        work: impl FnOnce(&Self) -> Result<(), DeviceError>,
    ) -> Result<f64, DeviceError> {
        self.host.clear();
        if self.flush.is_none() {
            self.flush = Some(self.stream.allocate(self.flush_bytes)?);
        }
        if let Some(flush) = &self.flush {
            // The host enqueues the launches while the GPU writes this: launch overhead is not measured.
            self.stream.fill32(flush, 0)?;
        }
        let begin = self.stream.record()?;
        work(self)?;
        let end = self.stream.record()?;
        let millis = begin.millis_until(&end)?;
        self.stream.synchronize()?;
        Ok(millis)
    }

    fn replayed(&mut self, runs: u32) -> Result<f64, DeviceError> {
        if self.recorded.as_ref().is_none_or(|(recorded, _)| *recorded != runs) {
            let all = |_: &Stream| (0..runs).try_for_each(|_| self.enqueue());
            self.recorded = Some((runs, self.stream.capture(all)?));
        }
        let millis = self.timed(|execution| match &execution.recorded {
            Some((_, graph)) => graph.launch(execution.stream),
            None => Ok(()),
        })?;
        Ok(millis / f64::from(runs))
    }

    fn download(&mut self) -> Result<(), DeviceError> {
        for Output { spec, buffer, .. } in &self.outputs {
            let mut tensor = Tensor::poisoned(&spec.shape, spec.dtype);
            self.stream.read(buffer, tensor.bytes_mut())?;
            self.host.insert(spec.name.to_owned(), tensor);
        }
        Ok(())
    }

    fn named(&self, error: DeviceError) -> OpError {
        OpError::Device { op: self.op, error }
    }
}

impl Execution for CudaExecution<'_> {
    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn poison(&mut self) -> Result<(), OpError> {
        self.host.clear();
        self.fill().map_err(|error| self.named(error))
    }

    fn launch(&mut self) -> Result<(), OpError> {
        self.host.clear();
        let done = self.enqueue().and_then(|()| self.stream.synchronize());
        done.map_err(|error| self.named(error))
    }

    fn time(&mut self) -> Result<f64, OpError> {
        self.timed(Self::enqueue).map_err(|error| self.named(error))
    }

    fn can_replay(&self) -> bool {
        true
    }

    fn replay(&mut self, runs: u32) -> Result<f64, OpError> {
        self.replayed(runs).map_err(|error| self.named(error))
    }

    fn outputs(&mut self) -> Result<&TensorMap, OpError> {
        if self.host.is_empty() {
            self.download().map_err(|error| self.named(error))?;
        }
        Ok(&self.host)
    }

    fn into_outputs(mut self: Box<Self>) -> Result<TensorMap, OpError> {
        self.outputs()?;
        Ok(self.host)
    }
}
