//! One bench run: ceilings, then every workload that can be verified.

use crate::ceiling_check::{Limit, faster, hold};
use crate::peer_budget::PeerBudget;
use crate::peers::{
    PeerTimer, PeerTimings, PeerWorkload, ROUNDS, TimedPeer, have_peers, of_backend,
};
use crate::workloads::{OpWorkloads, Task, WORKLOADS, clear_reused, with_reuse};
use crate::{BenchError, Samples, Sweep, ceilings, dense, time, time_steps};
use device::{CacheSizes, Device};
use facts::{
    BackendKind, BenchReport, BenchRow, CeilingDrift, CeilingKind, Ceilings, ConcurrentLoad,
    Conditions, Moment, OUT_OF_TIME, SCHEMA, SkippedTiming,
};
use ops::{Call, Op, OpError, Problem, Settings, TensorMap, op};
use std::time::{Duration, Instant};
use verify::{Agreement, MatrixResults, Peers, SampledCall, Verified};

/// Duration and size of a bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// A few seconds in all, for `check --quick`.
    Quick,
    /// The sizes of recorded figures.
    Standard,
}

/// The kernels to time, and how.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    /// Names of ops, or `decode` for the one-token calls of all ops; empty for everything.
    pub names: Vec<String>,
    /// The backend.
    pub backend: BackendKind,
    /// The size.
    pub size: Size,
    /// Also time the float64 reference of every recurrent prefill, once.
    pub reference: bool,
    /// Shapes instead of the listed cases.
    pub sweep: Option<Sweep>,
    /// When no further workload starts: [`BenchReport::not_run`] lists the remaining ones. `None` for no limit.
    pub until: Option<Instant>,
}

