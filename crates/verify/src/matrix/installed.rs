//! Installed kernels beside the native ones: each op's in a process of their own, several ops at a time.

use super::{Here, Peers, blank};
use crate::peers::Peer;
use crate::python::{Budget, PeerRun, PythonError, Session, judge_peer, load};
use crate::references::References;
use crate::{Case, Draw};
use facts::CompactSort;
use facts::{BackendKind, ParityRow, Status};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The peers of an op, and the session that they are asked in.
pub(super) struct Team<'a> {
    op: usize,
    peers: Vec<&'a Peer>,
    session: Result<Session, PythonError>,
    backend: BackendKind,
    budget: Budget,
}

/// A team for each op that has peers.
pub(super) fn teams<'a>(ops: &[Here], all: &Peers<'a>) -> Vec<Team<'a>> {
    let team = |(op, here): (usize, &Here)| {
        let peers: Vec<&Peer> = all.peers.iter().filter(|peer| peer.op == here.name()).collect();
        let (backend, budget) = (all.backend, Budget::of(all.budget));
        (!peers.is_empty()).then(|| Team {
            op,
            peers,
            session: all.session.beside(),
            backend,
            budget,
        })
    };
    ops.iter().enumerate().filter_map(team).collect()
}

/// Runs every team on the cases of its op; `push` sees each row with the indices of its op and its case.
///
/// Compilers of Python packages run one at a time in a process, so half of the cores each drive a team, and leave the
/// others to the references.
pub(super) fn run(
    teams: Vec<Team<'_>>,
    ops: &[Here],
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

impl Team<'_> {
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

/// The order in which cases are asked for when time may run out: of each kind and storage type a drawn one, then of each a
/// second, and so on.
fn covering(cases: &[Case]) -> Vec<usize> {
    let mut draw = Draw::named("order of the peers' cases");
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

/// A case on peers of its op, in their order.
pub(super) fn run_case(
    session: &mut Session,
    peers: &[&Peer],
    backend: BackendKind,
    budget: &mut Budget,
    case: &Case,
    push: &mut dyn FnMut(ParityRow),
) {
    // What several runs have in common is asked of firstlight's own kernels only.
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
    let Ok(call) = kernels::op(case.op).and_then(|op| op.bind(&inputs, &settings)) else {
        // The native row says why.
        return;
    };
    let mut references = References::of(call.as_ref());
    let loaded = load(session, call.as_ref(), (&inputs, &settings), backend);
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

/// The row of a peer that was not asked.
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
