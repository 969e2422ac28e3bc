//! Verifies the prefix cache: recomputes requests that started from a cached state and compares their first logits.

use models::{LogitsOf, Request, RequestId, Sampling, Scheduler};
use std::collections::BTreeMap;

/// Largest allowed difference of the logits: root mean square of the difference, relative to the root mean square of
/// the logits. The state of other tokens gives several times this value. The same tokens prefilled in other chunks
/// differ by a few hundredths at most in bfloat16.
const MAX_RELATIVE_ERROR: f64 = 0.1;

/// Requests that are being recomputed, each with the logits that the cached state gave.
pub(crate) struct PrefixCacheVerifier {
    share: f64,
    /// Fraction of a verification that is due; one starts when it reaches 1.
    due: f64,
    open: BTreeMap<RequestId, Vec<f32>>,
}

impl PrefixCacheVerifier {
    /// Verifies this share of the requests that start from a cached state, from 0 (none) to 1 (all).
    pub(crate) fn new(share: f64) -> Self {
        Self { share, due: 0.0, open: BTreeMap::new() }
    }

    /// Whether any request is verified.
    pub(crate) fn is_enabled(&self) -> bool {
        self.share > 0.0
    }

    /// Whether the next request is verified.
    pub(crate) fn select(&mut self) -> bool {
        self.due += self.share;
        let due = self.due >= 1.0;
        self.due -= if due { 1.0 } else { 0.0 };
        due
    }

    /// Submits the prompt without the prefix cache. If the scheduler rejects it, the request is not verified.
    pub(crate) fn recompute(
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
            bypass_cache: true,
            logits: LogitsOf::First,
        };
        if let Ok(id) = scheduler.submit(request) {
            self.open.insert(id, logits);
        }
    }

    /// Whether the recomputed logits are close to the first ones; `None` if the request is not a verification.
    pub(crate) fn compare(&mut self, id: RequestId, second: &[f32]) -> Option<bool> {
        let first = self.open.remove(&id)?;
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
        let off = square(&mut first.iter().zip(second).map(|(a, b)| f64::from(a - b)));
        // NaN compares as different.
        Some(
            off <= MAX_RELATIVE_ERROR
                * MAX_RELATIVE_ERROR
                * square(&mut second.iter().map(|x| f64::from(*x))),
        )
    }

    /// Drops a verification that cannot finish; returns whether the request was one.
    pub(crate) fn remove(&mut self, id: RequestId) -> bool {
        self.open.remove(&id).is_some()
    }
}