impl BenchPlan {
    fn too_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// A progress event of a run.
#[derive(Debug)]
pub enum Step<'a> {
    /// A kernel is about to be verified and timed.
    Begins {
        /// `kda prefill-2048 bf16`.
        case: &'a str,
        /// An installed kernel's name; `None` for firstlight's own.
        peer: Option<&'a str>,
        /// Remaining time of this op's installed kernels, if it is limited.
        left: Option<Duration>,
    },
    /// The ceilings are measured once more.
    Ceilings,
    /// A workload is done: all results so far.
    Done(&'a BenchReport),
}

/// Seed of the sampled check, fixed so that two runs check the same part.
pub(crate) const SEED: u64 = 20_261_121;

/// Measures the ceilings and every workload; `on` is called for each step. `matrix` has the results of the checks: a
/// variant that failed one, or passed none, is not timed.
///
/// # Errors
/// [`BenchError`] for an unknown name or an unavailable backend. A workload that fails verification is not an error: it
/// has no row, and [`BenchReport::not_timed`] gives the reason.
pub fn run(
    plan: &BenchPlan,
    matrix: &MatrixResults,
    mut peers: Option<Peers<'_>>,
    mut on: impl FnMut(Step<'_>),
) -> Result<BenchReport, BenchError> {
    for name in &plan.names {
        let known = WORKLOADS.iter().map(|of| of.op).chain(["decode"]).collect::<Vec<_>>();
        if !known.contains(&name.as_str()) {
            return Err(BenchError::Unknown { name: name.clone(), known });
        }
    }
    let device = backends::open(plan.backend)?;
    let budget = budget(plan.size, plan.backend);
    let mut report = BenchReport {
        schema: SCHEMA,
        ceilings: Vec::new(),
        rows: Vec::new(),
        not_timed: Vec::new(),
        not_applicable: Vec::new(),
        not_run: Vec::new(),
        conditions: Vec::new(),
    };
    let ops = WORKLOADS.iter().map(|of| (of.op, tasks(plan, of)));
    let ops: Vec<_> = ops.filter(|(_, tasks)| !tasks.is_empty()).collect();
    if plan.too_late() {
        let all = ops.iter().flat_map(|(op, tasks)| tasks.iter().map(|task| unreached(op, task)));
        report.not_run.extend(all);
        return Ok(report);
    }
    let before = ceilings(&device, budget)?;
    report.ceilings = vec![before.clone()];
    for name in plan.names.iter().filter(|name| *name != "decode") {
        if !ops.iter().any(|(op, _)| op == name) {
            report
                .not_timed
                .push(format!("{name}: there is nothing to time on {} yet", plan.backend));
        }
    }
    let mut peers = of_backend(peers.as_mut(), plan.backend);
    let with_peers = |op: &&str| peers.as_ref().is_some_and(|peers| have_peers(peers, op));
    let with_peers: Vec<&str> = ops.iter().map(|(op, _)| *op).filter(with_peers).collect();
    let limit = peers.as_ref().and_then(|peers| peers.budget);
    let mut time = PeerBudget::of(limit, with_peers.len());
    let caches = CacheSizes::of(&device);
    let context = Context { device: &device, plan, matrix, budget, ceilings: &before, caches };
    // The op with the most peers and calls is listed first and measured last, so that it gets the unused time of the
    // others.
    for (op, tasks) in ops.iter().rev() {
        if with_peers.contains(op)
            && let Some(peers) = peers.as_deref_mut()
        {
            PeerTimer { peers, time: &mut time }.ready(op);
            time.begin(op);
        }
        let mut at = 0;
        for task in tasks {
            if plan.too_late() {
                report.not_run.push(unreached(op, task));
                continue;
            }
            let timer = peers.as_deref_mut().map(|peers| PeerTimer { peers, time: &mut time });
            let rows = measure(op, task, &context, timer, &mut report, &mut on);
            let count = rows.len();
            report.rows.splice(at..at, rows);
            at += count;
            report.ceilings = vec![hold(&before, &mut report.rows)];
            on(Step::Done(&report));
        }
    }
    clear_reused();
    on(Step::Ceilings);
    // Not measured after the time limit, because this would only lengthen the run.
    let after = if plan.too_late() { None } else { Some(ceilings(&device, budget / 2)?) };
    report.conditions = vec![ceiling_drift(&before, after.as_ref())];
    let best = match &after {
        Some(after) => faster(before, after),
        None => before,
    };
    report.ceilings = vec![hold(&best, &mut report.rows)];
    Ok(report)
}

/// Each ceiling before and after, if it was measured twice. The caller adds the other conditions.
fn ceiling_drift(before: &Ceilings, after: Option<&Ceilings>) -> Conditions {
    let both = |ceiling: CeilingKind| {
        let (before, after) = (before.rate(ceiling)?, after?.rate(ceiling)?);
        Some(CeilingDrift { ceiling, before, after })
    };
    Conditions {
        backend: before.backend,
        before: Moment::default(),
        after: Moment::default(),
        meanwhile: ConcurrentLoad::default(),
        ceilings: CeilingKind::ALL.into_iter().filter_map(both).collect(),
    }
}

/// A workload that was not started.
fn unreached(op: &str, task: &Task<'_>) -> SkippedTiming {
    SkippedTiming {
        case: format!("{op} {} {}", task.case, task.dtype),
        peer: "firstlight".to_owned(),
        why: OUT_OF_TIME.to_owned(),
    }
}

/// Time for the samples of a workload.
pub fn budget(size: Size, backend: BackendKind) -> Duration {
    Duration::from_millis(match (size, backend) {
        (Size::Quick, _) => 250,
        // Forty samples of ten milliseconds: with more, a check on a machine with two cores would take over a minute.
        (Size::Standard, BackendKind::Cpu) => 400,
        // A GPU is not shared with the rest of the machine, so its samples vary less.
        (Size::Standard, _) => 500,
    })
}

/// Number of workloads of a plan.
pub fn count(plan: &BenchPlan) -> usize {
    WORKLOADS.iter().map(|of| tasks(plan, of).len()).sum()
}

/// The timed workloads of an op. The first decode step is second, so that it is timed even if the peers' time limit is
/// reached later.
pub(crate) fn tasks<'a>(plan: &'a BenchPlan, of: &OpWorkloads) -> Vec<Task<'a>> {
    let mut tasks: Vec<Task<'a>> = match &plan.sweep {
        None => of.on(plan.backend, plan.size).into_iter().map(Task::from).collect(),
        Some(sweep) => (of.sweep)(sweep),
    };
    tasks.retain(|task| {
        let named = |name: &String| name == of.op || (name == "decode" && task.is_step());
        plan.names.is_empty() || plan.names.iter().any(named)
    });
    if let Some(step) = tasks.iter().position(Task::is_step) {
        tasks[step.min(1)..=step].rotate_right(1);
    }
    tasks
}

/// Data shared by all measurements of a run.
struct Context<'a> {
    device: &'a Device,
    plan: &'a BenchPlan,
    matrix: &'a MatrixResults,
    budget: Duration,
    ceilings: &'a Ceilings,
    caches: CacheSizes,
}

