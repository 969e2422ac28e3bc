//! Times installed Python kernels interleaved with firstlight's own, so that a warm or throttled GPU affects all of
//! them.

use crate::Samples;
use crate::peer_budget::PeerBudget;
use crate::run::Step;
use crate::timing::REPLAYS;
use facts::{BackendKind, SkippedTiming, Status};
use ops::{Call, Settings, TensorMap};
use std::time::Duration;
use verify::{
    Peer, PeerRefusal, Peers, SampledCall, Session, VerifiedPeer, admit_peer, load_peer_case,
};

/// The peers of a run and their time limit.
pub(crate) struct PeerTimer<'a, 'p> {
    pub(crate) peers: &'a mut Peers<'p>,
    pub(crate) time: &'a mut PeerBudget,
}

impl PeerTimer<'_, '_> {
    /// Starts a process that has imported the packages of an op's peers, at no op's expense. If that fails, the next
    /// call reports why.
    pub(crate) fn ready(&mut self, op: &str) {
        let Peers { session, peers, .. } = &mut *self.peers;
        let of_op = peers.iter().filter(|peer| peer.op == op);
        let _ = self.time.spend_shared(|| session.ready(of_op));
    }
}

/// A workload for peers.
pub(crate) struct PeerWorkload<'m, 'a> {
    /// `kda prefill-2048 bf16`.
    pub(crate) case: &'m str,
    pub(crate) call: &'a Call<'a>,
    pub(crate) inputs: &'a TensorMap,
    pub(crate) settings: &'a Settings,
    /// The sampled part that they are verified on.
    pub(crate) sampled: &'m mut SampledCall<'a>,
    /// Time for all rounds of a peer together.
    pub(crate) budget: Duration,
}

/// The results of a workload's peers.
#[derive(Default)]
pub(crate) struct PeerTimings {
    /// As [`PeerWorkload::case`].
    case: String,
    pub(crate) runners: Vec<TimedPeer>,
    /// Failures, fallbacks and skips: `name: why`.
    pub(crate) refused: Vec<String>,
    /// Calls that a peer does not support: `name: why`.
    pub(crate) not_applicable: Vec<String>,
    /// Peers that were not run for lack of time.
    pub(crate) not_run: Vec<SkippedTiming>,
}

/// A verified peer with its times so far.
pub(crate) struct TimedPeer {
    pub(crate) peer: VerifiedPeer,
    pub(crate) samples: Samples,
    pub(crate) replays: u32,
}

/// Minimum samples per peer and round.
const FEWEST: usize = 2;
/// Minimum time of a peer's measurement once it has started: killing it also ends the others' measurements.
const GRACE: Duration = Duration::from_secs(3);

