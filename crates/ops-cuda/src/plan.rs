//! Plans, which are made once and launched over tensors at other addresses.
#![allow(unsafe_code)] // Launches of kernels.

use crate::BUNDLE;
use device::cuda::{
    Args, Buffer, Cuda, DeviceError, Kernel, KernelSource, Launch, OperandAddresses, Stream,
};
use ops::{Inputs, MAX_TENSORS, OpError, Slots, Typed};
use std::sync::Arc;

/// One launch of a plan.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) kernel: Kernel,
    pub(super) launch: Launch,
    pub(super) args: Args,
}

/// Operand numbers of a plan: inputs and outputs in the order of the op's table, then scratch memory.
pub(super) const OUTPUTS: usize = MAX_TENSORS;
pub(super) const SCRATCH: usize = 2 * MAX_TENSORS;
/// Most operands of a plan.
pub(super) const OPERANDS: usize = 4 * MAX_TENSORS;

/// Alignment of pieces of scratch memory, bytes.
const ALIGNED: usize = 512;

/// The launches of a call, with the addresses that tensors had at planning; [`Plan::at`] relocates them.
#[derive(Debug)]
pub struct Plan {
    op: &'static str,
    steps: Vec<Step>,
    /// Addresses of the operands at planning, by operand number.
    planned: Vec<u64>,
    /// Offset of each piece of scratch memory, bytes, and whether it is among the zeroed ones.
    pieces: Vec<(usize, bool)>,
    workspace_size: WorkspaceSize,
}

/// Scratch memory of a plan, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkspaceSize {
    /// Uninitialized memory.
    pub scratch: usize,
    /// Zeroed memory, which its kernels restore to zero.
    pub zeros: usize,
}

/// Scratch memory for a plan, at least as large as [`WorkspaceSize`], from any allocator.
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    /// Uninitialized memory.
    pub scratch: Option<&'a Arc<Buffer>>,
    /// Zeroed memory.
    pub zeros: Option<&'a Arc<Buffer>>,
}

/// Scratch memory that an allocator returned for a plan: uninitialized, then zeroed.
pub type WorkspaceBuffers = [Option<Arc<Buffer>>; 2];

/// Allocates the memory that a plan needs.
pub type WorkspaceAllocator<'a> =
    &'a mut dyn FnMut(WorkspaceSize) -> Result<WorkspaceBuffers, OpError>;

impl WorkspaceSize {
    /// Allocates this memory, unless none is needed.
    ///
    /// # Errors
    /// The allocator's.
    pub fn allocate(self, allocator: WorkspaceAllocator<'_>) -> Result<WorkspaceBuffers, OpError> {
        if self == Self::default() { Ok([None, None]) } else { allocator(self) }
    }
}

impl<'a> From<&'a WorkspaceBuffers> for Workspace<'a> {
    fn from([scratch, zeros]: &'a WorkspaceBuffers) -> Self {
        Self { scratch: scratch.as_ref(), zeros: zeros.as_ref() }
    }
}

impl Plan {
    pub(super) fn new(
        op: &'static str,
        steps: Vec<Step>,
        planned: Vec<u64>,
        pieces: Vec<(usize, bool)>,
    ) -> Self {
        let mut workspace_size = WorkspaceSize::default();
        let mut lay = |(bytes, zeros): (usize, bool)| {
            let end = if zeros { &mut workspace_size.zeros } else { &mut workspace_size.scratch };
            let start = *end;
            *end += bytes.next_multiple_of(ALIGNED);
            (start, zeros)
        };
        let pieces = pieces.into_iter().map(&mut lay).collect();
        Self { op, steps, planned, pieces, workspace_size }
    }

    /// A plan of one launch without an op; the caller is responsible for the arguments.
    pub(crate) fn single(
        cuda: &Cuda,
        op: &'static str,
        source: &KernelSource,
        launch: Launch,
        args: Args,
    ) -> Result<Self, DeviceError> {
        let kernel = cuda.kernel(source, &BUNDLE)?;
        Ok(Self::of_launches(op, [(kernel, launch, args)]))
    }

    /// A plan of launches without an op, in order.
    pub(crate) fn of_launches(
        op: &'static str,
        launches: impl IntoIterator<Item = (Kernel, Launch, Args)>,
    ) -> Self {
        let step = |(kernel, launch, args): (Kernel, _, _)| {
            let name = kernel.name().replacen('_', ".", 1);
            Step { name, kernel, launch, args }
        };
        Self::new(op, launches.into_iter().map(step).collect(), Vec::new(), Vec::new())
    }

    /// Scratch memory that it needs.
    pub fn workspace_size(&self) -> WorkspaceSize {
        self.workspace_size
    }

