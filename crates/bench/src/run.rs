//! One bench run: ceilings, then every workload that can be verified.

use crate::workloads::{CUDA_WORKLOADS, WORKLOADS, Workload};
use crate::{BenchError, ceilings, time, time_steps};
use device::{Device, Isa};
use facts::{BackendKind, BenchReport, BenchRow, Bound, Ceilings, SCHEMA};
use kernels::{Call, DType, Problem, op};
use std::time::{Duration, Instant};
use verify::admit;

/// How long and how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// A few seconds in all, for `check --quick`.
    Quick,
    /// The sizes whose figures are worth keeping.
    Standard,
}

/// What to bench.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Names of ops, or `decode` for the one-token forms of all; empty for everything.
    pub names: Vec<String>,
    /// Where.
    pub backend: BackendKind,
    /// How large.
    pub size: Size,
    /// Also time the float64 reference of every recurrent prefill, once.
    pub reference: bool,
}

/// Seed of the sampled check, kept fixed so that two runs check the same part.
const SEED: u64 = 20_261_121;

/// Measures the ceilings and every workload; `on_row` sees each row as it is done.
///
/// # Errors
/// [`BenchError`] for an unknown name or an unavailable backend. A workload that fails its check is no error: it has
/// no row, and [`BenchReport::not_timed`] says why.
pub fn run(plan: &Plan, mut on_row: impl FnMut(&BenchRow)) -> Result<BenchReport, BenchError> {
    for name in &plan.names {
        let known = WORKLOADS.iter().map(|(op, _)| *op).chain(["decode"]).collect::<Vec<_>>();
        if !known.contains(&name.as_str()) {
            return Err(BenchError::Unknown { name: name.clone(), known });
        }
    }
    let device = device::open(plan.backend)?;
    let budget = Duration::from_millis(match (plan.size, plan.backend) {
        (Size::Quick, _) => 250,
        // A GPU is not shared with the rest of the machine: its samples spread less.
        (Size::Standard, BackendKind::Cuda) => 500,
        (Size::Standard, _) => 1500,
    });
    let ceilings = ceilings(&device, budget)?;
    let mut report =
        BenchReport { schema: SCHEMA, ceilings, rows: Vec::new(), not_timed: Vec::new() };
    let wanted = |op: &str, workload: &Workload| {
        plan.names.is_empty()
            || plan.names.iter().any(|name| name == op || (name == "decode" && workload.is_step()))
    };
    let listed = if plan.backend == BackendKind::Cuda { CUDA_WORKLOADS } else { WORKLOADS };
    for name in plan.names.iter().filter(|name| *name != "decode") {
        if !listed.iter().any(|(op, _)| op == name) {
            report
                .not_timed
                .push(format!("{name}: there is nothing to time on {} yet", plan.backend));
        }
    }
    for (op, workloads) in listed {
        for workload in workloads(plan.size).iter().filter(|workload| wanted(op, workload)) {
            match measure(op, workload, &device, plan, &report.ceilings, budget) {
                Ok(row) => {
                    on_row(&row);
                    report.rows.push(row);
                }
                Err(why) => report
                    .not_timed
                    .push(format!("{op} {} {}: {why}", workload.case, workload.dtype)),
            }
        }
    }
    Ok(report)
}

fn measure(
    name: &str,
    workload: &Workload,
    device: &Device,
    plan: &Plan,
    ceilings: &Ceilings,
    budget: Duration,
) -> Result<BenchRow, String> {
    let op = op(name).map_err(|error| error.to_string())?;
    let (inputs, settings) = (workload.build)(workload.dtype);
    let call = op.bind(&inputs, &settings).map_err(|error| error.to_string())?;
    let variant = call.select(device, None).map_err(|error| error.to_string())?.chosen;
    let mut verified = admit(op, call.as_ref(), (&inputs, &settings), device, variant, SEED)?;
    let timed = if workload.is_step() {
        time_steps(&mut verified, budget)
    } else {
        time(&mut verified, budget).map(|samples| (samples, 1))
    };
    let (samples, replays) = timed.map_err(|error| error.to_string())?;
    let problem = call.problem();
    let seconds = samples.median() / 1e3;
    let (bound, floor) = floor(problem, variant, plan.backend, ceilings);
    Ok(BenchRow {
        op: name.to_owned(),
        case: workload.case.to_owned(),
        shape: problem.dims().into_iter().map(|(name, size)| (name.to_owned(), size)).collect(),
        dtype: problem.dtype().to_string(),
        backend: plan.backend,
        variant: variant.to_owned(),
        samples: samples.count() as u32,
        replays,
        samples_ms: samples.millis().to_vec(),
        median_ms: samples.median(),
        p95_ms: samples.p95(),
        gflops: problem.flops() / seconds / 1e9,
        gbps: problem.bytes() / seconds / 1e9,
        bound,
        pct_of_ceiling: floor.map(|floor| 100.0 * floor / seconds),
        verified_rel_err: verified.agreement().relative,
        reference_ms: (plan.reference && workload.recurrent)
            .then(|| reference_millis(call.as_ref())),
        peer: None,
        evidence: String::new(),
    })
}

/// Without a measured matrix product, calls with more arithmetic than this for each byte have no ceiling: no GPU of the
/// last years multiplies less in the time in which it moves a byte.
const FLOPS_OF_A_BYTE: f64 = 100.0;

/// The shortest time the ceilings allow, in seconds, and which of them it is.
fn floor(
    problem: &dyn Problem,
    variant: &str,
    backend: BackendKind,
    ceilings: &Ceilings,
) -> (Bound, Option<f64>) {
    // A variant that widens to float32 is held against float32 arithmetic, whatever its storage. Every variant for
    // GPUs multiplies in its storage type, and both 16-bit types have one rate.
    let on_gpu = backend == BackendKind::Cuda;
    let dots_in_bf16 =
        problem.dtype() == DType::Bf16 && variant.ends_with(Isa::Avx512Bf16.as_str());
    let gemm = &ceilings.gemm_gflops;
    let rate = if on_gpu || dots_in_bf16 { gemm.bf16 } else { gemm.f32 };
    let moving = problem.bytes() / (ceilings.copy_gbps * 1e9);
    if on_gpu && rate.is_none() && problem.flops() > FLOPS_OF_A_BYTE * problem.bytes() {
        return (Bound::Compute, None);
    }
    match rate.map(|rate| problem.flops() / (rate * 1e9)) {
        Some(computing) if computing > moving => (Bound::Compute, Some(computing)),
        _ => (Bound::Memory, Some(moving)),
    }
}

fn reference_millis(call: &dyn Call) -> f64 {
    let start = Instant::now();
    let outputs = call.reference();
    let millis = start.elapsed().as_secs_f64() * 1e3;
    // The outputs are looked at, so that the compiler cannot leave the work out.
    assert!(
        outputs.values().all(|tensor| tensor.first_nan().is_none()),
        "the reference computed NaN"
    );
    millis
}