/// The rows of one task: firstlight's own kernel and each peer, all verified first, then timed interleaved.
fn measure(
    name: &str,
    task: &Task<'_>,
    context: &Context<'_>,
    mut timer: Option<PeerTimer<'_, '_>>,
    report: &mut BenchReport,
    on: &mut dyn FnMut(Step<'_>),
) -> Vec<BenchRow> {
    let case = format!("{name} {} {}", task.case, task.dtype);
    on(Step::Begins { case: &case, peer: None, left: None });
    let (inputs, settings) = with_reuse(|| (task.build)(task.dtype));
    let bound = bind(name, &inputs, &settings);
    let (op, call) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            report.not_timed.push(format!("{case}: {error}"));
            return Vec::new();
        }
    };
    let (call, given) = (&call, (&inputs, &settings));
    let budget = context.budget;
    let sampled = &mut SampledCall::of(op, given, SEED);
    let mut timings = match &mut timer {
        Some(timer) => {
            let (inputs, settings) = given;
            PeerTimings::admit(
                timer,
                PeerWorkload { case: &case, call, inputs, settings, sampled, budget },
                on,
            )
        }
        None => PeerTimings::default(),
    };
    let dense_given = if task.is_step() { dense::of(op, &inputs, &settings) } else { None };
    let dense = dense_given.as_ref().map(|(inputs, settings)| bind(dense::OP, inputs, settings));
    let mut own = admitted(call, sampled, context);
    let mut dense_timed = match (&dense, &dense_given) {
        (Some(Ok((op, call))), Some((inputs, settings))) => {
            let sampled = &mut SampledCall::of(*op, (inputs, settings), SEED);
            Some(admitted(call, sampled, context))
        }
        (Some(Err(error)), _) => Some(Err(error.to_string())),
        _ => None,
    };
    let rounds = if timings.runners.is_empty() && dense_timed.is_none() { 1 } else { ROUNDS };
    let budget = context.budget / rounds;
    for _ in 0..rounds {
        for runner in std::iter::once(&mut own).chain(&mut dense_timed) {
            if let Ok(timed) = runner
                && let Err(why) = timed.round(task.is_step(), budget)
            {
                *runner = Err(why);
            }
        }
        if let Some(timer) = &mut timer {
            timings.round(timer, task.is_step(), budget);
        }
    }
    if let Some(timer) = &mut timer {
        timings.confirm(timer);
    }
    let row = |timed: TimedKernel<'_>| row(name, task, call.problem(), context, timed);
    let mut rows = Vec::new();
    match own {
        Ok(own) => rows.push(BenchRow {
            reference_ms: (context.plan.reference && task.recurrent)
                .then(|| reference_millis(call)),
            dense_ms: dense_timed
                .as_ref()
                .and_then(|dense| Some(dense.as_ref().ok()?.samples.median())),
            ..row(own.timed())
        }),
        Err(why) => report.not_timed.push(format!("{case}: {why}")),
    }
    match (&dense_timed, &dense) {
        (Some(Ok(own)), Some(Ok((_, call)))) => {
            rows.push(dense_row(task, name, call.problem(), context, own))
        }
        (Some(Err(why)), _) => {
            report.not_timed.push(format!("{case}, dense attention for comparison: {why}"));
        }
        _ => {}
    }
    for TimedPeer { peer, samples, replays } in &timings.runners {
        rows.push(BenchRow {
            peer: Some(peer.package().to_owned()),
            evidence: peer.evidence().to_owned(),
            ..row(TimedKernel {
                variant: peer.name(),
                samples,
                replays: *replays,
                agreement: peer.agreement(),
            })
        });
    }
    report.not_timed.extend(timings.refused.iter().map(|why| format!("{case}: {why}")));
    report.not_applicable.extend(timings.not_applicable.iter().map(|why| format!("{case}: {why}")));
    report.not_run.extend(timings.not_run);
    rows
}

/// firstlight's own kernel of a task, with its times so far.
struct OwnKernel<'a> {
    variant: &'static str,
    verified: Verified<'a>,
    samples: Samples,
    replays: u32,
}

pub(crate) type BoundCall<'a> = (&'static dyn Op, Call<'a>);