    /// The plan over the tensors of a call, which must be equivalent to the one it was made for
    /// ([`super::Plans::of`]), and scratch memory for one plan at a time.
    ///
    /// # Errors
    /// [`OpError::Device`] when the memory is too small, or a tensor is in host memory.
    pub fn at<C: Typed>(
        &self,
        call: &C,
        workspace: Workspace<'_>,
    ) -> Result<BoundPlan<'_>, OpError> {
        let given = call.given();
        self.over(&given.inputs, &given.outputs, workspace)
    }

    pub(crate) fn over<'p>(
        &'p self,
        inputs: &Inputs<'_>,
        outputs: &Slots<'_>,
        workspace: Workspace<'_>,
    ) -> Result<BoundPlan<'p>, OpError> {
        let refused = |what| OpError::Device { op: self.op, error: DeviceError::Refused { what } };
        let mut now = [0; OPERANDS];
        for (first, slots) in [(0, inputs.slots()), (OUTPUTS, outputs)] {
            for (place, spec, tensor) in slots.iter() {
                let Some(buffer) = tensor.buffer() else {
                    return Err(refused(format!("tensor `{}` is in host memory", spec.name)));
                };
                now[first + place] = buffer.address();
            }
        }
        self.with(now, workspace)
    }

    /// The plan over tensors at these addresses: inputs, then outputs, in the order of the op's table; 0 for absent
    /// ones.
    ///
    /// # Errors
    /// [`OpError::Device`] when the memory is too small.
    ///
    /// # Safety
    /// The addresses are of tensors equivalent to those it was made for, and stay valid until the stream has
    /// completed the launches.
    pub unsafe fn at_addresses(
        &self,
        [inputs, outputs]: [&[u64]; 2],
        workspace: Workspace<'_>,
    ) -> Result<BoundPlan<'_>, OpError> {
        let mut now = [0; OPERANDS];
        for (to, from) in now[..OUTPUTS].iter_mut().zip(inputs) {
            *to = *from;
        }
        for (to, from) in now[OUTPUTS..SCRATCH].iter_mut().zip(outputs) {
            *to = *from;
        }
        self.with(now, workspace)
    }

    fn with(
        &self,
        mut now: [u64; OPERANDS],
        workspace: Workspace<'_>,
    ) -> Result<BoundPlan<'_>, OpError> {
        let refused = |what| OpError::Device { op: self.op, error: DeviceError::Refused { what } };
        let of = |buffer: Option<&Arc<Buffer>>, wanted: usize| match buffer {
            Some(buffer) if buffer.bytes() >= wanted => Ok(buffer.address()),
            _ if wanted == 0 => Ok(0),
            _ => Err(refused(format!("a plan wants {wanted} bytes of scratch memory"))),
        };
        let (scratch, zeros) = (
            of(workspace.scratch, self.workspace_size.scratch)?,
            of(workspace.zeros, self.workspace_size.zeros)?,
        );
        for (now, (start, zeroed)) in now[SCRATCH..].iter_mut().zip(&self.pieces) {
            *now = *start as u64 + if *zeroed { zeros } else { scratch };
        }
        Ok(BoundPlan { plan: self, now })
    }

    fn enqueue(&self, now: &[u64], stream: &Stream) -> Result<(), OpError> {
        for step in &self.steps {
            let moves = OperandAddresses { planned: &self.planned, now };
            // SAFETY: the variant planned these arguments for this kernel, and equivalent tensors are at the current
            // addresses. Freed memory returns to a pool that reuses it in stream order, so it may be dropped early.
            let launched = unsafe {
                stream.launch_relocated(&step.name, &step.kernel, &step.launch, &step.args, moves)
            };
            launched.map_err(|error| OpError::Device { op: self.op, error })?;
        }
        Ok(())
    }
}

/// A plan and the current addresses of its operands.
#[derive(Debug)]
pub struct BoundPlan<'p> {
    plan: &'p Plan,
    now: [u64; OPERANDS],
}

impl BoundPlan<'_> {
    /// Enqueues its launches on a stream, in order, and returns at once.
    ///
    /// # Errors
    /// [`OpError::Device`] when the driver refuses one.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        self.plan.enqueue(&self.now, stream)
    }
}

/// Launches with their memory: they can be enqueued any number of times, and recorded in a graph.
#[derive(Debug)]
pub struct PlannedLaunches {
    plan: Arc<Plan>,
    now: Vec<u64>,
    /// All buffers that the launches point to.
    _held: Vec<Arc<Buffer>>,
}

impl PlannedLaunches {
    /// A plan with the current addresses of its operands and their memory.
    pub(crate) fn keep(
        plan: Arc<Plan>,
        now: [u64; OPERANDS],
        held: impl IntoIterator<Item = Arc<Buffer>>,
    ) -> Self {
        Self { plan, now: now.to_vec(), _held: held.into_iter().collect() }
    }

    /// A plan at its planning addresses.
    pub(crate) fn fixed(plan: Plan, held: impl IntoIterator<Item = Arc<Buffer>>) -> Self {
        Self { plan: Arc::new(plan), now: Vec::new(), _held: held.into_iter().collect() }
    }

    /// Enqueues its launches on a stream, in order, and returns at once.
    ///
    /// # Errors
    /// [`OpError::Device`] when the driver refuses one.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), OpError> {
        self.plan.enqueue(&self.now, stream)
    }
}

impl BoundPlan<'_> {
    /// The current addresses of its operands, by operand number.
    pub(crate) fn now(&self) -> [u64; OPERANDS] {
        self.now
    }
}
