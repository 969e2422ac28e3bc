//! The parity matrix: every case on every requested variant.

mod installed;

pub(crate) use installed::peer_row;

use crate::judge::judge_with;
use crate::peers::Peer;
use crate::property::judge_property;
use crate::python::{Budget, Session};
use crate::references::References;
use crate::{Case, MatrixResults, Tier, cases, tolerance};
use device::{Device, Unavailable};
use facts::{BackendKind, CompactSort, OUT_OF_TIME, ParityReport, ParityRow, SCHEMA, Status};
use ops::{DType, Op};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The cases to verify, and how.
#[derive(Debug, Clone)]
pub struct MatrixPlan {
    /// Ops by name; empty for all of them.
    pub ops: Vec<String>,
    /// Backends, available or not: an unavailable one gives N/A rows with its reason.
    pub backends: Vec<BackendKind>,
    /// Cases up to this tier.
    pub tier: Tier,
    /// Every variant that can run, not only the selected one.
    pub all_variants: bool,
    /// When no further case starts: the remaining ones are SKIP rows. `None` for no limit.
    pub until: Option<Instant>,
}

/// Kernels of an installed Python environment, compared with the same references.
pub struct Peers<'a> {
    /// The environment they run in.
    pub session: &'a mut Session,
    /// Which.
    pub peers: &'a [Peer],
    /// The backend on which they run.
    pub backend: BackendKind,
    /// Time limit of all calls of one peer in a matrix, and of all peers together in a bench; `None` for no limit.
    pub budget: Option<Duration>,
}

impl Peers<'_> {
    /// A shorter borrow of the same peers.
    pub fn reborrow(&mut self) -> Peers<'_> {
        Peers {
            session: self.session,
            peers: self.peers,
            backend: self.backend,
            budget: self.budget,
        }
    }
}

/// An op of the matrix with its cases.
struct OpOnDevice {
    op: &'static dyn Op,
    cases: Vec<Case>,
}

impl OpOnDevice {
    fn name(&self) -> &'static str {
        self.op.spec().name
    }
}

/// The position of a row in the report, independent of the thread and time that make it: indices of the op, of the
/// backend and of the case; native rows before those of peers.
type RowKey = (usize, usize, usize, bool);

/// Runs the matrix; `on_row` is called with each row when it is done. The returned standing admits kernels to timing in
/// the same run.
///
/// Cases run in parallel on all cores, because most time is spent on inputs, references and compilers. Launches do not:
/// a device runs one at a time, so that its counters only count the requested launch. Rows are sorted by op, backend
/// and case.
pub fn matrix(
    plan: &MatrixPlan,
    peers: Option<&Peers<'_>>,
    mut on_row: impl FnMut(&ParityRow),
) -> (ParityReport, MatrixResults) {
    let ops: Vec<OpOnDevice> = planned(plan).map(|op| here(op, plan.tier)).collect();
    let devices: Vec<_> = plan.backends.iter().map(|kind| (*kind, backends::open(*kind))).collect();
    let mut jobs: Vec<(usize, usize)> = ops
        .iter()
        .enumerate()
        .flat_map(|(at, op)| (0..op.cases.len()).map(move |case| (at, case)))
        .collect();
    // Neighboring cases need the same kernels, which one of them compiles, so the ops alternate.
    jobs.compact_sort_by_key(|(op, case)| (case << 16) / ops[*op].cases.len());
    let next = AtomicUsize::new(0);
    let mut rows: BTreeMap<RowKey, Vec<ParityRow>> = BTreeMap::new();
    let (send, made) = channel::<(RowKey, ParityRow)>();
    std::thread::scope(|scope| {
        for place_and_row in absent_backends(&ops, &devices) {
            // The receiver is read below until all senders are dropped.
            let _ = send.send(place_and_row);
        }
        let beside = peers.and_then(|peers| {
            let backend = devices.iter().position(|(kind, _)| *kind == peers.backend)?;
            Some((installed::op_peers(&ops, peers), backend))
        });
        if let Some((op_peers, backend)) = beside {
            let (send, ops) = (send.clone(), &ops);
            scope.spawn(move || {
                installed::run(op_peers, ops, |op, case, row| {
                    let _ = send.send(((op, backend, case, true), row));
                });
            });
        }
        for _ in 0..cores() {
            let (send, ops, devices) = (send.clone(), &ops, &devices);
            let (jobs, next) = (&jobs, &next);
            scope.spawn(move || {
                while let Some((op, case)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let here = &ops[*op];
                    if plan.until.is_some_and(|until| Instant::now() >= until) {
                        for (backend, row) in too_late(here, *case, devices) {
                            let _ = send.send(((*op, backend, *case, false), row));
                        }
                        continue;
                    }
                    let devices = devices.iter().map(|(kind, device)| {
                        device.as_ref().ok().filter(|_| has_variant(here.op, *kind))
                    });
                    native(&here.cases[*case], devices, plan.all_variants, &mut |backend, row| {
                        let _ = send.send(((*op, backend, *case, false), row));
                    });
                }
            });
        }
        drop(send);
        for (place, row) in made {
            on_row(&row);
            rows.entry(place).or_default().push(row);
        }
    });
    let report = ParityReport { schema: SCHEMA, rows: rows.into_values().flatten().collect() };
    let standing = MatrixResults::of(&report);
    (report, standing)
}

/// Number of cases of a matrix; each gives rows on every backend.
pub fn count(plan: &MatrixPlan) -> usize {
    planned(plan).map(|op| here(op, plan.tier).cases.len()).sum()
}

