//! A closed list of requests, from their prompts to their ends.

use crate::{Ended, Engine, Event, ModelError, Request, Scheduler, StepBudget};

/// A sequence that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// What was added to the prompt.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub ended: Ended,
}

/// A token that was chosen.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// The index of its request.
    pub request: usize,
    /// The token.
    pub token: u32,
    /// What it was chosen from; none where the device chose by itself.
    pub logits: Option<&'a [f32]>,
}

/// What a listener wants after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More of this sequence.
    More,
    /// No more of it: a stop string came, or nobody listens.
    End,
}

/// Continues requests until each has ended; `listen` is given each token as it comes.
///
/// # Errors
/// As [`Scheduler::submit`] and [`Scheduler::step`].
pub fn generate(
    engine: &mut dyn Engine,
    requests: &[Request],
    budget: StepBudget,
    mut listen: impl FnMut(Chosen<'_>) -> Next,
) -> Result<Vec<Generated>, ModelError> {
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
                Event::Token { token, logits, .. } => {
                    tokens.push(token);
                    let logits = logits.and_then(|of| scheduler.logits(of));
                    if listen(Chosen { request, token, logits }) == Next::End {
                        *end = Some(Ended::Listener);
                        scheduler.cancel(ids[request]);
                    }
                }
                Event::Finished { ended, .. } => *end = Some(ended),
                Event::Begun { .. }
                | Event::Scored { .. }
                | Event::Embedded { .. }
                | Event::Preempted { .. } => {}
            }
        }
    }
    let ended = |(tokens, end): (Vec<u32>, Option<Ended>)| Generated {
        tokens,
        ended: end.unwrap_or(Ended::Limit),
    };
    Ok(all.into_iter().map(ended).collect())
}
