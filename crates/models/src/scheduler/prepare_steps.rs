//! Prepares steps in advance, because the first step of a size is slower on an engine that captures CUDA graphs.

use super::{ActiveRequest, Scheduler};
use crate::ModelError;

/// Maximum sequence lengths, in tokens, of steps that are prepared while the engine is idle: short conversations first, then
/// longer ones. Steps of longer sequences are prepared while their prompts are prefilled.
const LONGEST: [usize; 2] = [1 << 10, 1 << 11];

impl Scheduler<'_> {
    /// Prepares one step, or host memory for swapping, while the engine is idle; returns whether there may be more to prepare.
    /// Each step is prepared once here: if the engine evicts it, it is prepared again when it is needed.
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

    /// Sizes of the decode steps to prepare: number of sequences (powers of two and the maximum), and tokens of the longest.
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

    /// Prepares the step of the `decoding` sequences together with those whose prompts the next chunk, of `room` tokens,
    /// completes; returns whether a step was prepared, which takes the place of this step. Otherwise the decoding sequences
    /// would later wait for the preparation in addition to their step.
    pub(super) fn prepare_for_joining_requests(
        &mut self,
        decoding: usize,
        room: usize,
    ) -> Result<bool, ModelError> {
        let prefilling = || self.running.iter().filter(|live| live.prefills());
        if decoding == 0 || prefilling().next().is_none() {
            return Ok(false);
        }
        let fit = prefilling().scan(room, |left, live| {
            *left = left.checked_sub(live.pending_tokens())?;
            Some(())
        });
        let joining = fit.count().max(1);
        let decodes = |live: &&ActiveRequest| live.decodes();
        let longest = self.running.iter().filter(decodes).chain(prefilling().take(joining));
        let longest = longest.map(ActiveRequest::tokens).max().unwrap_or(0);
        self.engine.prepare(decoding + joining, longest + 1)
    }
}
