//! A second look at kept states: what began with one is begun from nothing as well, and its first logits have to be the same.

use models::{LogitsOf, Request, RequestId, Sampling, Scheduler};
use std::collections::BTreeMap;

/// The most that logits may differ, by the root of the mean square of the difference over that of the logits: a tenth. A state of
/// other tokens makes a multiple; the same tokens read in other chunks make, in bfloat16, some hundredths of the logits at most.
const MOST: f64 = 0.1;

/// Requests that are read again, and the logits that the first reading gave.
pub(crate) struct SecondLooks {
    share: f64,
    /// Looks that are due, as a share of one.
    due: f64,
    open: BTreeMap<RequestId, Vec<f32>>,
}

impl SecondLooks {
    /// At so many of those that begin with a kept state, from none (0) to all (1).
    pub(crate) fn new(share: f64) -> Self {
        Self { share, due: 0.0, open: BTreeMap::new() }
    }

    /// Whether any are wanted.
    pub(crate) fn wanted(&self) -> bool {
        self.share > 0.0
    }

    /// Whether this one is to be looked at.
    pub(crate) fn due(&mut self) -> bool {
        self.due += self.share;
        let due = self.due >= 1.0;
        self.due -= if due { 1.0 } else { 0.0 };
        due
    }

    /// Reads a prompt from nothing. Where there is no room for it, it is not looked at.
    pub(crate) fn begin(
        &mut self,
        scheduler: &mut Scheduler<'_>,
        prompt: Vec<u32>,
        logits: Vec<f32>,
    ) {
        let request = Request {
            prompt,
            limit: 1,
            sampling: Sampling::default(),
            stop_ids: Vec::new(),
            keep: false,
            shared: 0,
            turn: false,
            anew: true,
            logits: LogitsOf::First,
        };
        if let Ok(id) = scheduler.submit(request) {
            self.open.insert(id, logits);
        }
    }

    /// Whether both readings gave the same; none for a request that is no second reading.
    pub(crate) fn compare(&mut self, id: RequestId, second: &[f32]) -> Option<bool> {
        let first = self.open.remove(&id)?;
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
        let off = square(&mut first.iter().zip(second).map(|(a, b)| f64::from(a - b)));
        // What is no number is not the same.
        Some(off <= MOST * MOST * square(&mut second.iter().map(|x| f64::from(*x))))
    }

    /// Forgets a second reading that cannot end; whether it was one.
    pub(crate) fn forget(&mut self, id: RequestId) -> bool {
        self.open.remove(&id).is_some()
    }
}
