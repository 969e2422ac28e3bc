//! Steps that are made ready before somebody waits for them: an engine that records steps takes longer for the first of a kind.

use super::{Live, Scheduler};
use crate::ModelError;

/// Tokens of the longest sequence in steps that are made ready while there is nothing to do: short conversations, then longer ones.
/// What is longer is made ready while its prompt is read.
const LONGEST: [usize; 2] = [1 << 10, 1 << 11];

impl Scheduler<'_> {
    /// Prepares a step, or memory for copies on the host, while there is nothing to do; whether there may be more to prepare. Each step
    /// is prepared once: one that the engine evicted since then is prepared when it is wanted.
    ///
    /// A device that fails here fails at the next step as well, which says so.
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

    /// Sequences, and tokens of the longest, of the steps that most requests take part in.
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

    /// Makes the step ready in which those decode too that have read their prompts next, beside so many that decode and with room
    /// for so many tokens of prompts; whether that took this step's time. In the step itself it would come on top of what those
    /// wait for anyway that decode.
    pub(super) fn prepares_for_who_joins(
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
        let stays = |live: &&Live| live.decodes();
        let longest = self.running.iter().filter(stays).chain(reading().take(joining));
        let longest = longest.map(Live::tokens).max().unwrap_or(0);
        self.engine.prepare(decoding + joining, longest + 1)
    }
}
