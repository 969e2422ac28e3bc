//! The parity matrix: every case against every variant that a plan asks for.

use crate::judge::judge_with;
use crate::peers::Peer;
use crate::property::judge_property;
use crate::python::{PeerRun, Session, judge_peer, load};
use crate::references::References;
use crate::{Case, Tier, cases, tolerance};
use device::Device;
use facts::{BackendKind, ParityReport, ParityRow, SCHEMA, Status};
use kernels::{DType, Op, Settings, TensorMap};

/// What to verify.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ops by name; empty for all.
    pub ops: Vec<String>,
    /// Backends, opened or not: an unavailable one gives N/A rows with its reason.
    pub backends: Vec<BackendKind>,
    /// Cases of this tier and the ones before it.
    pub tier: Tier,
    /// Every variant that can run, not only the one selection chooses.
    pub all_variants: bool,
}

/// Kernels of an installed Python stack, to be held against the same references.
pub struct Peers<'a> {
    /// The environment they run in.
    pub session: &'a mut Session,
    /// Which.
    pub peers: &'a [Peer],
    /// Where they run: beside the native kernels of this backend.
    pub backend: BackendKind,
}

impl Peers<'_> {
    /// The same for a shorter while.
    pub fn again(&mut self) -> Peers<'_> {
        Peers { session: self.session, peers: self.peers, backend: self.backend }
    }
}

/// Runs the matrix; `on_row` sees each row as it is done.
pub fn matrix(
    plan: &Plan,
    mut peers: Option<Peers<'_>>,
    mut on_row: impl FnMut(&ParityRow),
) -> ParityReport {
    let mut rows = Vec::new();
    for op in kernels::OPS {
        let name = op.spec().name;
        if !plan.ops.is_empty() && !plan.ops.iter().any(|wanted| wanted == name) {
            continue;
        }
        for backend in &plan.backends {
            match device::open(*backend) {
                Ok(device) if op.variants().iter().any(|(_, here)| here == backend) => {
                    run_op(*op, &device, plan, peers.as_mut(), &mut |row| {
                        on_row(&row);
                        rows.push(row);
                    });
                }
                Ok(_) => {
                    let reason = format!("{name} has no variant for {backend} yet");
                    let status = Status::NotApplicable;
                    let row = blank(name, "-", *backend, DType::F32, status, reason);
                    on_row(&row);
                    rows.push(row);
                }
                Err(unavailable) => {
                    let row = blank(
                        name,
                        "-",
                        *backend,
                        DType::F32,
                        Status::NotApplicable,
                        unavailable.to_string(),
                    );
                    on_row(&row);
                    rows.push(row);
                }
            }
        }
    }
    ParityReport { schema: SCHEMA, rows }
}

fn run_op(
    op: &dyn Op,
    device: &Device,
    plan: &Plan,
    mut peers: Option<&mut Peers<'_>>,
    push: &mut dyn FnMut(ParityRow),
) {
    for case in cases(op.spec().name).iter().filter(|case| case.tier <= plan.tier) {
        run_case(case, device, plan.all_variants, peers.as_deref_mut(), push);
    }
}

/// Runs one case on the variant that selection chooses, and on every other one that can run when `all_variants`.
///
/// Then on the peers of its op, against the same reference. A case that does not bind is a failed row, one that no variant
/// can run an N/A row.
pub fn run_case(
    case: &Case,
    device: &Device,
    all_variants: bool,
    peers: Option<&mut Peers<'_>>,
    push: &mut dyn FnMut(ParityRow),
) {
    let (inputs, settings) = (case.build)();
    let backend = device.capabilities().backend;
    let row =
        |status, reason: String| blank(case.op, &case.name, backend, case.dtype, status, reason);
    let bound = kernels::op(case.op).and_then(|op| Ok((op, op.bind(&inputs, &settings)?)));
    let (op, call) = match bound {
        Ok(bound) => bound,
        Err(error) => {
            return push(row(Status::Fail, format!("the case does not bind: {error}")));
        }
    };
    let mut references = References::of(call.as_ref());
    let variants = match call.select(device, None) {
        Ok(selection) => {
            let others = selection.refused.iter().map(|refusal| refusal.variant);
            let others =
                others.filter(|variant| all_variants && call.select(device, Some(variant)).is_ok());
            std::iter::once(selection.chosen).chain(others).collect()
        }
        Err(error) => {
            push(row(Status::NotApplicable, error.to_string()));
            Vec::new()
        }
    };
    for variant in variants {
        let judgement = match &case.property {
            None => judge_with(&mut references, device, variant).0,
            Some(property) => {
                let given = (&inputs, &settings);
                judge_property(op, given, property, &mut references, device, variant)
            }
        };
        push(ParityRow {
            variant: variant.to_owned(),
            rel_err: judgement.agreement.map(|agreement| agreement.relative),
            max_err: judgement.agreement.map(|agreement| agreement.max),
            launches: judgement.launches,
            millis: judgement.millis,
            ..row(judgement.status, judgement.reason)
        });
    }
    // What several runs have in common is asked of firstlight's own kernels only.
    if let Some(peers) = peers.filter(|peers| peers.backend == backend && case.property.is_none()) {
        run_peers(peers, &mut references, (&inputs, &settings), &row, push);
    }
}

/// A case on every peer of its op.
fn run_peers(
    Peers { session, peers, backend }: &mut Peers<'_>,
    references: &mut References<'_>,
    given: (&TensorMap, &Settings),
    row: &dyn Fn(Status, String) -> ParityRow,
    push: &mut dyn FnMut(ParityRow),
) {
    let call = references.call();
    let mut peers = peers.iter().filter(|peer| peer.op == call.spec().name).peekable();
    if peers.peek().is_none() {
        return;
    }
    if let Err(error) = load(session, call, given, *backend) {
        for peer in peers {
            let failed = row(Status::Fail, error.to_string());
            push(ParityRow { variant: peer.name.clone(), peer: Some(peer.name.clone()), ..failed });
        }
        return;
    }
    for peer in peers {
        let ran = judge_peer(session, peer, references, *backend);
        push(peer_row(peer, ran, row));
    }
}

/// The row of a peer that was judged.
pub(crate) fn peer_row(
    peer: &Peer,
    ran: PeerRun,
    row: &dyn Fn(Status, String) -> ParityRow,
) -> ParityRow {
    let package = if ran.package.is_empty() { peer.name.clone() } else { ran.package };
    ParityRow {
        variant: peer.name.clone(),
        rel_err: ran.judgement.agreement.map(|agreement| agreement.relative),
        max_err: ran.judgement.agreement.map(|agreement| agreement.max),
        launches: ran.judgement.launches,
        millis: ran.judgement.millis,
        peer: Some(package),
        evidence: ran.evidence,
        ..row(ran.judgement.status, ran.judgement.reason)
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
    }
}
