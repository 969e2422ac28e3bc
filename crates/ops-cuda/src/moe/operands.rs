//! Source parts, limits and arguments that the variants' kernels share.

use crate::{Expand, Planner, arguments, int, source};
use device::cuda::{
    Buffer, ComputeCapability, CudaCapabilities, DeviceError, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::moe::{Clamp, MoeProblem, QuantizedExperts, Score, scale_names};
use std::sync::Arc;

pub(super) const AMPERE: SourcePart = source!("../include/ampere.cuh");
pub(super) const STORAGE: SourcePart = source!("../include/storage.cuh");
/// Dequantizes weights to bf16 in registers.
pub(super) const NARROW: SourcePart = source!("../include/narrow.cuh");
pub(super) const CHOOSE: SourcePart = source!("choose.cuh");

pub(super) const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// `MOST_EXPERTS` and `MOST_CHOSEN` of `choose.cuh`: experts including shared ones, and experts of a token.
const MAX_EXPERTS: usize = 512;
const MAX_CHOSEN: usize = 32;

/// Whether the kernels take `experts` experts, including shared ones, and `of_token` experts of a token.
pub fn takes(experts: usize, of_token: usize) -> bool {
    experts <= MAX_EXPERTS && of_token <= MAX_CHOSEN
}

/// Why none of these kernels can run the problem.
pub(super) fn why_not(problem: &MoeProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    // Rows are read 16 bytes at a time.
    for (name, channels) in [("H", problem.hidden), ("I", problem.intermediate)] {
        if channels == 0 || !channels.is_multiple_of(8) {
            return Some(format!("needs {name} a multiple of 8 from 8 on, got {channels}"));
        }
    }
    let (experts, of_token) = (problem.experts + problem.always, problem.of_token());
    (!takes(experts, of_token)).then(|| {
        format!(
            "takes up to {MAX_EXPERTS} experts and {MAX_CHOSEN} of a token, got {experts} and {of_token}"
        )
    })
}

/// `UP` of the gate and up kernels for many tokens.
pub(super) fn up_mode(problem: &MoeProblem) -> u8 {
    if problem.gated { 1 } else { 2 }
}

/// The limit and alpha of clamped experts.
pub(super) fn clamping(problem: &MoeProblem) -> [f32; 2] {
    problem.clamp.map_or([0.0; 2], |Clamp { limit, alpha }| [limit as f32, alpha as f32])
}

arguments! {
    /// The sizes of a router, the experts on this GPU, the number of shared experts of a token, the score function
    /// and the parameters of the weights.
    pub(super) Weighing {
        experts: i32, first_held: i32, held: i32, top_k: i32, always: i32, sigmoid: i32, renormalise: i32, sum_eps: f32, weight_scale: f32,
    }
}

pub(super) fn weighing<'a>(problem: &MoeProblem) -> Result<Weighing<'a>, DeviceError> {
    let (sigmoid, renormalise) = match problem.score {
        Score::SoftmaxOfAll => (0, 0),
        Score::SoftmaxOfChosen => (0, 1),
        Score::Sigmoid { renormalise } => (1, i32::from(renormalise)),
    };
    let (experts, top_k, always) =
        (int(problem.experts)?, int(problem.of_token())?, int(problem.always)?);
    let (first_held, held) = (int(problem.first)?, int(problem.held)?);
    let (sum_eps, weight_scale) = (problem.sum_eps as f32, problem.weight_scale as f32);
    Ok(Weighing {
        experts,
        first_held,
        held,
        top_k,
        always,
        sigmoid,
        renormalise,
        sum_eps,
        weight_scale,
    })
}

/// A launch with PDL, if the GPU has it; its kernel executes `griddepcontrol.wait`.
pub(super) fn overlapping(planner: &Planner<'_>, launch: Launch) -> Launch {
    Launch { overlaps: planner.here().compute >= ComputeCapability::new(9, 0), ..launch }
}

/// 32-bit words of scratch memory for elements of the storage type.
pub(super) fn words(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// Adds the macros of kernels that take quantized weights: bits, whether they are integers, and whether they have
/// offsets.
pub(super) fn of_weights(source: KernelSource, narrow: Option<QuantizedExperts>) -> KernelSource {
    let (bits, integers) = match narrow.map(|narrow| narrow.dtype) {
        None => (16, 0),
        Some(DType::U4) => (4, 1),
        Some(DType::I8) => (8, 1),
        Some(_) => (8, 0),
    };
    let offset = narrow.is_some_and(|narrow| narrow.offset);
    let source = source.define("WEIGHT_BITS", bits).define("INTEGERS", integers);
    source.define("OFFSET", u8::from(offset))
}

/// `w_gate_up` or `w_down` in the storage type: as given, or dequantized by a preceding launch.
pub(super) fn expanded(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    name: &'static str,
) -> Result<Arc<Buffer>, DeviceError> {
    let w = planner.required(name)?;
    let Some(narrow) = problem.quantized else { return Ok(w) };
    let [scale, offset] = scale_names(name);
    let (scale, offset) = (planner.required(scale)?, planner.input(offset)?);
    let (hidden, inner) = (problem.hidden, problem.intermediate);
    let (scales_per_row, rows, columns) = match name {
        "w_gate_up" => (narrow.scales_per_row[0], problem.ups(), hidden),
        _ => (narrow.scales_per_row[1], hidden, inner),
    };
    Expand {
        dtype: narrow.dtype,
        w: &w,
        scale: &scale,
        factor_bits: 32,
        zero: None,
        offset: offset.as_deref(),
        order: None,
        shape: [problem.held, rows, columns],
        group: narrow.columns_of(scales_per_row, columns),
    }
    .plan(planner)
}

/// log2 of the steps of `step` channels in a group; `None` if a group is no power of two of steps.
pub(super) fn group_shift(group: usize, step: usize) -> Option<u32> {
    let steps = group / step;
    (group.is_multiple_of(step) && steps.is_power_of_two()).then(|| steps.ilog2())
}

arguments! {
    /// Scales and offsets of quantized weights; a group is 2^group_shift steps.
    pub(super) GroupScales { w_scale: Nullable, w_offset: Nullable, groups: i32, group_shift: i32 }
}

/// Scale and offset buffers of quantized weights, from which [`GroupScales`] are made.
pub(super) struct ScaleBuffers {
    scale: Option<Arc<Buffer>>,
    offset: Option<Arc<Buffer>>,
    groups: usize,
    shift: u32,
}

impl ScaleBuffers {
    /// Those of `w_gate_up` or `w_down`, for a kernel whose steps have `step` channels.
    pub(super) fn new(
        problem: &MoeProblem,
        planner: &mut Planner<'_>,
        w: &str,
        step: usize,
    ) -> Result<Self, DeviceError> {
        let [scale, offset] = scale_names(w);
        let (scale, offset) = (planner.input(scale)?, planner.input(offset)?);
        let Some(narrow) = problem.quantized else {
            return Ok(Self { scale, offset, groups: 1, shift: 0 });
        };
        let groups = narrow.scales_per_row[usize::from(w == "w_down")];
        // With one scale per row, all steps shift to group 0.
        let of_groups = group_shift(narrow.group, step).filter(|_| groups > 1);
        Ok(Self { scale, offset, groups, shift: of_groups.unwrap_or(31) })
    }

    pub(super) fn args(&self) -> Result<GroupScales<'_>, DeviceError> {
        Ok(GroupScales {
            w_scale: self.scale.as_deref(),
            w_offset: self.offset.as_deref(),
            groups: int(self.groups)?,
            group_shift: self.shift as i32,
        })
    }
}
