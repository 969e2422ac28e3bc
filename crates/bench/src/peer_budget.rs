//! The wall-clock time for all peers (installed Python kernels) of a bench: a bench takes as long as firstlight's own kernels,
//! plus this limit.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use verify::{Peer, Session};

/// Minimum time limit of a call: with less it is not started. A call that is compiled already takes less.
const MIN_CALL: Duration = Duration::from_secs(2);
/// Share of the remaining time that one call may take: half, so that as much remains for the others.
const CALL_SHARE: f64 = 0.5;

/// The remaining time of peers. Each op with peers gets an equal share, and its unused time goes to later ops.
///
/// A call that exceeds its limit is killed with its process, and its peer is not called again for this op.
pub(crate) struct PeerBudget {
    /// Seconds left for all remaining ops; infinite without a limit.
    all: f64,
    /// Number of remaining ops.
    ops: usize,
    /// The current op.
    op: &'static str,
    /// Its share in seconds.
    share: f64,
    /// The seconds that are left of its share.
    left: f64,
    /// Peers whose call exceeded its limit.
    excluded: BTreeSet<String>,
}

impl PeerBudget {
    /// A budget for the peers of this many ops; `None` for no limit.
    pub(crate) fn of(limit: Option<Duration>, ops: usize) -> Self {
        let all = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
        Self { all, ops, op: "", share: 0.0, left: 0.0, excluded: BTreeSet::new() }
    }

    /// Continues with the next op.
    pub(crate) fn begin(&mut self, op: &'static str) {
        self.op = op;
        self.share = self.all / self.ops.max(1) as f64;
        self.left = self.share;
        self.ops = self.ops.saturating_sub(1);
        self.excluded.clear();
    }

    /// Time left for the peers of this op; `None` without a limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.left).ok()
    }

    /// Time limit of one call: half of the remaining time without `reserved`, which is for timing the peers called before.
    pub(crate) fn call_limit(&self, reserved: Duration) -> Option<Duration> {
        let part = (self.left - reserved.as_secs_f64()) * CALL_SHARE;
        Duration::try_from_secs_f64(part.max(0.0)).ok()
    }

    /// Why a peer is not called: the remaining time, without what is reserved for others, is too short.
    pub(crate) fn refusal(&self, peer: &Peer, reserved: Duration) -> Option<String> {
        if self.excluded.contains(&peer.name) {
            return Some("an earlier call took all of its time".to_owned());
        }
        let spent = self.call_limit(reserved).is_some_and(|part| part < MIN_CALL);
        spent.then(|| format!("the {:.0} s for the peers of {} were spent", self.share, self.op))
    }

    /// Calls a session with the limit `time`, and subtracts the time that it took.
    pub(crate) fn spend<R>(
        &mut self,
        time: Option<Duration>,
        session: &mut Session,
        ask: impl FnOnce(&mut Session) -> R,
    ) -> R {
        let begin = Instant::now();
        let result = session.within(time, ask);
        let took = begin.elapsed().as_secs_f64();
        (self.left, self.all) = ((self.left - took).max(0.0), (self.all - took).max(0.0));
        result
    }

    /// Runs work whose time is shared by all ops, such as restarting the process.
    pub(crate) fn spend_shared<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let result = work();
        self.all = (self.all - begin.elapsed().as_secs_f64()).max(0.0);
        self.left = self.left.min(self.all);
        result
    }

    /// Excludes a peer for the rest of this op.
    pub(crate) fn exclude(&mut self, name: &str) {
        self.excluded.insert(name.to_owned());
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
        assert_eq!(time.call_limit(Duration::from_secs(1)), seconds(1.5));
        assert_eq!(time.call_limit(Duration::from_secs(8)), seconds(0.0));
        // No peer was called, so the other ops get the time.
        time.begin("kda");
        assert_eq!(time.left(), seconds(6.0));
        let peer = &Peer::listed(&["fla.chunk_kda".to_owned()])[0];
        assert_eq!(time.refusal(peer, Duration::from_secs(2)), None);
        let spent = "the 6 s for the peers of kda were spent";
        assert_eq!(time.refusal(peer, Duration::from_secs(3)).as_deref(), Some(spent));
        time.exclude(&peer.name);
        let out = "an earlier call took all of its time";
        assert_eq!(time.refusal(peer, Duration::ZERO).as_deref(), Some(out));
        time.begin("attention");
        assert_eq!(time.left(), seconds(12.0));
        assert_eq!(time.refusal(peer, Duration::ZERO), None, "a peer is excluded from one op only");
    }

    #[test]
    fn time_is_unlimited_without_a_limit() {
        let mut time = PeerBudget::of(None, 2);
        for op in ["rmsnorm", "kda", "attention"] {
            time.begin(op);
            assert_eq!((time.left(), time.call_limit(Duration::from_secs(9))), (None, None));
        }
    }
}
