//! Installed Python kernels timed beside firstlight's own, in turns, so that a warm or throttled GPU is so for all of them.

use crate::Samples;
use crate::allowance::Allowance;
use crate::run::Step;
use crate::timing::REPLAYS;
use facts::{BackendKind, NotRunTiming, Status};
use kernels::{Call, Settings, TensorMap};
use std::time::Duration;
use verify::{Drawn, Peer, PeerRefusal, Peers, Session, VerifiedPeer, admit_peer, load_peer_case};

/// The peers of a run and their time.
pub(crate) struct Guests<'a, 'p> {
    pub(crate) peers: &'a mut Peers<'p>,
    pub(crate) time: &'a mut Allowance,
}

impl Guests<'_, '_> {
    /// Has a process that knows the packages of an op's peers, which is nothing that the op pays for. If there is none, the
    /// next call says why.
    pub(crate) fn ready(&mut self, op: &str) {
        let Peers { session, peers, .. } = &mut *self.peers;
        let of_op = peers.iter().filter(|peer| peer.op == op);
        let _ = self.time.spend_of_all(|| session.ready(of_op));
    }
}

/// A workload as peers are given it.
pub(crate) struct Match<'m, 'a> {
    /// `kda prefill-2048 bf16`.
    pub(crate) case: &'m str,
    pub(crate) call: &'a dyn Call,
    pub(crate) inputs: &'a TensorMap,
    pub(crate) settings: &'a Settings,
    /// What they are held against.
    pub(crate) drawn: &'m mut Drawn<'a>,
    /// For all rounds of a peer together.
    pub(crate) budget: Duration,
}

/// What became of a workload's peers.
#[derive(Default)]
pub(crate) struct Contest {
    /// As [`Match::case`].
    case: String,
    pub(crate) runners: Vec<Runner>,
    /// Failures, fallbacks and skips: `name: why`.
    pub(crate) refused: Vec<String>,
    /// Calls that a peer has no form of: `name: why`.
    pub(crate) not_applicable: Vec<String>,
    /// Peers for which no time was left.
    pub(crate) not_run: Vec<NotRunTiming>,
}

/// A peer that passed, with its times so far.
pub(crate) struct Runner {
    pub(crate) peer: VerifiedPeer,
    pub(crate) samples: Samples,
    pub(crate) replays: u32,
}

/// Fewest samples that a peer takes in a round.
const FEWEST: usize = 2;
/// What a peer's timing may take at least, when it has begun: one that is killed takes the others' times along.
const GRACE: Duration = Duration::from_secs(3);