impl PeerTimings {
    /// Verifies every peer of the op on the workload's inputs, as far as there is time; `on` is called for each.
    pub(crate) fn admit(
        timer: &mut PeerTimer<'_, '_>,
        mut given: PeerWorkload<'_, '_>,
        on: &mut dyn FnMut(Step<'_>),
    ) -> Self {
        let mut timings = Self { case: given.case.to_owned(), ..Self::default() };
        let (name, backend) = (given.call.spec().name, timer.peers.backend);
        let all = timer.peers.peers;
        let mut wanted: Vec<&Peer> = all.iter().filter(|peer| peer.op == name).collect();
        // Inputs may have gigabytes: they are only written if some peer takes them.
        wanted.retain(|peer| {
            let cannot = timer.peers.session.refuses(peer, backend);
            let refusal =
                cannot.or_else(|| Some((Status::NotRun, timer.time.refusal(peer, given.budget)?)));
            let Some((status, reason)) = refusal else { return true };
            timings.out(&peer.name, status, &reason);
            false
        });
        if wanted.is_empty() {
            return timings;
        }
        let time = timer.time.left();
        let loaded = timer.time.spend(time, timer.peers.session, |session| {
            load_peer_case(session, given.call, (given.inputs, given.settings), backend)
        });
        if let Err(error) = loaded {
            let reason = error.to_string();
            for peer in wanted {
                timings.out(&peer.name, error.status(), &reason);
            }
            return timings;
        }
        for peer in &wanted {
            on(Step::Begins { case: given.case, peer: Some(&peer.name), left: timer.time.left() });
            timings.ask(timer, peer, &mut given);
        }
        // A process that ended took its verified peers with it: they are verified again in the next one.
        let held = |runner: &TimedPeer| runner.peer.is_held_by(timer.peers.session);
        let (held, lost): (_, Vec<TimedPeer>) = timings.runners.drain(..).partition(held);
        timings.runners = held;
        for peer in wanted {
            if lost.iter().any(|runner| runner.peer.name() == peer.name) {
                timings.ask(timer, peer, &mut given);
            }
        }
        timings
    }

    /// Verifies a peer, as far as there is time in addition to timing those that have passed.
    fn ask(
        &mut self,
        timer: &mut PeerTimer<'_, '_>,
        peer: &Peer,
        given: &mut PeerWorkload<'_, '_>,
    ) {
        let reserved = given.budget * (1 + self.runners.len() as u32);
        if let Some(why) = timer.time.refusal(peer, reserved) {
            return self.out(&peer.name, Status::NotRun, &why);
        }
        let (time, backend) = (timer.time.call_limit(reserved), timer.peers.backend);
        let admitted = timer.time.spend(time, timer.peers.session, |session| {
            admit_peer(session, peer, given.call, given.sampled, backend)
        });
        match admitted {
            Ok(peer) => {
                self.runners.push(TimedPeer { peer, samples: Samples::default(), replays: 1 });
            }
            Err(PeerRefusal { status, reason }) => {
                self.out(&peer.name, status, &reason);
                if status == Status::NotRun {
                    timer.time.exclude(&peer.name);
                    // The process was killed.
                    timer.ready(given.call.spec().name);
                }
            }
        }
    }

    /// One round: times each remaining peer for about `budget`. A peer that fails is excluded.
    pub(crate) fn round(&mut self, timer: &mut PeerTimer<'_, '_>, is_step: bool, budget: Duration) {
        let replays = if is_step { REPLAYS } else { 0 };
        self.each(timer, |runner, session| {
            let (samples, replays) = runner.peer.time(session, budget, FEWEST, replays)?;
            runner.samples.extend(samples);
            runner.replays = replays;
            Ok(())
        });
    }

    /// Checks the kernels that run once more: only a peer whose own kernels still run keeps its times.
    pub(crate) fn confirm(&mut self, timer: &mut PeerTimer<'_, '_>) {
        self.each(timer, |runner, session| runner.peer.confirm(session));
    }

    /// Calls each remaining peer within the remaining time; one that fails is excluded.
    fn each(
        &mut self,
        timer: &mut PeerTimer<'_, '_>,
        mut ask: impl FnMut(&mut TimedPeer, &mut Session) -> Result<(), PeerRefusal>,
    ) {
        for mut runner in std::mem::take(&mut self.runners) {
            let time = timer.time.left().map(|left| left.max(GRACE));
            let asked =
                timer.time.spend(time, timer.peers.session, |session| ask(&mut runner, session));
            match asked {
                Ok(()) => self.runners.push(runner),
                Err(PeerRefusal { status, reason }) => {
                    self.out(runner.peer.name(), status, &reason);
                }
            }
        }
    }

    /// Records why a peer has no time.
    fn out(&mut self, name: &str, status: Status, reason: &str) {
        let said = match status {
            Status::NotRun => {
                return self.not_run.push(SkippedTiming {
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

/// Number of rounds in which kernels are timed alternately.
pub(crate) const ROUNDS: u32 = 4;

/// The peers, if they run on the same backend as the kernels.
pub(crate) fn of_backend<'a, 'p>(
    peers: Option<&'a mut Peers<'p>>,
    backend: BackendKind,
) -> Option<&'a mut Peers<'p>> {
    peers.filter(|peers| peers.backend == backend)
}

/// Whether some peer could run a call of an op.
pub(crate) fn have_peers(peers: &Peers<'_>, op: &str) -> bool {
    let runs = |peer: &Peer| peers.session.refuses(peer, peers.backend).is_none();
    peers.peers.iter().any(|peer| peer.op == op && runs(peer))
}

#[cfg(test)]
mod tests;
