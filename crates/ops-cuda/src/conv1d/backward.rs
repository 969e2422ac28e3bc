//! Gradients of the causal conv1d: one file per variant next to its kernel. All run from compute capability 8.0 on.

mod channel_first;
mod channel_last;

use super::operands::{shape_macros, too_old};
use crate::gradient_sums::{self, GradientSums};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{Buffer, BundledArch, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::conv1d::{Activation, Conv1dProblem, Layout};
use ops::{DType, GradientProblem};
use std::sync::Arc;

/// The variants in order of preference; each rejects the problems that it does not support.
pub(super) static VARIANTS: &[CudaVariant<GradientProblem<Conv1dProblem>>] =
    &[channel_last::VARIANT, channel_first::VARIANT];

const STATES: &[SourcePart] = &[
    source!("../include/storage.cuh"),
    source!("backward/sequence.cuh"),
    source!("backward/states.cu"),
];

/// Threads of a block of `states.cu`.
const OF_STATES: usize = 128;

/// Compile-time parameters of the kernels.
#[derive(Debug, Clone, Copy)]
struct Params {
    dtype: DType,
    width: usize,
    silu: bool,
}

impl Params {
    fn of(problem: &Conv1dProblem) -> Self {
        let silu = problem.activation == Activation::Silu;
        Self { dtype: problem.dtype, width: problem.width, silu }
    }

    fn source(
        self,
        name: &'static str,
        parts: &'static [SourcePart],
        arch: GpuArch,
    ) -> KernelSource {
        let source = KernelSource::new(name, parts, arch);
        shape_macros(source, self.dtype, self.width).define("SILU", u8::from(self.silu))
    }

    fn states(self, arch: GpuArch) -> KernelSource {
        self.source("conv1d_backward_states", STATES, arch)
    }
}

/// The bundled kernels: bf16, width 4, silu.
pub(super) fn bundled() -> Vec<KernelSource> {
    let params = Params { dtype: DType::Bf16, width: 4, silu: true };
    let of = |arch: &BundledArch| {
        [
            channel_last::source(params, 4, false, arch.arch()),
            channel_last::source(params, 4, true, arch.arch()),
            channel_first::source(params, 8, arch.arch()),
            params.states(arch.arch()),
            gradient_sums::source(params.dtype, arch.arch()),
        ]
    };
    BundledArch::ALL.iter().flat_map(of).collect()
}

/// The operands of one call.
struct Operands {
    x: Arc<Buffer>,
    weight: Arc<Buffer>,
    bias: Option<Arc<Buffer>>,
    initial_state: Option<Arc<Buffer>>,
    cu_seqlens: Option<Arc<Buffer>>,
    d_o: Arc<Buffer>,
    dfinal: Option<Arc<Buffer>>,
    dx: Arc<Buffer>,
    sequences: i32,
    /// Tokens of a dense sequence.
    tokens: i32,
    channels: i32,
    state_len: i32,
    weight_f32: i32,
    bias_f32: i32,
    state_f32: i32,
}

impl Operands {
    fn new(problem: &Conv1dProblem, planner: &mut Planner<'_>) -> Result<Self, DeviceError> {
        Ok(Self {
            x: planner.required("x")?,
            weight: planner.required("weight")?,
            bias: planner.input("bias")?,
            initial_state: planner.input("initial_state")?,
            cu_seqlens: planner.input("cu_seqlens")?,
            d_o: planner.required("do")?,
            dfinal: planner.input("dfinal_state")?,
            dx: planner.output("dx")?,
            sequences: int(problem.sequences.count())?,
            tokens: int(problem.sequences.longest())?,
            channels: int(problem.channels)?,
            state_len: int(problem.state_len)?,
            weight_f32: planner.is_f32("weight"),
            bias_f32: planner.is_f32("bias"),
            state_f32: i32::from(problem.state_dtype == DType::F32),
        })
    }
}

arguments! {
    States: conv1d_backward_states {
        x: Pointer, weight: Pointer, bias: Nullable, initial_state: Pointer, cu_seqlens: Nullable, d_o: Pointer, dfinal: Nullable,
        dinitial: Pointer, sequences: i32, tokens: i32, channels: i32, state_len: i32, apart: i32, weight_f32: i32, bias_f32: i32,
        state_f32: i32,
    }
}

/// Floats of the partial sums of `parts` blocks.
fn partial_floats(problem: &Conv1dProblem, parts: usize) -> usize {
    (parts * problem.channels * (problem.width + 1)).max(1)
}

/// Adds the launches after the main kernel: gradients of the weights from the partial sums of `parts` blocks, and of the initial states.
fn finish(
    problem: &Conv1dProblem,
    operands: &Operands,
    partial: &Buffer,
    parts: usize,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let (channels, width) = (problem.channels, problem.width);
    GradientSums {
        dtype: problem.dtype,
        partial,
        matrices: 1,
        count: parts,
        stride: channels * (width + 1),
        first: ("dweight", channels * width),
        second: problem.has_bias.then_some(("dbias", channels)),
    }
    .plan(planner)?;
    let Some(initial_state) = &operands.initial_state else { return Ok(()) };
    let kernel = planner.kernel(&Params::of(problem).states(planner.arch()))?;
    let args = States {
        x: &operands.x,
        weight: &operands.weight,
        bias: operands.bias.as_deref(),
        initial_state,
        cu_seqlens: operands.cu_seqlens.as_deref(),
        d_o: &operands.d_o,
        dfinal: operands.dfinal.as_deref(),
        dinitial: &*planner.output("dinitial_state")?,
        sequences: operands.sequences,
        tokens: operands.tokens,
        channels: operands.channels,
        state_len: operands.state_len,
        apart: if problem.layout == Layout::ChannelFirst { 1 } else { operands.channels },
        weight_f32: operands.weight_f32,
        bias_f32: operands.bias_f32,
        state_f32: operands.state_f32,
    };
    let sequences = problem.sequences.count().min(65535) as u32;
    let grid = [channels.div_ceil(OF_STATES) as u32, sequences, 1];
    planner.launch(kernel, Launch::new(grid, OF_STATES as u32, 0), args);
    Ok(())
}
