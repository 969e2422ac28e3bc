//! One bench run: ceilings, then every workload that can be verified.

use crate::allowance::Allowance;
use crate::held::{Limit, faster, hold};
use crate::peers::{Contest, Guests, Match, ROUNDS, Runner, have_peers, of_backend};
use crate::workloads::{OpWorkloads, Task, WORKLOADS};
use crate::{BenchError, Samples, Sweep, ceilings, dense, time, time_steps};
use device::{Caches, Device};
use facts::{
    BackendKind, BenchReport, BenchRow, CeilingKind, CeilingTwice, Ceilings, Conditions, Meanwhile,
    Moment, NotRunTiming, SCHEMA,
};
use kernels::{Call, Op, OpError, Problem, Settings, TensorMap, op};
use std::time::{Duration, Instant};
use verify::{Agreement, Drawn, OUT_OF_TIME, Peers, Standing, Verified};

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
    /// Shapes in place of the listed cases.
    pub sweep: Option<Sweep>,
    /// When no further workload begins: [`BenchReport::not_run`] has those that are left. `None` for as long as it takes.
    pub until: Option<Instant>,
}

impl Plan {
    fn too_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What a run is at, for whoever watches it.
#[derive(Debug)]
pub enum Step<'a> {
    /// A kernel is about to be checked and timed.
    Begins {
        /// `kda prefill-2048 bf16`.
        case: &'a str,
        /// An installed kernel by its name; firstlight's own without one.
        peer: Option<&'a str>,
        /// What is left of the time of this op's installed kernels, where it has an end.
        left: Option<Duration>,
    },
    /// The ceilings are measured once more.
    Ceilings,
    /// A workload is done: all that there is so far.
    Done(&'a BenchReport),
}

/// Seed of the sampled check, kept fixed so that two runs check the same part.
pub(crate) const SEED: u64 = 20_261_121;

/// Measures the ceilings and every workload; `on` is told of each step. A call is admitted by `standing`: a
/// variant that failed a check of its matrix, or passed none, is not timed.
///
/// # Errors
/// [`BenchError`] for an unknown name or an unavailable backend. A workload that fails its check is no error: it has
/// no row, and [`BenchReport::not_timed`] says why.
pub fn run(
    plan: &Plan,
    standing: &Standing,
    mut peers: Option<Peers<'_>>,
    mut on: impl FnMut(Step<'_>),
) -> Result<BenchReport, BenchError> {
    for name in &plan.names {
        let known = WORKLOADS.iter().map(|of| of.op).chain(["decode"]).collect::<Vec<_>>();
        if !known.contains(&name.as_str()) {
            return Err(BenchError::Unknown { name: name.clone(), known });
        }
    }
    let device = device::open(plan.backend)?;
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
    let visited = |op: &&str| peers.as_ref().is_some_and(|peers| have_peers(peers, op));
    let visited: Vec<&str> = ops.iter().map(|(op, _)| *op).filter(visited).collect();
    let limit = peers.as_ref().and_then(|peers| peers.budget);
    let mut time = Allowance::of(limit, visited.len());
    let caches = Caches::of(&device);
    let context = Context { device: &device, plan, standing, budget, ceilings: &before, caches };
    // The op with the most peers and the most calls is listed first and measured last: it takes what others leave over.
    for (op, tasks) in ops.iter().rev() {
        if visited.contains(op)
            && let Some(peers) = peers.as_deref_mut()
        {
            Guests { peers, time: &mut time }.ready(op);
            time.begin(op);
        }
        let mut at = 0;
        for task in tasks {
            if plan.too_late() {
                report.not_run.push(unreached(op, task));
                continue;
            }
            let guests = peers.as_deref_mut().map(|peers| Guests { peers, time: &mut time });
            let rows = measure(op, task, &context, guests, &mut report, &mut on);
            let count = rows.len();
            report.rows.splice(at..at, rows);
            at += count;
            report.ceilings = vec![hold(&before, &mut report.rows)];
            on(Step::Done(&report));
        }
    }
    on(Step::Ceilings);
    // Once the time is spent they would only be measured for longer than there is.
    let after = if plan.too_late() { None } else { Some(ceilings(&device, budget / 2)?) };
    report.conditions = vec![twice(&before, after.as_ref())];
    let best = match &after {
        Some(after) => faster(before, after),
        None => before,
    };
    report.ceilings = vec![hold(&best, &mut report.rows)];
    Ok(report)
}

/// Each ceiling before and after, where it was measured twice. What else went on, whoever called this knows.
fn twice(before: &Ceilings, after: Option<&Ceilings>) -> Conditions {
    let both = |ceiling: CeilingKind| {
        let (before, after) = (before.rate(ceiling)?, after?.rate(ceiling)?);
        Some(CeilingTwice { ceiling, before, after })
    };
    Conditions {
        backend: before.backend,
        before: Moment::default(),
        after: Moment::default(),
        meanwhile: Meanwhile::default(),
        ceilings: CeilingKind::ALL.into_iter().filter_map(both).collect(),
    }
}

/// A workload that was not begun.
fn unreached(op: &str, task: &Task<'_>) -> NotRunTiming {
    NotRunTiming {
        case: format!("{op} {} {}", task.case, task.dtype),
        peer: "firstlight".to_owned(),
        why: OUT_OF_TIME.to_owned(),
    }
}

/// How long the samples of a workload are taken.
pub fn budget(size: Size, backend: BackendKind) -> Duration {
    Duration::from_millis(match (size, backend) {
        (Size::Quick, _) => 250,
        // Forty samples of ten milliseconds: with more, a check of a machine that has two cores alone takes over a minute.
        (Size::Standard, BackendKind::Cpu) => 400,
        // A GPU is not shared with the rest of the machine: its samples spread less.
        (Size::Standard, _) => 500,
    })
}

/// How many workloads a plan has.
pub fn count(plan: &Plan) -> usize {
    WORKLOADS.iter().map(|of| tasks(plan, of).len()).sum()
}

/// What a plan times of an op. The first decode step comes second, so that it has been timed where peers' time ends before
/// everything was.
pub(crate) fn tasks<'a>(plan: &'a Plan, of: &OpWorkloads) -> Vec<Task<'a>> {
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

/// What every measurement of a run shares.
struct Context<'a> {
    device: &'a Device,
    plan: &'a Plan,
    standing: &'a Standing,
    budget: Duration,
    ceilings: &'a Ceilings,
    caches: Caches,
}

