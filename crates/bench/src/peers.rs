//! Installed Python kernels timed beside firstlight's own, in turns, so that a warm or throttled GPU is so for all of them.

use crate::Samples;
use crate::timing::REPLAYS;
use facts::{BackendKind, Status};
use kernels::{Call, Op, Settings, TensorMap};
use std::time::Duration;
use verify::{Budget, Peers, VerifiedPeer, admit_peer, load_peer_case};

/// What became of a workload's peers.
#[derive(Default)]
pub(crate) struct Contest {
    pub(crate) runners: Vec<Runner>,
    /// Failures, fallbacks and skips: `name: why`.
    pub(crate) refused: Vec<String>,
    /// Calls that a peer has no form of.
    pub(crate) not_applicable: Vec<String>,
}

/// A peer that passed, with its times so far.
pub(crate) struct Runner {
    pub(crate) peer: VerifiedPeer,
    pub(crate) samples: Samples,
    pub(crate) replays: u32,
}

/// Fewest samples that a peer takes in a round.
const FEWEST: usize = 2;

impl Contest {
    /// Checks every peer of the op on the workload's inputs.
    pub(crate) fn admit(
        (peers, budget): (&mut Peers<'_>, &mut Budget),
        (op, call): (&dyn Op, &dyn Call),
        given: (&TensorMap, &Settings),
        seed: u64,
    ) -> Self {
        let mut contest = Self::default();
        let (name, backend) = (op.spec().name, peers.backend);
        let mut wanted: Vec<_> = peers.peers.iter().filter(|peer| peer.op == name).collect();
        // Inputs may be gigabytes: they are handed over where somebody takes them.
        wanted.retain(|peer| {
            let refusal = peers.session.refuses(peer, backend);
            let line = match (refusal, budget.spent_by(peer)) {
                (Some(why), _) => format!("{}: {}, {why}", peer.name, Status::NotApplicable),
                (None, Some(why)) => format!("{}: {why}", peer.name),
                (None, None) => return true,
            };
            contest.not_applicable.push(line);
            false
        });
        if wanted.is_empty() {
            return contest;
        }
        if let Err(error) = load_peer_case(peers.session, call, given, backend) {
            contest.refused.push(format!("no peer: {error}"));
            return contest;
        }
        for peer in wanted {
            let admitted = budget.check(peer, peers.session, |session| {
                admit_peer(session, peer, (op, call), given, backend, seed)
            });
            match admitted {
                Ok(admitted) => contest.runners.push(Runner {
                    peer: admitted,
                    samples: Samples::default(),
                    replays: 1,
                }),
                Err(refused) => {
                    let line = format!("{}: {}, {}", peer.name, refused.status, refused.reason);
                    match refused.status {
                        Status::NotApplicable => contest.not_applicable.push(line),
                        _ => contest.refused.push(line),
                    }
                }
            }
        }
        contest
    }

    /// One round: each peer that is left for about `budget`. A peer that breaks is out.
    pub(crate) fn round(&mut self, peers: &mut Peers<'_>, is_step: bool, budget: Duration) {
        let replays = if is_step { REPLAYS } else { 0 };
        for mut runner in std::mem::take(&mut self.runners) {
            match runner.peer.time(peers.session, budget, FEWEST, replays) {
                Ok((samples, replays)) => {
                    runner.samples.extend(samples);
                    runner.replays = replays;
                    self.runners.push(runner);
                }
                Err(why) => self.refused.push(format!("{}: {why}", runner.peer.name())),
            }
        }
    }

    /// Looks once more at what runs: only a peer that is still itself keeps its times.
    pub(crate) fn confirm(&mut self, peers: &mut Peers<'_>) {
        for runner in std::mem::take(&mut self.runners) {
            match runner.peer.confirm(peers.session) {
                Ok(()) => self.runners.push(runner),
                Err(why) => self.refused.push(format!("{}: {why}", runner.peer.name())),
            }
        }
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
