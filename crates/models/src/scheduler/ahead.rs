//! Prepares steps ahead of time: an engine that captures graphs is slower in the first step of a size.

use super::{ActiveRequest, Scheduler};
use crate::ModelError;

/// Longest sequences of steps prepared while idle: short conversations first, then longer ones. Steps of longer
/// sequences are prepared while their prompts are prefilled.
const LONGEST: [usize; 2] = [1 << 10, 1 << 11];

impl Scheduler<'_> {
    /// Prepares a step, or host memory for copies, while idle; returns whether there may be more to prepare. Each step
    /// is prepared once: one that the engine evicted since then is prepared when it is needed.
    ///
    /// If the device fails here, the next step fails too and reports it.
    pub fn prepare(&mut self) -> bool {
        let steps = self.steady_steps();
        while let Some([sequences, tokens]) = steps.get(self.prepared) {
            match self.engine.prepare(*sequences, *tokens) {
                Ok(false) => self.prepared += 1,
                Ok(true) => return true,
                Err(_) => self.prepared = steps.len(),
            }
        }
        self.engine.reserve_more()
    }

    /// Sizes of the steps that most requests take part in: number of sequences, and tokens of the longest.
    fn steady_steps(&self) -> Vec<[usize; 2]> {
        let most = self.engine.architecture().context.min(self.engine.pages().tokens());
        let doubles = std::iter::successors(Some(1usize), |count| count.checked_mul(2));
        let mut counts: Vec<usize> = doubles.take_while(|count| *count < self.slots).collect();
        counts.push(self.slots);
        let mut longest = LONGEST.map(|tokens| tokens.min(most)).to_vec();
        longest.dedup();
        let of = |tokens: usize| counts.iter().map(move |count| [*count, tokens]);
        longest.into_iter().flat_map(of).collect()
    }

    /// Prepares the step in which requests that finish prefilling next will decode, for `decoding` sequences and prompt
    /// chunks of this size; returns whether that took this step's time. Otherwise the decoding sequences would wait for
    /// the preparation in addition to the step.
    pub(super) fn prepare_for_joining_requests(
        &mut self,
        decoding: usize,
        room: usize,
    ) -> Result<bool, ModelError> {
        let reading = || self.running.iter().filter(|live| live.reads());
        if decoding == 0 || reading().next().is_none() {
            return Ok(false);
        }
        let fit = reading().scan(room, |left, live| {
            *left = left.checked_sub(live.unread())?;
            Some(())
        });
        let joining = fit.count().max(1);
        let stays = |live: &&ActiveRequest| live.decodes();
        let longest = self.running.iter().filter(stays).chain(reading().take(joining));
        let longest = longest.map(ActiveRequest::tokens).max().unwrap_or(0);
        self.engine.prepare(decoding + joining, longest + 1)
    }
}
