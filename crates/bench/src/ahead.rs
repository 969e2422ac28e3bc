//! Installed kernels called ahead of their turn, so that their compilers work while others are verified, and not while the
//! machine waits to time something.

use crate::allowance::Allowance;
use crate::run::{Plan, SEED, bind, listed, tasks};
use facts::BackendKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use verify::{Drawn, Peer, Peers, PythonError, Session, admit_peer, load_peer_case};

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
    time: Allowance,
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
                // About as long as kernels are verified meanwhile.
                let limit = all.budget.map(|budget| 2 * budget);
                let (session, time) = (all.session.beside()?, Allowance::of(limit, 1));
                teams.push(Team { op, peers, session, time });
            }
        }
        Ok(Self { plan, teams })
    }

    /// Calls each peer on the first prefill, the first decode step and some more workloads of its op, as far as its time
    /// allows.
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

/// Workloads of an op that are compiled ahead: its widths differ, for which compilers begin anew, and lengths seldom do.
const WORKLOADS: usize = 4;

impl Team {
    fn run(mut self, plan: &Plan) {
        let workloads = listed(plan.backend).iter().find(|(op, _)| *op == self.op);
        let Some((_, workloads)) = workloads else { return };
        self.time.begin(self.op);
        for task in tasks(plan, self.op, *workloads).iter().take(WORKLOADS) {
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
                let time = self.time.part(self.peers.len() as u32, Duration::ZERO);
                // Only the bench's own check counts.
                let _ = self.time.spend(time, session, |session| {
                    admit_peer(session, peer, call.as_ref(), &mut drawn, plan.backend)
                });
            }
        }
    }
}
