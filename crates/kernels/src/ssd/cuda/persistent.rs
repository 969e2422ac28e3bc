//! `persistent`: one token of one sequence, as a phase of a kernel whose blocks stay. By itself it is there to be verified; models put
//! many of them into one launch. The contract stands in `persistent/cuda/scan.cuh`.

use super::operands::{Operands, unfit};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, arguments, slots};
use crate::persistent::{self, Form, Phase, PhaseOf, STATE, Scan, scan_launch};
use crate::ssd::SsdProblem;
use device::cuda::{CudaCapabilities, CudaError};

pub(super) const VARIANT: CudaVariant<SsdProblem> =
    CudaVariant { name: "persistent", why_not, plan };

pub(in crate::ssd) const PHASE: PhaseOf<SsdProblem> = PhaseOf { why_not, plan: phase };

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
        return Some("needs a state to go on from".to_owned());
    }
    let ragged = !problem.head_dim.is_multiple_of(ROWS);
    ragged.then(|| format!("needs P a multiple of {ROWS}, got {}", problem.head_dim))
}

arguments! {
    SsdPersistent: ssd_persistent { of: (Scan) }
}

fn record(operands: &Operands) -> Result<Scan<'_>, CudaError> {
    let missing = || CudaError::Refused { what: "a scan without a state".to_owned() };
    let settings = operands.settings();
    Ok(Scan {
        x: &operands.x,
        dt: &operands.dt,
        rate: &operands.rate,
        b: &operands.b,
        c: &operands.c,
        d: operands.d.as_deref(),
        z: operands.z.as_deref(),
        dt_bias: operands.dt_bias.as_deref(),
        initial_state: operands.initial_state.as_deref().ok_or_else(missing)?,
        final_state: &operands.final_state,
        state_indices: operands.state_indices.as_deref(),
        o: &operands.o,
        heads: operands.heads,
        groups: operands.groups,
        head_dim: operands.head_dim,
        dt_f32: settings.dt_f32,
        rate_f32: settings.rate_f32,
        d_f32: settings.d_f32,
        bias_f32: settings.bias_f32,
        d_per_channel: settings.d_per_channel,
        softplus: settings.softplus,
        dt_min: settings.dt_min,
        dt_max: settings.dt_max,
    })
}

fn phase(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<Phase, CudaError> {
    let operands = Operands::new(problem, planner)?;
    Ok(Phase::scan(record(&operands)?))
}

fn plan(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let operands = Operands::new(problem, planner)?;
    let kernel = planner.kernel(&Form::default().scan_source(planner.arch()))?;
    let args = SsdPersistent { of: record(&operands)? };
    planner.launch(kernel, scan_launch(planner.here()), args);
    let states = problem.heads * problem.state_len();
    slots::hand_on(planner, &problem.slots, problem.sequences.count(), states)
}
