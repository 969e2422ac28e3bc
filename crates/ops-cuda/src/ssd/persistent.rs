//! `persistent`: one token of one sequence, as a stage of a persistent kernel. The variant alone exists to be
//! verified; models fuse many stages into one launch. The contract is in `persistent/scan.cuh`.

use super::operands::{Operands, unfit};
use crate::persistent::{
    self, PersistentStage, STATE, Scan, StagePlanner, scan_launch, scan_source,
};
use crate::{CudaVariant, Planner, arguments, int, slots};
use device::cuda::{CudaCapabilities, DeviceError};
use ops::DType;
use ops::ssd::SsdProblem;

pub(super) const VARIANT: CudaVariant<SsdProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(super) const STAGE_PLANNER: StagePlanner<SsdProblem> =
    StagePlanner { why_not, plan: plan_stage, skipped_outputs: &[] };

/// Rows of a state that a warp takes at once.
const ROWS: usize = 4;

fn why_not(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    if let Some(reason) = unfit(problem, here).or_else(|| persistent::unfit(here)) {
        return Some(reason);
    }
    let (sequences, tokens) = (problem.sequences.count(), problem.sequences.total());
    if problem.sequences.batch_and_tokens() != Some((1, 1)) {
        let found = format!("{tokens} of {sequences}");
        return Some(format!("is for one token of one sequence that is not packed, got {found}"));
    }
    if problem.dtype != DType::Bf16 {
        return Some(format!("needs x in bf16, got {}", problem.dtype));
    }
    if problem.state_dtype != DType::F32 || problem.state_dim != STATE {
        let found = format!("{} of {}", problem.state_dim, problem.state_dtype);
        return Some(format!("needs states of {STATE} columns in f32, got {found}"));
    }
    if !problem.has_initial_state {
        return Some("needs an initial state".to_owned());
    }
    if !problem.small_f32 {
        return Some(
            "needs rates, D of each head and biases of step sizes in f32, and steps in the type of x"
                .to_owned(),
        );
    }
    let ragged = !problem.head_dim.is_multiple_of(ROWS);
    ragged.then(|| format!("needs P a multiple of {ROWS}, got {}", problem.head_dim))
}

arguments! {
    SsdPersistent: ssd_persistent { of: (Scan) }
}

fn record<'o>(problem: &SsdProblem, operands: &'o Operands) -> Result<Scan<'o>, DeviceError> {
    Ok(Scan {
        x: Some(&operands.x),
        z: operands.z.as_deref(),
        dt: Some(&operands.dt),
        b: Some(&operands.b),
        c: Some(&operands.c),
        rate: Some(&operands.rate),
        d: operands.d.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        initial_state: operands.initial_state.as_deref(),
        final_state: Some(&operands.final_state),
        state_indices: operands.state_indices.as_deref(),
        o: Some(&operands.o),
        x_packets: None,
        z_packets: None,
        dt_packets: None,
        b_packets: None,
        c_packets: None,
        packets: None,
        heads: operands.heads,
        head_dim: operands.head_dim,
        head_magic: (1u64 << 32).div_ceil(problem.head_dim.max(2) as u64) as u32 as i32,
        heads_of_group: int(problem.heads_per_group())?,
        softplus: operands.softplus,
        stored: 1,
        dt_min: operands.dt_min,
        dt_max: operands.dt_max,
    })
}

fn plan_stage(
    problem: &SsdProblem,
    planner: &mut Planner<'_>,
) -> Result<PersistentStage, DeviceError> {
    let operands = Operands::new(problem, planner)?;
    Ok(PersistentStage::scan(record(problem, &operands)?))
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let operands = Operands::new(problem, planner)?;
    let kernel = planner.kernel(&scan_source(planner.arch()))?;
    let args = SsdPersistent { of: record(problem, &operands)? };
    planner.launch(kernel, scan_launch(planner.here()), args);
    let states = problem.heads * problem.state_len();
    slots::plan_unused_slots(planner, &problem.slots, problem.sequences.count(), states)
}