/// The rows of one task: firstlight's own kernel and each peer, all checked first, then timed in turns.
fn measure(
    name: &str,
    task: &Task<'_>,
    context: &Context<'_>,
    mut guests: Option<Guests<'_, '_>>,
    report: &mut BenchReport,
    on: &mut dyn FnMut(Step<'_>),
) -> Vec<BenchRow> {
    let case = format!("{name} {} {}", task.case, task.dtype);
    on(Step::Begins { case: &case, peer: None, left: None });
    let (inputs, settings) = (task.build)(task.dtype);
    let bound = bind(name, &inputs, &settings);
    let (op, call) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            report.not_timed.push(format!("{case}: {error}"));
            return Vec::new();
        }
    };
    let (call, given) = (call.as_ref(), (&inputs, &settings));
    let budget = context.budget;
    let drawn = &mut Drawn::of(op, given, SEED);
    let mut contest = match &mut guests {
        Some(guests) => {
            let (inputs, settings) = given;
            Contest::admit(guests, Match { case: &case, call, inputs, settings, drawn, budget }, on)
        }
        None => Contest::default(),
    };
    let dense_given = if task.is_step() { dense::of(op, &inputs, &settings) } else { None };
    let dense = dense_given.as_ref().map(|(inputs, settings)| bind(dense::OP, inputs, settings));
    let mut own = admitted(call, drawn, context);
    let mut beside = match (&dense, &dense_given) {
        (Some(Ok((op, call))), Some((inputs, settings))) => {
            let drawn = &mut Drawn::of(*op, (inputs, settings), SEED);
            Some(admitted(call.as_ref(), drawn, context))
        }
        (Some(Err(error)), _) => Some(Err(error.to_string())),
        _ => None,
    };
    let rounds = if contest.runners.is_empty() && beside.is_none() { 1 } else { ROUNDS };
    let budget = context.budget / rounds;
    for _ in 0..rounds {
        for runner in std::iter::once(&mut own).chain(&mut beside) {
            if let Ok(timed) = runner
                && let Err(why) = timed.round(task.is_step(), budget)
            {
                *runner = Err(why);
            }
        }
        if let Some(guests) = &mut guests {
            contest.round(guests, task.is_step(), budget);
        }
    }
    if let Some(guests) = &mut guests {
        contest.confirm(guests);
    }
    let row = |timed: Timed<'_>| row(name, task, call.problem(), context, timed);
    let mut rows = Vec::new();
    match own {
        Ok(own) => rows.push(BenchRow {
            reference_ms: (context.plan.reference && task.recurrent)
                .then(|| reference_millis(call)),
            dense_ms: beside.as_ref().and_then(|dense| Some(dense.as_ref().ok()?.samples.median())),
            ..row(own.timed())
        }),
        Err(why) => report.not_timed.push(format!("{case}: {why}")),
    }
    match (&beside, &dense) {
        (Some(Ok(own)), Some(Ok((_, call)))) => {
            rows.push(dense_row(task, name, call.problem(), context, own))
        }
        (Some(Err(why)), _) => {
            report.not_timed.push(format!("{case}, dense attention beside it: {why}"));
        }
        _ => {}
    }
    for Runner { peer, samples, replays } in &contest.runners {
        rows.push(BenchRow {
            peer: Some(peer.package().to_owned()),
            evidence: peer.evidence().to_owned(),
            ..row(Timed {
                variant: peer.name(),
                samples,
                replays: *replays,
                agreement: peer.agreement(),
            })
        });
    }
    report.not_timed.extend(contest.refused.iter().map(|why| format!("{case}: {why}")));
    report.not_applicable.extend(contest.not_applicable.iter().map(|why| format!("{case}: {why}")));
    report.not_run.extend(contest.not_run);
    rows
}

