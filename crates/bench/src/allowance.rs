//! The time that the peers of a bench have together, by the wall clock: a bench is as long as its own kernels take, and so
//! much longer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use verify::{Peer, Session};

/// The least that a call is begun with: one that has been compiled takes less.
const LEAST: Duration = Duration::from_secs(2);
/// How much of what is left one call may take: half, so that others have as much.
const PART: f64 = 0.5;

/// What is left for peers. Each op that has any gets an equal part of it, and what it leaves over goes to the ops after it.
///
/// A call that takes all of what it may is killed, with its process, and its peer is asked nothing more of this op.
pub(crate) struct Allowance {
    /// Seconds left for all that is yet to come; infinite without a limit, and then so are all of the others.
    all: f64,
    /// Ops that are to come.
    waiting: usize,
    /// The op at hand, with the seconds that its peers were given and what is left of them.
    op: &'static str,
    share: f64,
    left: f64,
    /// Peers whose call took too long.
    out: BTreeSet<String>,
}

impl Allowance {
    /// So much for the peers of so many ops; none for as long as they take.
    pub(crate) fn of(limit: Option<Duration>, ops: usize) -> Self {
        let all = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
        Self { all, waiting: ops, op: "", share: 0.0, left: 0.0, out: BTreeSet::new() }
    }

    /// Goes on to the next op.
    pub(crate) fn begin(&mut self, op: &'static str) {
        self.op = op;
        self.share = self.all / self.waiting.max(1) as f64;
        self.left = self.share;
        self.waiting = self.waiting.saturating_sub(1);
        self.out.clear();
    }

    /// What is left for the peers of this op; `None` where nothing limits them.
    pub(crate) fn left(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.left).ok()
    }

    /// Time for one call, which is to leave `kept` for what was called before it, and as much as it takes for the others.
    pub(crate) fn part(&self, kept: Duration) -> Option<Duration> {
        let part = (self.left - kept.as_secs_f64()) * PART;
        Duration::try_from_secs_f64(part.max(0.0)).ok()
    }

    /// Why a peer is asked nothing: less is left than it would need beside what is kept for others.
    pub(crate) fn refuses(&self, peer: &Peer, kept: Duration) -> Option<String> {
        if self.out.contains(&peer.name) {
            return Some("an earlier call took all of its time".to_owned());
        }
        let spent = self.part(kept).is_some_and(|part| part < LEAST);
        spent.then(|| format!("the {:.0} s for the peers of {} were spent", self.share, self.op))
    }

    /// Asks a session within `time`, and counts what that took.
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

    /// Does what no op is to pay for alone, such as a new start of the process.
    pub(crate) fn spend_of_all<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let done = work();
        self.all = (self.all - begin.elapsed().as_secs_f64()).max(0.0);
        self.left = self.left.min(self.all);
        done
    }

    /// Asks a peer nothing more of this op.
    pub(crate) fn is_out(&mut self, name: &str) {
        self.out.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_have_equal_parts_and_what_one_leaves_over() {
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        let mut time = Allowance::of(seconds(12.0), 3);
        time.begin("rmsnorm");
        assert_eq!(time.left(), seconds(4.0));
        assert_eq!(time.part(Duration::from_secs(1)), seconds(1.5));
        assert_eq!(time.part(Duration::from_secs(8)), seconds(0.0));
        // Nothing was asked: the others have it.
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
        let mut time = Allowance::of(None, 2);
        for op in ["rmsnorm", "kda", "attention"] {
            time.begin(op);
            assert_eq!((time.left(), time.part(Duration::from_secs(9))), (None, None));
        }
    }
}
