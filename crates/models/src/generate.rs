//! Runs a fixed list of requests to completion.

use crate::{Engine, FinishReason, ModelError, Request, Scheduler, SchedulerEvent, StepBudget};

/// A finished sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedSequence {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub ended: FinishReason,
}

/// A generated token.
#[derive(Debug, Clone, Copy)]
pub struct GeneratedToken<'a> {
    /// The index of its request.
    pub request: usize,
    /// The token.
    pub token: u32,
    /// The logits it was chosen from; `None` if the device sampled it.
    pub logits: Option<&'a [f32]>,
}

/// A listener's decision after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationControl {
    /// Continue this sequence.
    More,
    /// End this sequence, for example after a stop string.
    End,
}

/// Runs requests until each has ended; `listen` is called with each token.
///
/// # Errors
/// As [`Scheduler::submit`] and [`Scheduler::step`].
pub fn generate(
    engine: &mut dyn Engine,
    requests: &[Request],
    budget: StepBudget,
    mut listen: impl FnMut(GeneratedToken<'_>) -> GenerationControl,
) -> Result<Vec<GeneratedSequence>, ModelError> {
    let mut scheduler = Scheduler::new(engine, budget);
    let ids = requests.iter().map(|request| scheduler.submit(request.clone()));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let mut all = vec![(Vec::new(), None); ids.len()];
    while !scheduler.is_idle() {
        for event in scheduler.step()? {
            let Ok(request) = ids.binary_search(&event.request()) else { continue };
            let (tokens, end) = &mut all[request];
            match event {
                _ if end.is_some() => {}
                SchedulerEvent::Token { token, logits, .. } => {
                    tokens.push(token);
                    let logits = logits.and_then(|of| scheduler.logits(of));
                    if listen(GeneratedToken { request, token, logits }) == GenerationControl::End {
                        *end = Some(FinishReason::Caller);
                        scheduler.cancel(ids[request]);
                    }
                }
                SchedulerEvent::Finished { ended, .. } => *end = Some(ended),
                SchedulerEvent::Begun { .. }
                | SchedulerEvent::Scored { .. }
                | SchedulerEvent::Embedded { .. }
                | SchedulerEvent::Preempted { .. } => {}
            }
        }
    }
    let ended = |(tokens, end): (Vec<u32>, Option<FinishReason>)| GeneratedSequence {
        tokens,
        ended: end.unwrap_or(FinishReason::Limit),
    };
    Ok(all.into_iter().map(ended).collect())
}
