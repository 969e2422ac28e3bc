//! Time limit of a peer's calls together.

use super::Session;
use crate::peers::Peer;
use std::collections::BTreeMap;
use std::time::Duration;

/// The remaining time of each peer. A call that has started may use its own limit: a peer stops between calls.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<Duration>,
    spent: BTreeMap<String, (Duration, u32)>,
}

impl Budget {
    /// A limit for each peer; `None` for no limit.
    pub(crate) fn of(limit: Option<Duration>) -> Self {
        Self { limit, spent: BTreeMap::new() }
    }

    /// Why a peer is not called any more, as the reason of a row that was not run.
    pub(crate) fn spent_by(&self, peer: &Peer) -> Option<String> {
        let (spent, checks) = self.spent.get(&peer.name)?;
        let limit = self.limit.filter(|limit| spent >= limit)?;
        let checks = if *checks == 1 { "1 check".to_owned() } else { format!("{checks} checks") };
        let seconds = limit.as_secs_f64();
        Some(format!("the {seconds} s for this peer were spent after {checks}"))
    }

    /// Runs a peer's check and subtracts the time that the session waited.
    pub(crate) fn check<R>(
        &mut self,
        peer: &Peer,
        session: &mut Session,
        check: impl FnOnce(&mut Session) -> R,
    ) -> R {
        let before = session.waited();
        let checked = check(session);
        let (spent, checks) = self.spent.entry(peer.name.clone()).or_default();
        *spent += session.waited().saturating_sub(before);
        *checks += 1;
        checked
    }
}
