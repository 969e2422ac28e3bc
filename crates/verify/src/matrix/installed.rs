//! Peers of the matrix: each op's peers run in a separate process, several ops in parallel.

use super::{OpOnDevice, Peers, blank};
use crate::peers::Peer;
use crate::python::{Budget, PeerRun, PythonError, Session, judge_peer, load};
use crate::references::References;
use crate::{Case, TensorRng};
use facts::CompactSort;
use facts::{BackendKind, ParityRow, Status};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The peers of an op, and their session.
pub(super) struct InstalledPeers<'a> {
    op: usize,
    peers: Vec<&'a Peer>,
    session: Result<Session, PythonError>,
    backend: BackendKind,
    budget: Budget,
}

/// A team for each op that has peers.
pub(super) fn teams<'a>(ops: &[OpOnDevice], all: &Peers<'a>) -> Vec<InstalledPeers<'a>> {
    let team = |(op, here): (usize, &OpOnDevice)| {
        let peers: Vec<&Peer> = all.peers.iter().filter(|peer| peer.op == here.name()).collect();
        let (backend, budget) = (all.backend, Budget::of(all.budget));
        (!peers.is_empty()).then(|| InstalledPeers {
            op,
            peers,
            session: all.session.concurrent(),
            backend,
            budget,
        })
    };
    ops.iter().enumerate().filter_map(team).collect()
}

/// Runs every team on the cases of its op; `push` is called with each row and the indices of its op and case.
///
/// Compilers of Python packages are single-threaded per process, so half of the cores drive a team each, and the others
/// compute references.
pub(super) fn run(
    teams: Vec<InstalledPeers<'_>>,
    ops: &[OpOnDevice],
    push: impl Fn(usize, usize, ParityRow) + Sync + Send,
) {
    let threads = (super::cores() / 2).clamp(1, teams.len().max(1));
    let waiting = Mutex::new(teams.into_iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(team) = next() {
                    let op = team.op;
                    team.run(&ops[op].cases, &|case, row| push(op, case, row));
                }
            });
        }
    });
}

impl InstalledPeers<'_> {
    fn run(mut self, cases: &[Case], push: &dyn Fn(usize, ParityRow)) {
        for at in covering(cases) {
            let (case, push) = (&cases[at], &mut |row| push(at, row));
            match &mut self.session {
                Ok(session) => {
                    run_case(session, &self.peers, self.backend, &mut self.budget, case, push);
                }
                Err(error) => {
                    let row = row_of(case, self.backend);
                    let failed = |peer: &&Peer| absent(peer, row(Status::Fail, error.to_string()));
                    self.peers.iter().map(failed).for_each(push);
                }
            }
        }
    }
}

/// The order of cases under a time limit: a random one of each kind and storage type, then a second one of each, and so
/// on.
fn covering(cases: &[Case]) -> Vec<usize> {
    let mut draw = TensorRng::named("order of the peers' cases");
    let mut drawn: Vec<(u64, usize)> = (0..cases.len()).map(|at| (draw.bits(), at)).collect();
    drawn.compact_sort();
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut order: Vec<(usize, usize)> = drawn
        .into_iter()
        .map(|(_, at)| {
            let kind = cases[at].name.split('/').next().unwrap_or_default();
            let earlier = seen.entry((kind, cases[at].dtype.as_str())).or_default();
            *earlier += 1;
            (*earlier, at)
        })
        .collect();
    order.compact_sort_by_key(|(nth, _)| *nth);
    order.into_iter().map(|(_, at)| at).collect()
}

/// Runs a case on peers of its op, in their order.
pub(super) fn run_case(
    session: &mut Session,
    peers: &[&Peer],
    backend: BackendKind,
    budget: &mut Budget,
    case: &Case,
    push: &mut dyn FnMut(ParityRow),
) {
    // Properties of several runs are only tested for firstlight's own kernels.
    if case.property.is_some() || peers.is_empty() {
        return;
    }
    let row = row_of(case, backend);
    let refusal = |peer: &&Peer| {
        let cannot = session.refuses(peer, backend);
        cannot.or_else(|| Some((Status::NotRun, budget.spent_by(peer)?)))
    };
    let refusals: Vec<Option<(Status, String)>> = peers.iter().map(refusal).collect();
    if refusals.iter().all(Option::is_some) {
        for (peer, (status, reason)) in peers.iter().zip(refusals.into_iter().flatten()) {
            push(absent(peer, row(status, reason)));
        }
        return;
    }
    let (inputs, settings) = (case.build)();
    let Ok(call) = ops::op(case.op).and_then(|op| op.bind(&inputs, &settings)) else {
        // The native row has the reason.
        return;
    };
    let mut references = References::of(&call);
    let loaded = load(session, &call, (&inputs, &settings), backend);
    for (peer, refusal) in peers.iter().zip(refusals) {
        push(match (&loaded, refusal) {
            (_, Some((status, reason))) => absent(peer, row(status, reason)),
            (Err(error), None) => absent(peer, row(Status::Fail, error.to_string())),
            (Ok(()), None) => {
                let ran = budget.check(peer, session, |session| {
                    judge_peer(session, peer, &mut references, backend)
                });
                peer_row(peer, ran, &row)
            }
        });
    }
}

fn row_of(case: &Case, backend: BackendKind) -> impl Fn(Status, String) -> ParityRow {
    move |status, reason| blank(case.op, &case.name, backend, case.dtype, status, reason)
}

/// The row of a peer that was not run.
fn absent(peer: &Peer, row: ParityRow) -> ParityRow {
    ParityRow { variant: peer.name.clone(), peer: Some(peer.name.clone()), ..row }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_and_storage_type_comes_before_a_second_of_any() {
        for crate::OpCases { op, cases, .. } in crate::CASES {
            let cases = cases();
            let order = covering(&cases);
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), cases.len(), "{op}");
            let kind = |at: &usize| (cases[*at].name.split('/').next(), cases[*at].dtype);
            let kinds: BTreeSet<_> = order.iter().map(kind).collect();
            let first: BTreeSet<_> = order[..kinds.len()].iter().map(kind).collect();
            assert_eq!(first, kinds, "{op}");
            assert_eq!(covering(&cases), order, "the same order each time");
        }
    }
}
