//! What a variant plans with: tensors on the GPU, kernels and launches.

use super::host_bytes::bytes;
use super::{BUNDLE, execution::Poison};
use crate::{DType, Inputs, OutputSpec, Tensor};
use device::cuda::{
    Args, Buffer, ComputeCapability, Cuda, CudaCapabilities, CudaError, GpuArch, Kernel,
    KernelSource, Launch, MapElement, TensorMap, TiledLayout,
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

/// A floating-point type as the copy engine knows it.
pub(crate) fn map_element(dtype: DType) -> MapElement {
    match dtype {
        DType::F16 => MapElement::F16,
        DType::Bf16 => MapElement::Bf16,
        _ => MapElement::F32,
    }
}

/// One launch of a plan.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) kernel: Kernel,
    pub(super) launch: Launch,
    pub(super) args: Args,
}

/// A tensor of a call that lies on the GPU already.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Its memory, from its first element on.
    pub buffer: Arc<Buffer>,
    /// Elements from one token's values to the next token's, where the tensor is some columns of a wider one; none where
    /// tokens lie side by side.
    pub row: Option<usize>,
}

/// Tensors of a call that lie on the GPU already, by their names in the op's table: inputs, and outputs where the caller
/// wants them.
pub type Buffers = BTreeMap<&'static str, Bound>;

/// Plans one call on one GPU.
pub struct Planner<'a> {
    pub(super) cuda: &'a Cuda,
    here: &'a CudaCapabilities,
    kernel: &'a str,
    inputs: Inputs<'a>,
    uploaded: BTreeMap<&'static str, Bound>,
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
        bound: &Buffers,
    ) -> Result<Self, CudaError> {
        let mut uploaded = BTreeMap::new();
        for (name, bound) in bound {
            if let Some(tensor) = inputs.get(name) {
                fits(name, bound, tensor)?;
                uploaded.insert(*name, bound.clone());
            }
        }
        let allocate = |spec: OutputSpec| {
            if let Some(bound) = bound.get(spec.name) {
                fits(spec.name, bound, &Tensor::elsewhere(&spec.shape, spec.dtype))?;
                return Ok((spec, Arc::clone(&bound.buffer)));
            }
            let bytes = spec.shape.iter().product::<usize>() * spec.dtype.bytes();
            Ok((spec, Arc::new(cuda.stream().allocate(bytes)?)))
        };
        let outputs = outputs.into_iter().map(allocate).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(Self {
            cuda,
            here,
            kernel,
            inputs,
            uploaded,
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
    /// [`CudaError::OutOfMemory`], another error of the driver, or [`CudaError::Refused`] for a tensor whose tokens do not
    /// lie side by side.
    pub fn input(&mut self, name: &'static str) -> Result<Option<Arc<Buffer>>, CudaError> {
        if let Some(bound) = self.uploaded.get(name) {
            if bound.row.is_some() {
                let what = format!("this variant wants the tokens of tensor `{name}` side by side");
                return Err(CudaError::Refused { what });
            }
            return Ok(Some(Arc::clone(&bound.buffer)));
        }
        let Some(tensor) = self.inputs.get(name) else { return Ok(None) };
        if tensor.is_elsewhere() {
            let what = format!("tensor `{name}` lies on the GPU, and no buffer of it was given");
            return Err(CudaError::Refused { what });
        }
        let buffer = Arc::new(self.cuda.stream().upload(bytes(tensor))?);
        self.uploaded.insert(name, Bound { buffer: Arc::clone(&buffer), row: None });
        Ok(Some(buffer))
    }

    /// Elements from one token's values to the next one's in an input over tokens, `width` where they lie side by side.
    /// A variant that asks for it honours it; for others [`Planner::input`] refuses tensors whose tokens lie apart.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when it needs more than 32 bits, or the last token's values lie behind the buffer's end.
    pub(crate) fn row(&mut self, name: &'static str, width: usize) -> Result<i32, CudaError> {
        let Some(bound) = self.uploaded.get_mut(name) else { return int(width) };
        let Some(row) = bound.row.take() else { return int(width) };
        let (len, dtype) =
            self.inputs.get(name).map_or((0, DType::F32), |tensor| (tensor.len(), tensor.dtype()));
        let apart = (len / width.max(1)).saturating_sub(1) * row;
        let wanted = if len == 0 { 0 } else { (apart + width) * dtype.bytes() };
        holds(name, bound, wanted)?;
        int(row)
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

    /// A launch whose start may overlap the end of the kernel ahead of it, where the GPU can; the kernel waits for that one
    /// itself.
    pub(crate) fn overlapping(&self, launch: Launch) -> Launch {
        Launch { overlaps: self.here.compute >= ComputeCapability::new(9, 0), ..launch }
    }

    /// Adds a launch. The first is counted as the variant itself, a later one with its function's name behind.
    ///
    /// The arguments must be what the kernel's parameters are, over buffers of this planner as large as the kernel
    /// takes them to be: this is where a variant answers for its kernel.
    pub fn launch(&mut self, kernel: Kernel, launch: Launch, args: Args) {
        if self.steps.iter().any(|step| step.name == self.kernel) {
            self.launch_ahead(kernel, launch, args);
        } else {
            self.steps.push(Step { name: self.kernel.to_owned(), kernel, launch, args });
        }
    }

    /// Adds a launch that makes ready what the variant's own kernel takes: counted with its function's name behind, so
    /// that the variant is counted where its own kernel ran. Otherwise as [`Planner::launch`].
    pub fn launch_ahead(&mut self, kernel: Kernel, launch: Launch, args: Args) {
        let name = format!("{}.{}", self.kernel, kernel.name());
        self.steps.push(Step { name, kernel, launch, args });
    }

    /// Every input, which must outlive the launches.
    pub(super) fn inputs(&mut self) -> Vec<Arc<Buffer>> {
        std::mem::take(&mut self.uploaded).into_values().map(|bound| bound.buffer).collect()
    }
}

/// Refuses a buffer that is shorter than its tensor.
fn fits(name: &str, bound: &Bound, tensor: &Tensor) -> Result<(), CudaError> {
    // Where tokens lie apart, the variant knows how wide one is: `Planner::row` looks then.
    if bound.row.is_some() {
        return Ok(());
    }
    holds(name, bound, tensor.len() * tensor.dtype().bytes())
}

fn holds(name: &str, bound: &Bound, wanted: usize) -> Result<(), CudaError> {
    if bound.buffer.bytes() >= wanted {
        return Ok(());
    }
    let what = format!("tensor `{name}` has {wanted} bytes, its buffer {}", bound.buffer.bytes());
    Err(CudaError::Refused { what })
}