pub(crate) fn bind<'a>(
    name: &str,
    inputs: &'a TensorMap,
    settings: &Settings,
) -> Result<BoundCall<'a>, OpError> {
    let op = op(name)?;
    Ok((op, op.bind(inputs, settings)?))
}

fn admitted<'a>(
    call: &'a Call<'a>,
    sampled: &mut SampledCall<'_>,
    context: &Context<'a>,
) -> Result<OwnKernel<'a>, String> {
    let device = context.device;
    let variant = call.select(device, None).map_err(|error| error.to_string())?.chosen;
    let verified = context.matrix.admit(call, sampled, device, variant)?;
    Ok(OwnKernel { variant, verified, samples: Samples::default(), replays: 1 })
}

/// The row data of a timed kernel.
struct TimedKernel<'a> {
    variant: &'a str,
    samples: &'a Samples,
    replays: u32,
    agreement: Agreement,
}

impl OwnKernel<'_> {
    fn timed(&self) -> TimedKernel<'_> {
        TimedKernel {
            variant: self.variant,
            samples: &self.samples,
            replays: self.replays,
            agreement: self.verified.agreement(),
        }
    }

    fn round(&mut self, is_step: bool, budget: Duration) -> Result<(), String> {
        let timed = if is_step {
            time_steps(&mut self.verified, budget)
        } else {
            time(&mut self.verified, budget).map(|samples| (samples, 1))
        };
        let (samples, replays) = timed.map_err(|error| error.to_string())?;
        self.samples.extend(samples.millis().iter().copied());
        self.replays = replays;
        Ok(())
    }
}

/// The row of dense attention that is compared with a decode step of `name`.
fn dense_row(
    task: &Task<'_>,
    name: &str,
    problem: &dyn Problem,
    context: &Context<'_>,
    own: &OwnKernel<'_>,
) -> BenchRow {
    BenchRow {
        case: format!("{}-of-{name}", task.case),
        ..row(dense::OP, task, problem, context, own.timed())
    }
}

/// The row of a timed kernel. The caller sets the fields that only a peer's row has.
fn row(
    name: &str,
    task: &Task<'_>,
    problem: &dyn Problem,
    context: &Context<'_>,
    TimedKernel { variant, samples, replays, agreement }: TimedKernel<'_>,
) -> BenchRow {
    let seconds = samples.median() / 1e3;
    let backend = context.plan.backend;
    let ceilings = (context.ceilings, context.caches);
    let Limit { bound, against, cache_resident } =
        Limit::of(problem, (variant, backend), ceilings, seconds);
    BenchRow {
        op: name.to_owned(),
        case: task.case.clone().into_owned(),
        shape: problem.dims().into_iter().map(|(name, size)| (name.to_owned(), size)).collect(),
        dtype: problem.dtype().to_string(),
        backend,
        variant: variant.to_owned(),
        samples: samples.count() as u32,
        replays,
        samples_ms: samples.millis().to_vec(),
        median_ms: samples.median(),
        p95_ms: samples.p95(),
        gflops: problem.flops() / seconds / 1e9,
        gbps: problem.bytes() / seconds / 1e9,
        bound,
        // Computed once all rows and both measurements of the ceilings are known.
        pct_of_ceiling: None,
        against,
        cache_resident,
        verified_rel_err: agreement.relative,
        reference_ms: None,
        dense_ms: None,
        peer: None,
        evidence: String::new(),
    }
}

fn reference_millis(call: &Call<'_>) -> f64 {
    let start = Instant::now();
    let outputs = call.reference();
    let millis = start.elapsed().as_secs_f64() * 1e3;
    // The outputs are read so that the compiler cannot remove the work.
    assert!(
        outputs.values().all(|tensor| tensor.first_nan().is_none()),
        "the reference computed NaN"
    );
    millis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_after_the_limit_is_listed_without_a_time() {
        let plan = BenchPlan {
            names: vec!["rmsnorm".to_owned()],
            backend: BackendKind::Cpu,
            size: Size::Quick,
            reference: false,
            sweep: None,
            until: Some(Instant::now()),
        };
        let report = run(&plan, &MatrixResults::without_matrix(), None, |_| ()).unwrap();
        assert!(
            report.rows.is_empty() && report.ceilings.is_empty() && report.not_timed.is_empty()
        );
        assert_eq!(report.not_run.len(), count(&plan));
        assert!(
            report.not_run.iter().all(|left| left.why == OUT_OF_TIME && left.peer == "firstlight")
        );
    }
}
