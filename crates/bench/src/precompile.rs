//! Calls installed kernels before they are timed, so that they are compiled while other kernels are verified and not
//! during the timing.

use crate::peer_budget::PeerBudget;
use crate::run::{BenchPlan, SEED, bind, tasks};
use crate::workloads::{OpWorkloads, WORKLOADS};
use facts::BackendKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use verify::{Peer, Peers, PythonError, SampledCall, Session, Tuning, admit_peer, load_peer_case};

/// The peers of a bench that are compiled in advance, each op's in a separate process.
pub struct PrecompiledPeers {
    plan: BenchPlan,
    jobs: Vec<OpPeers>,
    /// The session in which they will be timed.
    timing: Session,
    peers: Vec<Peer>,
}

/// An op's peers.
struct OpPeers {
    op: &'static str,
    peers: Vec<Peer>,
    session: Session,
    time: PeerBudget,
}

impl PrecompiledPeers {
    /// The peers that need compilation: those on a GPU.
    ///
    /// # Errors
    /// When a session's files cannot be written.
    pub fn of(plan: BenchPlan, all: &Peers<'_>) -> Result<Self, PythonError> {
        let mut jobs = Vec::new();
        for OpWorkloads { op, .. } in WORKLOADS.iter().filter(|_| all.backend == BackendKind::Cuda)
        {
            let of_op = all.peers.iter().filter(|peer| peer.op == *op);
            let peers: Vec<Peer> = of_op.cloned().collect();
            if !peers.is_empty() {
                for nth in 0..SHARES {
                    let (mut session, peers) = (all.session.concurrent()?, peers.clone());
                    session.tune(Tuning::compiling(nth, SHARES))?;
                    jobs.push(OpPeers { op, peers, session, time: PeerBudget::of(all.budget, 1) });
                }
            }
        }
        let (mut timing, peers) = (all.session.concurrent()?, all.peers.to_vec());
        timing.tune(Tuning::ALONE)?;
        Ok(Self { plan, jobs, timing, peers })
    }

    /// Calls each peer on the first prefill, the first decode step and some more workloads of its op, as far as its
    /// time limit allows.
    ///
    /// Results are ignored: a bench verifies each call itself. The compilers' caches on disk remain, and the session in
    /// which peers are timed has imported their packages.
    pub fn run(mut self) -> Session {
        let threads = self.jobs.len();
        let waiting = Mutex::new(self.jobs.into_iter());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let plan = &self.plan;
        std::thread::scope(|scope| {
            for _ in 0..threads.min(rayon::current_num_threads()) {
                scope.spawn(|| {
                    while let Some(job) = next() {
                        job.run(plan);
                    }
                });
            }
            // Errors are reported when the peer is timed.
            let _ = self.timing.ready(&self.peers);
        });
        self.timing
    }
}

/// Processes that compile the kernels of an op; each compiles its configurations sequentially.
const SHARES: u32 = 2;

/// Workloads of an op that are compiled in advance: they differ in width, which requires a new compilation; length
/// seldom does.
const CALLS: usize = 4;

impl OpPeers {
    fn run(mut self, plan: &BenchPlan) {
        let Some(of) = WORKLOADS.iter().find(|of| of.op == self.op) else { return };
        self.time.begin(self.op);
        for task in tasks(plan, of).iter().take(CALLS) {
            if self.time.left() == Some(Duration::ZERO) {
                return;
            }
            let (inputs, settings) = (task.build)(task.dtype);
            let Ok((op, call)) = bind(self.op, &inputs, &settings) else { continue };
            let (given, session) = ((&inputs, &settings), &mut self.session);
            let load = |session: &mut Session| load_peer_case(session, &call, given, plan.backend);
            if self.time.spend(self.time.left(), session, load).is_err() {
                return;
            }
            let mut sampled = SampledCall::of(op, given, SEED);
            for peer in &self.peers {
                let time = self.time.left();
                // The result is ignored: the bench verifies each peer again.
                let _ = self.time.spend(time, session, |session| {
                    admit_peer(session, peer, &call, &mut sampled, plan.backend)
                });
            }
        }
    }
}
