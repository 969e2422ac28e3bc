//! Time limit of all peers of a bench, by the wall clock: a bench takes as long as its own kernels, plus this limit.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use verify::{Peer, Session};

/// Minimum time to start a call with: a compiled one takes less.
const LEAST: Duration = Duration::from_secs(2);
/// Share of the remaining time that one call may take: half, so that others have as much.
const PART: f64 = 0.5;

/// The remaining time of peers. Each op with peers gets an equal part, and its unused time goes to later ops.
///
/// A call that exceeds its part is killed with its process, and its peer is not called again for this op.
pub(crate) struct PeerBudget {
    /// Seconds left for all remaining ops; infinite without a limit.
    all: f64,
    /// Number of remaining ops.
    waiting: usize,
    /// The current op, with its seconds and the remaining ones.
    op: &'static str,
    share: f64,
    left: f64,
    /// Peers whose call exceeded its limit.
    out: BTreeSet<String>,
}

impl PeerBudget {
    /// A limit for the peers of this many ops; `None` for no limit.
    pub(crate) fn of(limit: Option<Duration>, ops: usize) -> Self {
        let all = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
        Self { all, waiting: ops, op: "", share: 0.0, left: 0.0, out: BTreeSet::new() }
    }

    /// Continues with the next op.
    pub(crate) fn begin(&mut self, op: &'static str) {
        self.op = op;
        self.share = self.all / self.waiting.max(1) as f64;
        self.left = self.share;
        self.waiting = self.waiting.saturating_sub(1);
        self.out.clear();
    }

    /// Time left for the peers of this op; `None` without a limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.left).ok()
    }

    /// Time limit of one call, which reserves `kept` for peers called before it, and as much for the others as it
    /// takes.
    pub(crate) fn part(&self, kept: Duration) -> Option<Duration> {
        let part = (self.left - kept.as_secs_f64()) * PART;
        Duration::try_from_secs_f64(part.max(0.0)).ok()
    }

    /// Why a peer is not called: the remaining time, without what is reserved for others, is too short.
    pub(crate) fn refuses(&self, peer: &Peer, kept: Duration) -> Option<String> {
        if self.out.contains(&peer.name) {
            return Some("an earlier call took all of its time".to_owned());
        }
        let spent = self.part(kept).is_some_and(|part| part < LEAST);
        spent.then(|| format!("the {:.0} s for the peers of {} were spent", self.share, self.op))
    }

    /// Calls a session with the limit `time`, and subtracts the time it took.
    pub(crate) fn spend<R>(
        &mut self,
        time: Option<Duration>,
        session: &mut Session,
        ask: impl FnOnce(&mut Session) -> R,
    ) -> R {
        let begin = Instant::now();
        let asked = session.within(time, ask);
        let took = begin.elapsed().as_secs_f64();
        (self.left, self.all) = ((self.left - took).max(0.0), (self.all - took).max(0.0));
        asked
    }

    /// Runs work whose time is shared by all ops, such as restarting the process.
    pub(crate) fn spend_of_all<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let done = work();
        self.all = (self.all - begin.elapsed().as_secs_f64()).max(0.0);
        self.left = self.left.min(self.all);
        done
    }

    /// Excludes a peer for the rest of this op.
    pub(crate) fn is_out(&mut self, name: &str) {
        self.out.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_share_equally_and_get_unused_time() {
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        let mut time = PeerBudget::of(seconds(12.0), 3);
        time.begin("rmsnorm");
        assert_eq!(time.left(), seconds(4.0));
        assert_eq!(time.part(Duration::from_secs(1)), seconds(1.5));
        assert_eq!(time.part(Duration::from_secs(8)), seconds(0.0));
        // No peer was called, so the other ops get the time.
        time.begin("kda");
        assert_eq!(time.left(), seconds(6.0));
        let peer = &Peer::listed(&["fla.chunk_kda".to_owned()])[0];
        assert_eq!(time.refuses(peer, Duration::from_secs(2)), None);
        let spent = "the 6 s for the peers of kda were spent";
        assert_eq!(time.refuses(peer, Duration::from_secs(3)).as_deref(), Some(spent));
        time.is_out(&peer.name);
        let out = "an earlier call took all of its time";
        assert_eq!(time.refuses(peer, Duration::ZERO).as_deref(), Some(out));
        time.begin("attention");
        assert_eq!(time.left(), seconds(12.0));
        assert_eq!(time.refuses(peer, Duration::ZERO), None, "out of one op alone");
    }

    #[test]
    fn without_a_limit_nothing_ends() {
        let mut time = PeerBudget::of(None, 2);
        for op in ["rmsnorm", "kda", "attention"] {
            time.begin(op);
            assert_eq!((time.left(), time.part(Duration::from_secs(9))), (None, None));
        }
    }
}
