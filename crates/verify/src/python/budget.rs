//! How long the calls of a peer may take together.

use super::Session;
use crate::peers::Peer;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time that is left to each peer. A call that has begun is let go on to its own limit: a peer stops between calls.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<Duration>,
    spent: BTreeMap<String, (Duration, u32)>,
}

impl Budget {
    /// So much for each peer; none for as long as they take.
    pub(crate) fn of(limit: Option<Duration>) -> Self {
        Self { limit, spent: BTreeMap::new() }
    }

    /// Why a peer is asked nothing more, as the reason of a row that was not run.
    pub(crate) fn spent_by(&self, peer: &Peer) -> Option<String> {
        let (spent, checks) = self.spent.get(&peer.name)?;
        let limit = self.limit.filter(|limit| spent >= limit)?;
        let checks = if *checks == 1 { "1 check".to_owned() } else { format!("{checks} checks") };
        let seconds = limit.as_secs_f64();
        Some(format!("the {seconds} s for this peer were spent after {checks}"))
    }

    /// Lets a peer be checked and counts the time that the session waited for it.
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