/// The ops of a plan.
fn planned(plan: &MatrixPlan) -> impl Iterator<Item = &'static dyn Op> {
    let named = |op: &&dyn Op| plan.ops.iter().any(|name| name == op.spec().name);
    ops::OPS.iter().copied().filter(move |op| plan.ops.is_empty() || named(op))
}

fn here(op: &'static dyn Op, tier: Tier) -> OpOnDevice {
    let cases = cases(op.spec().name).into_iter().filter(|case| case.tier <= tier).collect();
    OpOnDevice { op, cases }
}

fn has_variant(op: &dyn Op, backend: BackendKind) -> bool {
    backends::variants(op.spec().name).iter().any(|(_, here)| *here == backend)
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A row for each op and unavailable backend.
fn absent_backends(
    ops: &[OpOnDevice],
    devices: &[(BackendKind, Result<Device, Unavailable>)],
) -> Vec<(RowKey, ParityRow)> {
    let mut rows = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        for (backend, (kind, device)) in devices.iter().enumerate() {
            let reason = match device {
                Err(unavailable) => unavailable.to_string(),
                Ok(_) if !has_variant(op.op, *kind) => {
                    format!("{} has no variant for {kind} yet", op.name())
                }
                Ok(_) => continue,
            };
            let row = blank(op.name(), "-", *kind, DType::F32, Status::NotApplicable, reason);
            rows.push(((at, backend, 0, false), row));
        }
    }
    rows
}

/// A row for each device on which a case was not started.
fn too_late<'a>(
    here: &'a OpOnDevice,
    case: usize,
    devices: &'a [(BackendKind, Result<Device, Unavailable>)],
) -> impl Iterator<Item = (usize, ParityRow)> + 'a {
    let Case { op, name, dtype, .. } = &here.cases[case];
    let there = devices.iter().enumerate();
    let there = there.filter(|(_, (kind, it))| it.is_ok() && has_variant(here.op, *kind));
    there.map(move |(at, (kind, _))| {
        (at, blank(op, name, *kind, *dtype, Status::Skip, OUT_OF_TIME.to_owned()))
    })
}

/// Runs one case on the selected variant, and with `all_variants` on every other one that can run, then on the peers of
/// its op, against the same reference. A case that does not bind is a failed row, one that no variant can run an N/A
/// row.
pub fn run_case(
    case: &Case,
    device: &Device,
    all_variants: bool,
    peers: Option<&mut Peers<'_>>,
    push: &mut dyn FnMut(ParityRow),
) {
    native(case, std::iter::once(Some(device)), all_variants, &mut |_, row| push(row));
    let here = device.capabilities().backend;
    if let Some(peers) = peers.filter(|peers| peers.backend == here) {
        let of_op: Vec<&Peer> = peers.peers.iter().filter(|peer| peer.op == case.op).collect();
        let mut budget = Budget::of(peers.budget);
        installed::run_case(peers.session, &of_op, here, &mut budget, case, push);
    }
}

/// One case on each available device against one reference; `push` is called with each row and its device's index.
fn native<'d>(
    case: &Case,
    devices: impl Iterator<Item = Option<&'d Device>>,
    all_variants: bool,
    push: &mut dyn FnMut(usize, ParityRow),
) {
    let (inputs, settings) = (case.build)();
    let bound = ops::op(case.op).and_then(|op| Ok((op, op.bind(&inputs, &settings)?)));
    let mut references = bound.as_ref().ok().map(|(_, call)| References::of(call));
    for (at, device) in devices.enumerate().filter_map(|(at, device)| Some((at, device?))) {
        let backend = device.capabilities().backend;
        let row = |status, reason| blank(case.op, &case.name, backend, case.dtype, status, reason);
        let (Ok((op, call)), Some(references)) = (&bound, &mut references) else {
            if let Err(error) = &bound {
                push(at, row(Status::Fail, format!("the case does not bind: {error}")));
            }
            continue;
        };
        let variants = match call.select(device, None) {
            Ok(selection) => {
                let others = selection.refused.iter().map(|refusal| refusal.variant);
                let can_run = |variant: &&str| call.select(device, Some(*variant)).is_ok();
                let others = others.filter(|variant| all_variants && can_run(variant));
                std::iter::once(selection.chosen).chain(others).collect()
            }
            Err(error) => {
                push(at, row(Status::NotApplicable, error.to_string()));
                Vec::new()
            }
        };
        for variant in variants {
            let judgement = match &case.property {
                None => judge_with(references, device, variant).0,
                Some(property) => {
                    let given = (&inputs, &settings);
                    judge_property(*op, given, property, references, device, variant)
                }
            };
            let native = ParityRow {
                variant: variant.to_owned(),
                rel_err: judgement.agreement.map(|agreement| agreement.relative),
                max_err: judgement.agreement.map(|agreement| agreement.max),
                launches: judgement.launches,
                millis: judgement.millis,
                bits: judgement.bits,
                ..row(judgement.status, judgement.reason)
            };
            push(at, native);
        }
    }
}

pub(crate) fn blank(
    op: &str,
    case: &str,
    backend: BackendKind,
    dtype: DType,
    status: Status,
    reason: String,
) -> ParityRow {
    ParityRow {
        op: op.to_owned(),
        case: case.to_owned(),
        backend,
        variant: String::new(),
        dtype: dtype.to_string(),
        status,
        reason,
        rel_err: None,
        max_err: None,
        tolerance: tolerance(dtype).relative,
        launches: 0,
        millis: 0.0,
        peer: None,
        evidence: String::new(),
        bits: None,
    }
}
