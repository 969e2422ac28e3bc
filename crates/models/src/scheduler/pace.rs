//! How much fits into the time that others can wait, by how long the last steps took.

use super::StepBudget;
use std::time::Duration;

/// How long tokens may be decoded without looking at who waits: what a reader takes for a steady stream.
const BURST: Duration = Duration::from_millis(20);

/// Tokens that prompts are read by beside sequences that decode, and the fewest where they are bounded by time: rows that a GPU
/// computes together.
const TOGETHER: usize = 128;

/// Tokens that prompts are read by beside sequences that decode while nobody knows how long that takes, and the fewest that tell.
const TELLING: usize = 512;

/// A pass that reads prompts too takes as long as one that decodes, in which the weights are read, and then a time for each token:
/// the rate of a long step alone would promise too much for a short one.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How long the last decoding pass took for each token of a sequence.
    decoding: Duration,
    /// How long the last prompts took for each token beyond that.
    reading: Option<Duration>,
}

impl Pace {
    pub(super) fn decoded(&mut self, took: Duration, tokens: usize) {
        self.decoding = each(took, tokens);
    }

    /// Tokens of prompts were read, of so many that there was room for. Few say little: they take as long as many.
    pub(super) fn read(&mut self, took: Duration, tokens: usize, room: usize) {
        if tokens >= room.min(TELLING) {
            self.reading = Some(each(took.saturating_sub(self.decoding), tokens));
        }
    }

    /// Tokens that may be decoded at once.
    pub(super) fn burst(&self) -> usize {
        fit(BURST, self.decoding).max(1)
    }

    /// Tokens of prompts for a step beside so many sequences that decode. A step that took long for once, to plan or to record,
    /// makes the next ones small, and these the ones after them larger again.
    pub(super) fn beside(&self, budget: StepBudget, decoding: usize) -> usize {
        let soon = match self.reading {
            Some(reading) => fit(budget.patience.saturating_sub(self.decoding), reading),
            None if budget.patience == Duration::MAX => budget.beside,
            None => TELLING,
        };
        let soon = soon.max(TOGETHER).min(budget.beside);
        let left = soon.saturating_sub(decoding).max(soon.div_ceil(2)).max(1);
        // An engine plans a number of tokens once: there are few numbers of those of a pass.
        let spare = (left + decoding) % TOGETHER;
        if left > TOGETHER + spare { left - spare } else { left }
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

    /// How long others wait at most while a prompt of 32,768 is read beside `streams`, and its steps. A token costs more the later
    /// it comes, for its keys, and a number of tokens costs more the first time, to plan it. In milliseconds.
    fn longest_gap(pace: &mut Pace, streams: usize) -> (f64, usize) {
        let patience = Duration::from_millis(20);
        let budget = StepBudget { tokens: 8192, beside: 2048, patience, ahead: 8 };
        let decoding = 2.2 + 2.3 * (streams - 1) as f64 / 31.0;
        let millis = |millis: f64| Duration::from_secs_f64(millis / 1e3);
        let (mut longest, mut steps, mut read, mut planned) = (0f64, 0, 0, Vec::new());
        while read < 32_768 {
            pace.decoded(millis(decoding), 1);
            let room = pace.beside(budget, streams);
            let tokens = room.min(32_768 - read);
            let first = if planned.contains(&tokens) { 0.0 } else { 3.4 };
            planned.push(tokens);
            let each = 0.0107 * (1.0 + 0.16 * read as f64 / 32_768.0);
            let took = decoding + 2.0 + each * tokens as f64 + first;
            pace.read(millis(took), tokens, room);
            longest = longest.max(took);
            (read, steps) = (read + tokens, steps + 1);
        }
        (longest, steps)
    }

    #[test]
    fn others_wait_for_less_than_30_ms_while_a_long_prompt_is_read() {
        for streams in [1, 32] {
            // A server that nobody has asked before, and one that read prompts of others while nobody waited.
            for before in [0, 8192] {
                let mut pace = Pace::default();
                if before > 0 {
                    pace.read(Duration::from_micros(93_000), before, before);
                }
                let (longest, steps) = longest_gap(&mut pace, streams);
                assert!(longest < 28.0, "{streams} streams: {longest} ms");
                assert!(steps <= 34, "{streams} streams: {steps} steps");
            }
        }
    }

    #[test]
    fn one_slow_step_does_not_slow_those_after_it() {
        let patience = Duration::from_millis(20);
        let budget = StepBudget { tokens: 8192, beside: 2048, patience, ahead: 8 };
        let mut pace = Pace::default();
        let cost = |tokens: usize| Duration::from_micros(3000 + 12 * tokens as u64);
        assert_eq!(pace.beside(budget, 32), 480);
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
