//! The interface with which a variant plans a call: tensors on the GPU, kernels and launches.
#![allow(unsafe_code)] // Placeholder buffers while planning.

use crate::bundle::BUNDLE;
use crate::plan::{OPERANDS, OUTPUTS, Plan, SCRATCH, Step};
use device::cuda::{
    Args, Buffer, ComputeCapability, Cuda, CudaCapabilities, DeviceError, GpuArch, Kernel,
    KernelSource, Launch, Stream, TiledLayout, TmaDescriptor, TmaElement,
};
use half::{bf16, f16};
use ops::{DType, Inputs, MAX_TENSORS, OutputSpec, Slots, Tensor};
use std::sync::Arc;

/// A size as a kernel's 32-bit parameter.
///
/// # Errors
/// [`DeviceError::Refused`] when it needs more than 32 bits.
pub(crate) fn int(value: usize) -> Result<i32, DeviceError> {
    let refused = |_| DeviceError::Refused {
        what: format!("the kernels count in 32 bits, {value} is too large"),
    };
    i32::try_from(value).map_err(refused)
}

/// The TMA element type of a floating-point type.
pub(crate) fn map_element(dtype: DType) -> TmaElement {
    match dtype {
        DType::F16 => TmaElement::F16,
        DType::Bf16 => TmaElement::Bf16,
        _ => TmaElement::F32,
    }
}

/// How a buffer is poisoned before a verification run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Poison {
    /// Fills it with float32 NaN.
    Nan32,
    /// Fills it with this 16-bit pattern.
    Word16(u16),
    /// Fills it with this 32-bit pattern.
    Word32(u32),
    /// Leaves it unchanged: kernels rely on its content.
    Never,
}

impl Poison {
    /// The pattern that [`Tensor::poison`] leaves.
    fn of(dtype: DType) -> Self {
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

    pub(super) fn fill(self, stream: &Stream, buffer: &Buffer) -> Result<(), DeviceError> {
        match self {
            // All ones is a NaN as float32 and as float64.
            Self::Nan32 => stream.fill32(buffer, u32::MAX),
            Self::Word16(pattern) => stream.fill16(buffer, pattern),
            Self::Word32(pattern) => stream.fill32(buffer, pattern),
            Self::Never => Ok(()),
        }
    }
}

/// Scratch memory of a plan.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) buffer: Arc<Buffer>,
    pub(super) poison: Poison,
}

/// An output and its operand number.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) spec: OutputSpec,
    pub(super) buffer: Arc<Buffer>,
    operand: usize,
}

/// The memory of a plan's scratch pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// Allocated while planning, for an execution that owns it.
    Allocated,
    /// Not allocated: the caller supplies it at each launch.
    Promised,
}

/// Bytes of a kernel's widest access.
const WIDEST: u64 = 16;

/// A placeholder address with the alignment of a driver allocation. No memory is mapped there.
const PROMISED: u64 = 1 << 40;

/// Plans one call on one GPU.
pub struct Planner<'a> {
    pub(super) cuda: &'a Cuda,
    kernel: &'a str,
    pieces: Pieces,
    inputs: Inputs<'a>,
    /// Inputs on the GPU, as operands, in the order of the op's table.
    uploaded: [Option<Arc<Buffer>>; MAX_TENSORS],
    /// Inputs whose token strides the variant requested, in the order of the op's table.
    rows_asked: [bool; MAX_TENSORS],
    /// Bytes of the kernel's widest access of each input, in the order of the op's table.
    widest: [u64; MAX_TENSORS],
    pub(super) outputs: Vec<Output>,
    pub(super) scratch: Vec<Scratch>,
    pub(super) steps: Vec<Step>,
}

