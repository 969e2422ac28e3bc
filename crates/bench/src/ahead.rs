//! Installed kernels called ahead of their turn, so that their compilers work while others are verified, and not while the
//! machine waits to time something.

use crate::allowance::Allowance;
use crate::run::{Plan, SEED, bind, tasks};
use crate::workloads::{OpWorkloads, WORKLOADS};
use facts::BackendKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use verify::{Drawn, Peer, Peers, PythonError, Session, Tuning, admit_peer, load_peer_case};

/// The peers of a bench that are compiled before it, each op's in a process of their own.
pub struct Ahead {
    plan: Plan,
    teams: Vec<Team>,
    /// Where they will be timed.
    timing: Session,
    peers: Vec<Peer>,
}

/// An op's peers.
struct Team {
    op: &'static str,
    peers: Vec<Peer>,
    session: Session,
    time: Allowance,
}

impl Ahead {
    /// The peers that have something to compile: those on a GPU.
    ///
    /// # Errors
    /// When a session's files cannot be written.
    pub fn of(plan: Plan, all: &Peers<'_>) -> Result<Self, PythonError> {
        let mut teams = Vec::new();
        for OpWorkloads { op, .. } in WORKLOADS.iter().filter(|_| all.backend == BackendKind::Cuda)
        {
            let of_op = all.peers.iter().filter(|peer| peer.op == *op);
            let peers: Vec<Peer> = of_op.cloned().collect();
            if !peers.is_empty() {
                for nth in 0..SHARES {
                    let (mut session, peers) = (all.session.beside()?, peers.clone());
                    session.tune(Tuning::compiling(nth, SHARES))?;
                    teams.push(Team { op, peers, session, time: Allowance::of(all.budget, 1) });
                }
            }
        }
        let (mut timing, peers) = (all.session.beside()?, all.peers.to_vec());
        timing.tune(Tuning::ALONE)?;
        Ok(Self { plan, teams, timing, peers })
    }

    /// Calls each peer on the first prefill, the first decode step and some more workloads of its op, as far as its time
    /// allows.
    ///
    /// What comes of it is not looked at: a bench checks each call itself. What stays is what compilers keep on disk, and the
    /// session to time them in, which has imported its packages by then.
    pub fn run(mut self) -> Session {
        let threads = self.teams.len();
        let waiting = Mutex::new(self.teams.into_iter());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let plan = &self.plan;
        std::thread::scope(|scope| {
            for _ in 0..threads.min(rayon::current_num_threads()) {
                scope.spawn(|| {
                    while let Some(team) = next() {
                        team.run(plan);
                    }
                });
            }
            // What does not answer here says why where it is timed.
            let _ = self.timing.ready(&self.peers);
        });
        self.timing
    }
}

/// Processes that compile the kernels of an op: one compiles one configuration after the other.
const SHARES: u32 = 2;

/// Workloads of an op that are compiled ahead: its widths differ, for which compilers begin anew, and lengths seldom do.
const CALLS: usize = 4;

impl Team {
    fn run(mut self, plan: &Plan) {
        let Some(of) = WORKLOADS.iter().find(|of| of.op == self.op) else { return };
        self.time.begin(self.op);
        for task in tasks(plan, of).iter().take(CALLS) {
            if self.time.left() == Some(Duration::ZERO) {
                return;
            }
            let (inputs, settings) = (task.build)(task.dtype);
            let Ok((op, call)) = bind(self.op, &inputs, &settings) else { continue };
            let (given, session) = ((&inputs, &settings), &mut self.session);
            let load =
                |session: &mut Session| load_peer_case(session, call.as_ref(), given, plan.backend);
            if self.time.spend(self.time.left(), session, load).is_err() {
                return;
            }
            let mut drawn = Drawn::of(op, given, SEED);
            for peer in &self.peers {
                let time = self.time.left();
                // Only the bench's own check counts.
                let _ = self.time.spend(time, session, |session| {
                    admit_peer(session, peer, call.as_ref(), &mut drawn, plan.backend)
                });
            }
        }
    }
}
