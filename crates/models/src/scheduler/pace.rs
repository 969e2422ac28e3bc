//! How much fits into the time that others can wait, by how long the last steps took.

use super::StepBudget;
use std::time::Duration;

/// How long tokens may be decoded without looking at who waits: what a reader takes for a steady stream.
const BURST: Duration = Duration::from_millis(20);

/// Tokens that prompts are read by beside sequences that decode, and the fewest where they are bounded by time: rows that a GPU
/// computes together.
const TOGETHER: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How long the last decoding pass took for each token of a sequence.
    decoding: Duration,
    /// How long the last prompts took for each token that were all that a step had room for.
    reading: Duration,
}

impl Pace {
    pub(super) fn decoded(&mut self, took: Duration, tokens: usize) {
        self.decoding = each(took, tokens);
    }

    /// Tokens of prompts were read, of so many that there was room for. Fewer say little: they take as long as many.
    pub(super) fn read(&mut self, took: Duration, tokens: usize, room: usize) {
        if tokens >= room {
            self.reading = each(took, tokens);
        }
    }

    /// Tokens that may be decoded at once.
    pub(super) fn burst(&self) -> usize {
        fit(BURST, self.decoding).max(1)
    }

    /// Tokens of prompts for a step beside so many sequences that decode. A step that took long for once, to plan or to record,
    /// makes the next ones small, and these the ones after them larger again.
    pub(super) fn beside(&self, budget: StepBudget, decoding: usize) -> usize {
        let soon = fit(budget.patience, self.reading).max(TOGETHER).min(budget.beside);
        let left = soon.saturating_sub(decoding).max(soon.div_ceil(2)).max(1);
        // An engine plans a number of tokens once: there are few numbers.
        if left > TOGETHER { left - left % TOGETHER } else { left }
    }
}

fn each(all: Duration, count: usize) -> Duration {
    all / u32::try_from(count.max(1)).unwrap_or(u32::MAX)
}

fn fit(time: Duration, each: Duration) -> usize {
    usize::try_from(time.as_nanos() / each.as_nanos().max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_step_does_not_slow_those_after_it() {
        let patience = Duration::from_millis(20);
        let budget = StepBudget { tokens: 8192, beside: 2048, patience, ahead: 8 };
        let mut pace = Pace::default();
        let cost = |tokens: usize| Duration::from_micros(3000 + 12 * tokens as u64);
        assert_eq!(pace.beside(budget, 32), 1920);
        pace.read(Duration::from_secs(1), 1920, 1920);
        let mut steps = Vec::new();
        for _ in 0..8 {
            let tokens = pace.beside(budget, 32);
            steps.push(tokens);
            pace.read(cost(tokens), tokens, tokens);
            // The end of a prompt says nothing.
            pace.read(cost(3), 3, tokens);
        }
        assert!(steps[0] < 128 && steps[7] > 1000, "{steps:?}");
        assert!(steps.iter().all(|tokens| cost(*tokens) < patience * 5 / 4), "{steps:?}");
        // Where nothing is bounded by time, nothing changes.
        let budget = StepBudget { beside: 60, patience: Duration::MAX, ..budget };
        assert_eq!((pace.beside(budget, 1), pace.beside(budget, 59)), (59, 30));
    }
}