impl Contest {
    /// Checks every peer of the op on the workload's inputs, as far as there is time; `on` is told of each.
    pub(crate) fn admit(
        guests: &mut Guests<'_, '_>,
        mut given: Match<'_, '_>,
        on: &mut dyn FnMut(Step<'_>),
    ) -> Self {
        let mut contest = Self { case: given.case.to_owned(), ..Self::default() };
        let (name, backend) = (given.call.spec().name, guests.peers.backend);
        let all = guests.peers.peers;
        let mut wanted: Vec<&Peer> = all.iter().filter(|peer| peer.op == name).collect();
        // Inputs may be gigabytes: they are handed over where somebody takes them.
        wanted.retain(|peer| {
            let cannot = guests.peers.session.refuses(peer, backend);
            let refusal =
                cannot.or_else(|| Some((Status::NotRun, guests.time.refuses(peer, given.budget)?)));
            let Some((status, reason)) = refusal else { return true };
            contest.out(&peer.name, status, &reason);
            false
        });
        if wanted.is_empty() {
            return contest;
        }
        let time = guests.time.left();
        let loaded = guests.time.spend(time, guests.peers.session, |session| {
            load_peer_case(session, given.call, (given.inputs, given.settings), backend)
        });
        if let Err(error) = loaded {
            let reason = error.to_string();
            for peer in wanted {
                contest.out(&peer.name, error.status(), &reason);
            }
            return contest;
        }
        for peer in &wanted {
            on(Step::Begins { case: given.case, peer: Some(&peer.name), left: guests.time.left() });
            contest.ask(guests, peer, &mut given);
        }
        // A process that ended took those along that it held: they are asked again, in the one after it.
        let held = |runner: &Runner| runner.peer.is_held_by(guests.peers.session);
        let (held, lost): (_, Vec<Runner>) = contest.runners.drain(..).partition(held);
        contest.runners = held;
        for peer in wanted {
            if lost.iter().any(|runner| runner.peer.name() == peer.name) {
                contest.ask(guests, peer, &mut given);
            }
        }
        contest
    }

    /// Checks a peer, as far as there is time beside the timing of those that have passed.
    fn ask(&mut self, guests: &mut Guests<'_, '_>, peer: &Peer, given: &mut Match<'_, '_>) {
        let kept = given.budget * (1 + self.runners.len() as u32);
        if let Some(why) = guests.time.refuses(peer, kept) {
            return self.out(&peer.name, Status::NotRun, &why);
        }
        let (time, backend) = (guests.time.part(kept), guests.peers.backend);
        let admitted = guests.time.spend(time, guests.peers.session, |session| {
            admit_peer(session, peer, given.call, given.drawn, backend)
        });
        match admitted {
            Ok(peer) => {
                self.runners.push(Runner { peer, samples: Samples::default(), replays: 1 });
            }
            Err(PeerRefusal { status, reason }) => {
                self.out(&peer.name, status, &reason);
                if status == Status::NotRun {
                    guests.time.is_out(&peer.name);
                    // The process was killed.
                    guests.ready(given.call.spec().name);
                }
            }
        }
    }

    /// One round: each peer that is left for about `budget`. A peer that breaks is out.
    pub(crate) fn round(&mut self, guests: &mut Guests<'_, '_>, is_step: bool, budget: Duration) {
        let replays = if is_step { REPLAYS } else { 0 };
        self.each(guests, |runner, session| {
            let (samples, replays) = runner.peer.time(session, budget, FEWEST, replays)?;
            runner.samples.extend(samples);
            runner.replays = replays;
            Ok(())
        });
    }

    /// Looks once more at what runs: only a peer that is still itself keeps its times.
    pub(crate) fn confirm(&mut self, guests: &mut Guests<'_, '_>) {
        self.each(guests, |runner, session| runner.peer.confirm(session));
    }

    /// Asks each peer that is left, within what is left of the time; one that does not answer well is out.
    fn each(
        &mut self,
        guests: &mut Guests<'_, '_>,
        mut ask: impl FnMut(&mut Runner, &mut Session) -> Result<(), PeerRefusal>,
    ) {
        for mut runner in std::mem::take(&mut self.runners) {
            let time = guests.time.left().map(|left| left.max(GRACE));
            let asked =
                guests.time.spend(time, guests.peers.session, |session| ask(&mut runner, session));
            match asked {
                Ok(()) => self.runners.push(runner),
                Err(PeerRefusal { status, reason }) => {
                    self.out(runner.peer.name(), status, &reason);
                }
            }
        }
    }

    /// Says of a peer why it has no time.
    fn out(&mut self, name: &str, status: Status, reason: &str) {
        let said = match status {
            Status::NotRun => {
                return self.not_run.push(NotRunTiming {
                    case: self.case.clone(),
                    peer: name.to_owned(),
                    why: reason.to_owned(),
                });
            }
            Status::NotApplicable => &mut self.not_applicable,
            _ => &mut self.refused,
        };
        said.push(format!("{name}: {status}, {reason}"));
    }
}

/// Rounds in which kernels take turns.
pub(crate) const ROUNDS: u32 = 4;

/// Where peers run must be where the kernels beside them run.
pub(crate) fn of_backend<'a, 'p>(
    peers: Option<&'a mut Peers<'p>>,
    backend: BackendKind,
) -> Option<&'a mut Peers<'p>> {
    peers.filter(|peers| peers.backend == backend)
}

/// Whether any of the peers could run a call of an op.
pub(crate) fn have_peers(peers: &Peers<'_>, op: &str) -> bool {
    let runs = |peer: &Peer| peers.session.refuses(peer, peers.backend).is_none();
    peers.peers.iter().any(|peer| peer.op == op && runs(peer))
}

#[cfg(test)]
mod tests;