impl<'a> Planner<'a> {
    /// `given` are outputs that the caller has memory for.
    pub(crate) fn new(
        cuda: &'a Cuda,
        kernel: &'a str,
        pieces: Pieces,
        inputs: Inputs<'a>,
        outputs: Vec<OutputSpec>,
        given: &Slots<'_>,
    ) -> Result<Self, DeviceError> {
        let mut planner = Self {
            cuda,
            kernel,
            pieces,
            inputs,
            uploaded: [const { None }; MAX_TENSORS],
            rows_asked: [false; MAX_TENSORS],
            widest: [WIDEST; MAX_TENSORS],
            outputs: Vec::new(),
            scratch: Vec::new(),
            steps: Vec::new(),
        };
        for spec in outputs {
            let bytes = spec.bytes();
            let place = given.place(spec.name).filter(|_| given.get(spec.name).is_some());
            let (buffer, operand) = match (place, given.get(spec.name)) {
                (Some(place), Some(tensor)) => {
                    (memory(spec.name, tensor, spec.dtype, bytes)?, OUTPUTS + place)
                }
                _ => (Arc::new(planner.memory(bytes)?), planner.operand()?),
            };
            let buffer = Arc::new(buffer.part(0, bytes)?.as_operand(operand as u8));
            if operand >= SCRATCH {
                // Written like an output, but not returned.
                let poison = Poison::of(spec.dtype);
                planner.scratch.push(Scratch { buffer: Arc::clone(&buffer), poison });
            }
            planner.outputs.push(Output { spec, buffer, operand });
        }
        Ok(planner)
    }

    /// The operand number of the next piece of scratch memory.
    fn operand(&self) -> Result<usize, DeviceError> {
        let operand = SCRATCH + self.scratch.len();
        if operand < OPERANDS {
            return Ok(operand);
        }
        let what = format!("a plan with more than {} pieces of scratch memory", OPERANDS - SCRATCH);
        Err(DeviceError::Refused { what })
    }

