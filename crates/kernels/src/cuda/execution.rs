//! A planned variant over tensors on the GPU.
#![allow(unsafe_code)] // Launches of kernels.

use super::host_bytes::bytes_mut;
use super::planner::{Output, Pieces, Planner, Scratch, Step};
use super::variant::CudaVariant;
use crate::inputs::Slots;
use crate::{DType, Execution, Inputs, OpError, Problem, Tensor, TensorMap};
use device::Device;
use device::cuda::{Buffer, Cuda, CudaError, Graph, Stream};
use half::{bf16, f16};
use std::sync::Arc;

/// What poisoning does to a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Poison {
    /// Fills it with float32 NaN.
    Nan32,
    /// Fills it with this 16-bit pattern.
    Word16(u16),
    /// Fills it with this 32-bit pattern.
    Word32(u32),
    /// Leaves it: kernels count on what is there.
    Never,
}

impl Poison {
    /// The pattern that [`Tensor::poison`] leaves.
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bf16 => Self::Word16(bf16::NAN.to_bits()),
            DType::F16 => Self::Word16(f16::NAN.to_bits()),
            DType::I32 => Self::Word32(i32::MIN.cast_unsigned()),
            // All ones is NaN as float8 too; narrower integers are no outputs.
            DType::F32 | DType::F64 | DType::E4m3 | DType::U4 | DType::I8 | DType::U8 => {
                Self::Nan32
            }
        }
    }

    fn fill(self, stream: &Stream, buffer: &Buffer) -> Result<(), CudaError> {
        match self {
            // All ones is a NaN as float32 and as float64.
            Self::Nan32 => stream.fill32(buffer, u32::MAX),
            Self::Word16(pattern) => stream.fill16(buffer, pattern),
            Self::Word32(pattern) => stream.fill32(buffer, pattern),
            Self::Never => Ok(()),
        }
    }
}

/// A planned variant over tensors on the GPU; outputs come to the host when they are asked for.
pub(crate) struct CudaExecution<'b> {
    kernel: String,
    op: &'static str,
    stream: &'b Stream,
    steps: Vec<Step>,
    outputs: Vec<Output>,
    scratch: Vec<Scratch>,
    /// Read by the launches.
    _inputs: Vec<Arc<Buffer>>,
    /// Larger than the L2 cache: overwritten before each timed run, so that none finds its inputs there.
    flush: Option<Buffer>,
    flush_bytes: usize,
    /// Runs recorded in the graph, and the graph.
    recorded: Option<(u32, Graph)>,
    host: TensorMap,
}

impl<'b> CudaExecution<'b> {
    /// Uploads, allocates and plans; its outputs are poisoned.
    pub(crate) fn new<P: Problem + 'static>(
        kernel: String,
        variant: &CudaVariant<P>,
        problem: &P,
        inputs: Inputs<'_>,
        device: &'b Device,
        cuda: &'b Cuda,
    ) -> Result<Self, CudaError> {
        let Some(here) = &device.capabilities().cuda else {
            return Err(CudaError::Refused { what: "the device is no GPU".to_owned() });
        };
        let wanted = problem.outputs();
        let none = Slots::new(&[]);
        let mut planner =
            Planner::new((cuda, here), &kernel, Pieces::Allocated, inputs, wanted, &none)?;
        (variant.plan)(problem, &mut planner)?;
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
            flush_bytes: 2 * here.l2_bytes as usize,
            recorded: None,
            host: TensorMap::new(),
        };
        execution.fill()?;
        Ok(execution)
    }

    fn fill(&self) -> Result<(), CudaError> {
        // The outputs are among them.
        for Scratch { buffer, poison } in &self.scratch {
            poison.fill(self.stream, buffer)?;
        }
        self.stream.synchronize()
    }

    fn enqueue(&self) -> Result<(), CudaError> {
        for step in &self.steps {
            // SAFETY: the variant planned these arguments for this kernel over buffers that this execution holds.
            unsafe { self.stream.launch(&step.name, &step.kernel, &step.launch, &step.args)? };
        }
        Ok(())
    }

    fn timed(
        &mut self,
        work: impl FnOnce(&Self) -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        self.host.clear();
        if self.flush.is_none() {
            self.flush = Some(self.stream.allocate(self.flush_bytes)?);
        }
        if let Some(flush) = &self.flush {
            // While the GPU writes this, the host gives it the launches: their own time is not measured.
            self.stream.fill32(flush, 0)?;
        }
        let begin = self.stream.record()?;
        work(self)?;
        let end = self.stream.record()?;
        let millis = begin.millis_until(&end)?;
        self.stream.synchronize()?;
        Ok(millis)
    }

    fn replayed(&mut self, runs: u32) -> Result<f64, CudaError> {
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

    fn download(&mut self) -> Result<(), CudaError> {
        for Output { spec, buffer, .. } in &self.outputs {
            let mut tensor = Tensor::poisoned(&spec.shape, spec.dtype);
            self.stream.read(buffer, bytes_mut(&mut tensor))?;
            self.host.insert(spec.name.to_owned(), tensor);
        }
        Ok(())
    }

    fn named(&self, error: CudaError) -> OpError {
        OpError::Cuda { op: self.op, error }
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
