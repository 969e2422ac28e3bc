//! What a variant plans with: tensors on the GPU, kernels and launches.

use super::host_bytes::bytes;
use super::{BUNDLE, execution::Poison};
use crate::{DType, Inputs, OutputSpec, Tensor};
use device::cuda::{
    Args, Buffer, Cuda, CudaCapabilities, CudaError, GpuArch, Kernel, KernelSource, Launch,
    TensorMap, TiledLayout,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A size as kernels take it.
///
/// # Errors
/// [`CudaError::Refused`] when it needs more than 32 bits.
pub(crate) fn int(value: usize) -> Result<i32, CudaError> {
    let refused = |_| CudaError::Refused {
        what: format!("the kernels count in 32 bits, {value} is too large"),
    };
    i32::try_from(value).map_err(refused)
}

/// One launch of a plan.
pub(super) struct Step {
    pub(super) name: String,
    pub(super) kernel: Kernel,
    pub(super) launch: Launch,
    pub(super) args: Args,
}

/// Plans one call on one GPU.
pub struct Planner<'a> {
    pub(super) cuda: &'a Cuda,
    here: &'a CudaCapabilities,
    kernel: &'a str,
    inputs: Inputs<'a>,
    uploaded: BTreeMap<&'static str, Arc<Buffer>>,
    pub(super) outputs: Vec<(OutputSpec, Arc<Buffer>)>,
    /// Buffers that no map names, with what poisoning does to them.
    pub(super) scratch: Vec<(Arc<Buffer>, Poison)>,
    pub(super) steps: Vec<Step>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        cuda: &'a Cuda,
        here: &'a CudaCapabilities,
        kernel: &'a str,
        inputs: Inputs<'a>,
        outputs: Vec<OutputSpec>,
    ) -> Result<Self, CudaError> {
        let allocate = |spec: OutputSpec| {
            let elements: usize = spec.shape.iter().product();
            let buffer = cuda.stream().allocate(elements * spec.dtype.bytes())?;
            Ok((spec, Arc::new(buffer)))
        };
        let outputs = outputs.into_iter().map(allocate).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(Self {
            cuda,
            here,
            kernel,
            inputs,
            uploaded: BTreeMap::new(),
            outputs,
            scratch: Vec::new(),
            steps: Vec::new(),
        })
    }

    /// What the GPU can do.
    pub fn here(&self) -> &CudaCapabilities {
        self.here
    }

    /// The architecture that kernels for this GPU are compiled for.
    pub fn arch(&self) -> GpuArch {
        GpuArch::of(self.here.compute)
    }

    /// An input on the GPU; `None` when the call has none of this name.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or another error of the driver.
    pub fn input(&mut self, name: &'static str) -> Result<Option<Arc<Buffer>>, CudaError> {
        if let Some(buffer) = self.uploaded.get(name) {
            return Ok(Some(Arc::clone(buffer)));
        }
        let Some(tensor) = self.inputs.get(name) else { return Ok(None) };
        let buffer = Arc::new(self.cuda.stream().upload(bytes(tensor))?);
        self.uploaded.insert(name, Arc::clone(&buffer));
        Ok(Some(buffer))
    }

    /// An input that the op requires, on the GPU.
    ///
    /// # Errors
    /// As [`Planner::input`].
    pub fn required(&mut self, name: &'static str) -> Result<Arc<Buffer>, CudaError> {
        let missing = || CudaError::Refused { what: format!("tensor `{name}` is missing") };
        self.input(name)?.ok_or_else(missing)
    }

    /// The shape of an input; empty when the call has none of this name.
    pub fn shape(&self, name: &str) -> &[usize] {
        self.inputs.get(name).map(Tensor::shape).unwrap_or_default()
    }

    /// Whether an input is float32, as kernels take it that read a tensor in one of two types; 0 without the input.
    pub fn is_f32(&self, name: &str) -> i32 {
        i32::from(self.inputs.get(name).is_some_and(|tensor| tensor.dtype() == DType::F32))
    }

    /// An output on the GPU.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when the op has none of this name.
    pub fn output(&self, name: &str) -> Result<Arc<Buffer>, CudaError> {
        let found = self.outputs.iter().find(|(spec, _)| spec.name == name);
        found
            .map(|(_, buffer)| Arc::clone(buffer))
            .ok_or_else(|| CudaError::Refused { what: format!("there is no output `{name}`") })
    }

    /// Memory for float32 intermediate results: poisoned like the outputs.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or another error of the driver.
    pub fn scratch(&mut self, floats: usize) -> Result<Arc<Buffer>, CudaError> {
        let buffer = Arc::new(self.cuda.stream().allocate(floats * DType::F32.bytes())?);
        self.scratch.push((Arc::clone(&buffer), Poison::Nan32));
        Ok(buffer)
    }

    /// Zeroed words that kernels leave as they found them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or another error of the driver.
    pub fn zeroed(&mut self, words: usize) -> Result<Arc<Buffer>, CudaError> {
        let buffer = Arc::new(self.cuda.stream().allocate(words * 4)?);
        self.cuda.stream().fill32(&buffer, 0)?;
        self.scratch.push((Arc::clone(&buffer), Poison::Never));
        Ok(buffer)
    }

    /// A descriptor for the copy engine.
    ///
    /// # Errors
    /// [`CudaError::Refused`] with the reason.
    pub fn tensor_map(
        &self,
        buffer: &Buffer,
        layout: &TiledLayout<'_>,
    ) -> Result<TensorMap, CudaError> {
        self.cuda.tensor_map(buffer, layout)
    }

    /// A kernel, from the bundle where it holds this source.
    ///
    /// # Errors
    /// As [`Cuda::kernel`].
    pub fn kernel(&self, source: &KernelSource) -> Result<Kernel, CudaError> {
        self.cuda.kernel(source, &BUNDLE)
    }

    /// Adds a launch. The first is counted as the variant itself, a later one with its function's name behind.
    ///
    /// The arguments must be what the kernel's parameters are, over buffers of this planner as large as the kernel
    /// takes them to be: this is where a variant answers for its kernel.
    pub fn launch(&mut self, kernel: Kernel, launch: Launch, args: Args) {
        let name = if self.steps.is_empty() {
            self.kernel.to_owned()
        } else {
            format!("{}.{}", self.kernel, kernel.name())
        };
        self.steps.push(Step { name, kernel, launch, args });
    }

    /// Every buffer that must outlive the launches.
    pub(super) fn inputs(&mut self) -> Vec<Arc<Buffer>> {
        std::mem::take(&mut self.uploaded).into_values().collect()
    }
}