/// firstlight's own kernel of a task, with its times so far.
struct Own<'a> {
    variant: &'static str,
    verified: Verified<'a>,
    samples: Samples,
    replays: u32,
}

pub(crate) type BoundCall<'a> = (&'static dyn Op, Box<dyn Call + 'a>);

pub(crate) fn bind<'a>(
    name: &str,
    inputs: &'a TensorMap,
    settings: &Settings,
) -> Result<BoundCall<'a>, OpError> {
    let op = op(name)?;
    Ok((op, op.bind(inputs, settings)?))
}

fn admitted<'a>(
    call: &'a dyn Call,
    drawn: &mut Drawn<'_>,
    context: &Context<'a>,
) -> Result<Own<'a>, String> {
    let device = context.device;
    let variant = call.select(device, None).map_err(|error| error.to_string())?.chosen;
    let verified = context.standing.admit(call, drawn, device, variant)?;
    Ok(Own { variant, verified, samples: Samples::default(), replays: 1 })
}

/// What a row says of a kernel that was timed.
struct Timed<'a> {
    variant: &'a str,
    samples: &'a Samples,
    replays: u32,
    agreement: Agreement,
}

impl Own<'_> {
    fn timed(&self) -> Timed<'_> {
        Timed {
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

/// The row of dense attention beside a step of `name`, under its own op.
fn dense_row(
    task: &Task<'_>,
    name: &str,
    problem: &dyn Problem,
    context: &Context<'_>,
    own: &Own<'_>,
) -> BenchRow {
    BenchRow {
        case: format!("{}-of-{name}", task.case),
        ..row(dense::OP, task, problem, context, own.timed())
    }
}

/// A row of firstlight's own kernel; a peer's differs in whose it is.
fn row(
    name: &str,
    task: &Task<'_>,
    problem: &dyn Problem,
    context: &Context<'_>,
    Timed { variant, samples, replays, agreement }: Timed<'_>,
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
        // Known once all rows and both measurements of the ceilings are.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_begun_too_late_is_listed_and_has_no_time() {
        let plan = Plan {
            names: vec!["rmsnorm".to_owned()],
            backend: BackendKind::Cpu,
            size: Size::Quick,
            reference: false,
            sweep: None,
            until: Some(Instant::now()),
        };
        let report = run(&plan, &Standing::without_matrix(), None, |_| ()).unwrap();
        assert!(
            report.rows.is_empty() && report.ceilings.is_empty() && report.not_timed.is_empty()
        );
        assert_eq!(report.not_run.len(), count(&plan));
        assert!(
            report.not_run.iter().all(|left| left.why == OUT_OF_TIME && left.peer == "firstlight")
        );
    }
}
