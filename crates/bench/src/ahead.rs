//! Installed kernels called ahead of their turn, so that their compilers work while others are verified, and not while the
//! machine waits to time something.

use crate::run::{Plan, SEED, bind, listed};
use crate::workloads::Task;
use facts::BackendKind;
use std::sync::{Mutex, PoisonError};
use verify::{Budget, Peer, Peers, PythonError, Session, admit_peer, load_peer_case};

/// The peers of a bench that are compiled before it, each op's in a process of their own.
pub struct Ahead {
    plan: Plan,
    teams: Vec<Team>,
}

/// An op's peers.
struct Team {
    op: &'static str,
    peers: Vec<Peer>,
    session: Session,
    budget: Budget,
}

impl Ahead {
    /// The peers that have something to compile: those on a GPU.
    ///
    /// # Errors
    /// When a session's files cannot be written.
    pub fn of(plan: Plan, all: &Peers<'_>) -> Result<Self, PythonError> {
        let mut teams = Vec::new();
        for (op, _) in listed(plan.backend).iter().filter(|_| all.backend == BackendKind::Cuda) {
            let of_op = all.peers.iter().filter(|peer| peer.op == *op);
            let peers: Vec<Peer> = of_op.cloned().collect();
            if !peers.is_empty() {
                let (session, budget) = (all.session.beside()?, Budget::of(all.budget));
                teams.push(Team { op, peers, session, budget });
            }
        }
        Ok(Self { plan, teams })
    }

    /// Calls each peer on the first prefill and the first decode step of its op, as far as its time allows.
    ///
    /// What comes of it is not looked at: a bench checks each call itself. What stays is what compilers keep on disk.
    pub fn run(self) {
        let threads = self.teams.len();
        let waiting = Mutex::new(self.teams.into_iter());
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        let plan = &self.plan;
        std::thread::scope(|scope| {
            for _ in 0..threads.min(rayon::current_num_threads().div_ceil(2)) {
                scope.spawn(|| {
                    while let Some(team) = next() {
                        team.run(plan);
                    }
                });
            }
        });
    }
}

impl Team {
    fn run(mut self, plan: &Plan) {
        let workloads = listed(plan.backend).iter().find(|(op, _)| *op == self.op);
        let Some((_, workloads)) = workloads else { return };
        let tasks: Vec<Task<'_>> = workloads(plan.size).into_iter().map(Task::from).collect();
        for is_step in [false, true] {
            let Some(task) = tasks.iter().find(|task| task.is_step() == is_step) else { continue };
            let (inputs, settings) = (task.build)(task.dtype);
            let Ok((op, call)) = bind(self.op, &inputs, &settings) else { continue };
            let (given, session) = ((&inputs, &settings), &mut self.session);
            if load_peer_case(session, call.as_ref(), given, plan.backend).is_err() {
                return;
            }
            for peer in &self.peers {
                if self.budget.spent_by(peer).is_none() {
                    let called = |session: &mut Session| {
                        admit_peer(session, peer, (op, call.as_ref()), given, plan.backend, SEED)
                    };
                    // Only the bench's own check counts.
                    let _ = self.budget.check(peer, session, called);
                }
            }
        }
    }
}