    /// The GPU's capabilities.
    pub fn here(&self) -> &'a CudaCapabilities {
        self.cuda.capabilities()
    }

    /// The architecture that kernels for this GPU are compiled for.
    pub fn arch(&self) -> GpuArch {
        GpuArch::of(self.here().compute)
    }

    /// An input on the GPU; `None` if the call has none of this name. It is contiguous unless the variant requested
    /// its token stride ([`Planner::row`]).
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], another error of the driver, or [`DeviceError::Layout`] for a tensor with
    /// strided tokens or an address at which the kernel's widest access would fault ([`Planner::widest`]).
    pub fn input(&mut self, name: &'static str) -> Result<Option<Arc<Buffer>>, DeviceError> {
        let (Some(place), Some(tensor)) = (self.inputs.slots().place(name), self.inputs.get(name))
        else {
            return Ok(None);
        };
        if !self.rows_asked[place] && !tensor.is_row_major() {
            return Err(DeviceError::Layout { tensor: name, wanted: "side by side" });
        }
        if let Some(buffer) = &self.uploaded[place] {
            return Ok(Some(Arc::clone(buffer)));
        }
        // A slice of a tensor may start at any element.
        let widest = if tensor.dtype() == DType::I32 { 4 } else { self.widest[place] };
        if tensor.buffer().is_some_and(|buffer| !buffer.address().is_multiple_of(widest)) {
            return Err(DeviceError::Layout { tensor: name, wanted: "at a multiple of 16 bytes" });
        }
        let buffer = match tensor.buffer() {
            Some(buffer) => buffer.part(0, tensor.extent())?,
            None => self.cuda.upload(tensor.bytes())?,
        };
        let buffer = Arc::new(buffer.as_operand(place as u8));
        self.uploaded[place] = Some(Arc::clone(&buffer));
        Ok(Some(buffer))
    }

    /// Elements from one token to the next in an input over tokens, `width` if it is contiguous. A variant that
    /// requests the stride must honor it; for others [`Planner::input`] refuses strided tokens.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when it needs more than 32 bits, [`DeviceError::Layout`] when the tokens have no
    /// constant stride.
    pub(crate) fn row(&mut self, name: &'static str, width: usize) -> Result<i32, DeviceError> {
        let (Some(place), Some(tensor)) = (self.inputs.slots().place(name), self.inputs.get(name))
        else {
            return int(width);
        };
        self.rows_asked[place] = true;
        let uneven = || DeviceError::Layout { tensor: name, wanted: "evenly apart" };
        int(tensor.token_stride(width).ok_or_else(uneven)?)
    }

    /// Sizes and strides of an input in elements; both empty without the input. A variant that requests them must
    /// honor them.
    pub(crate) fn sizes_and_strides(&mut self, name: &'static str) -> (&[usize], &[usize]) {
        let (Some(place), Some(tensor)) = (self.inputs.slots().place(name), self.inputs.get(name))
        else {
            return (&[], &[]);
        };
        self.rows_asked[place] = true;
        (tensor.shape(), tensor.strides())
    }

    /// Sets the bytes of the kernel's widest access of an input, which is 16 by default. The input's address has to
    /// be a multiple of it.
    pub(crate) fn widest(&mut self, name: &'static str, bytes: usize) {
        if let Some(place) = self.inputs.slots().place(name) {
            self.widest[place] = bytes as u64;
        }
    }

    /// An input that the op requires, on the GPU.
    ///
    /// # Errors
    /// As [`Planner::input`].
    pub fn required(&mut self, name: &'static str) -> Result<Arc<Buffer>, DeviceError> {
        let missing = || DeviceError::Refused { what: format!("tensor `{name}` is missing") };
        self.input(name)?.ok_or_else(missing)
    }

    /// The shape of an input; empty when the call has none of this name.
    pub fn shape(&self, name: &str) -> &[usize] {
        self.inputs.get(name).map(Tensor::shape).unwrap_or_default()
    }

    /// Whether an input is float32, as a flag for kernels that accept two types; 0 without the input.
    pub fn is_f32(&self, name: &str) -> i32 {
        i32::from(self.inputs.get(name).is_some_and(|tensor| tensor.dtype() == DType::F32))
    }

    /// Whether an output is float32, in the same way.
    pub(crate) fn gives_f32(&self, name: &str) -> i32 {
        let wide = |output: &Output| output.spec.name == name && output.spec.dtype == DType::F32;
        i32::from(self.outputs.iter().any(wide))
    }

    /// Type of an input; `None` without it.
    pub(crate) fn dtype(&self, name: &str) -> Option<DType> {
        self.inputs.get(name).map(Tensor::dtype)
    }

    /// An output on the GPU.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] when the op has none of this name.
    pub fn output(&self, name: &str) -> Result<Arc<Buffer>, DeviceError> {
        let found = self.outputs.iter().find(|output| output.spec.name == name);
        found
            .map(|output| Arc::clone(&output.buffer))
            .ok_or_else(|| DeviceError::Refused { what: format!("there is no output `{name}`") })
    }

    /// Memory for float32 intermediate results: poisoned like the outputs.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or another error of the driver.
    pub fn scratch(&mut self, floats: usize) -> Result<Arc<Buffer>, DeviceError> {
        self.piece(floats * DType::F32.bytes(), Poison::Nan32)
    }

    /// Zeroed 32-bit words, which kernels have to restore to zero.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or another error of the driver.
    pub fn zeroed(&mut self, words: usize) -> Result<Arc<Buffer>, DeviceError> {
        let buffer = self.piece(words * 4, Poison::Never)?;
        if self.pieces == Pieces::Allocated {
            self.cuda.stream().fill32(&buffer, 0)?;
        }
        Ok(buffer)
    }

    /// Memory with initial content, which each run leaves for the next one. Only an execution has such memory.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for a plan that is launched over the caller's memory.
    pub(crate) fn persistent_memory(&mut self, bytes: &[u8]) -> Result<Arc<Buffer>, DeviceError> {
        if self.pieces != Pieces::Allocated {
            let what = format!("`{}` keeps memory from one run to the next", self.kernel);
            return Err(DeviceError::Refused { what });
        }
        let operand = self.operand()? as u8;
        let buffer = Arc::new(self.cuda.stream().upload(bytes)?.as_operand(operand));
        self.scratch.push(Scratch { buffer: Arc::clone(&buffer), poison: Poison::Never });
        Ok(buffer)
    }

    fn memory(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        match self.pieces {
            Pieces::Allocated => self.cuda.stream().allocate(bytes),
            // SAFETY: launches of a plan relocate every argument that points into a piece of its memory.
            Pieces::Promised => Ok(unsafe { self.cuda.borrow_buffer(PROMISED, bytes) }),
        }
    }

    fn piece(&mut self, bytes: usize, poison: Poison) -> Result<Arc<Buffer>, DeviceError> {
        let operand = self.operand()? as u8;
        let buffer = Arc::new(self.memory(bytes)?.as_operand(operand));
        self.scratch.push(Scratch { buffer: Arc::clone(&buffer), poison });
        Ok(buffer)
    }

    /// A TMA descriptor.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with the reason.
    pub fn tensor_map(
        &self,
        buffer: &Buffer,
        layout: &TiledLayout<'_>,
    ) -> Result<TmaDescriptor, DeviceError> {
        self.cuda.tensor_map(buffer, layout)
    }

    /// A kernel, from the bundle if that has its source.
    ///
    /// # Errors
    /// As [`Cuda::kernel`].
    pub fn kernel(&self, source: &KernelSource) -> Result<Kernel, DeviceError> {
        self.cuda.kernel(source, &BUNDLE)
    }

    /// A launch that may start while the previous kernel ends (PDL), if the GPU has it; the kernel waits for that one
    /// itself.
    pub(crate) fn overlapping(&self, launch: Launch) -> Launch {
        Launch { overlaps: self.here().compute >= ComputeCapability::new(9, 0), ..launch }
    }

    /// Adds a launch. Launch counters have the first under the variant's name, later ones with the function's name
    /// appended.
    ///
    /// The arguments must match the kernel's parameters, over buffers of this planner that are large enough for the
    /// kernel. The variant is responsible for that.
    pub fn launch(&mut self, kernel: Kernel, launch: Launch, args: impl Into<Args>) {
        if self.steps.iter().any(|step| step.name == self.kernel) {
            self.launch_auxiliary(kernel, launch, args);
        } else {
            let (name, args) = (self.kernel.to_owned(), args.into());
            self.steps.push(Step { name, kernel, launch, args });
        }
    }

    /// Adds a prologue or epilogue launch. Its counter has the function's name appended, so that the variant's own
    /// name counts only its main kernel. Otherwise as [`Planner::launch`].
    pub fn launch_auxiliary(&mut self, kernel: Kernel, launch: Launch, args: impl Into<Args>) {
        let (name, args) = (format!("{}.{}", self.kernel, kernel.name()), args.into());
        self.steps.push(Step { name, kernel, launch, args });
    }

    /// Every input, which must outlive the launches.
    pub(super) fn inputs(&mut self) -> Vec<Arc<Buffer>> {
        self.uploaded.iter_mut().filter_map(Option::take).collect()
    }

    /// Every input and output, for records that point to them.
    pub(crate) fn into_operands(mut self) -> Vec<Arc<Buffer>> {
        let outputs = std::mem::take(&mut self.outputs);
        self.inputs().into_iter().chain(outputs.into_iter().map(|output| output.buffer)).collect()
    }

    /// The plan, which is launched over memory that the caller gives.
    pub(crate) fn into_plan(self) -> Plan {
        let mut planned = vec![0; SCRATCH + self.scratch.len()];
        for (place, buffer) in self.uploaded.iter().enumerate() {
            planned[place] = buffer.as_ref().map_or(0, |buffer| buffer.address());
        }
        for output in &self.outputs {
            planned[output.operand] = output.buffer.address();
        }
        let pieces = self.scratch.iter().enumerate().map(|(at, piece)| {
            planned[SCRATCH + at] = piece.buffer.address();
            (piece.buffer.bytes(), matches!(piece.poison, Poison::Never))
        });
        let pieces = pieces.collect();
        Plan::new(self.inputs.op(), self.steps, planned, pieces)
    }
}

/// The memory of an output.
fn memory(
    name: &str,
    tensor: &Tensor,
    dtype: DType,
    bytes: usize,
) -> Result<Arc<Buffer>, DeviceError> {
    let refused = |what| DeviceError::Refused { what };
    let Some(buffer) = tensor.buffer() else {
        return Err(refused(format!("output `{name}` is in host memory")));
    };
    if tensor.dtype() != dtype || !tensor.is_row_major() || tensor.extent() != bytes {
        let (shape, given) = (tensor.shape(), tensor.dtype());
        return Err(refused(format!(
            "output `{name}` is {shape:?} {given}, wanted {bytes} bytes of {dtype} side by side"
        )));
    }
    if dtype != DType::I32 && !buffer.address().is_multiple_of(WIDEST) {
        return Err(refused(format!("output `{name}` begins at no multiple of {WIDEST} bytes")));
    }
    Ok(Arc::clone(buffer))
}
