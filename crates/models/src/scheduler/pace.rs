//! How much fits into the time that others can wait, by how long the last steps took.

use super::StepBudget;
use std::time::Duration;

/// How long the steps in flight may take, which a request that arrives waits for.
const IN_FLIGHT: Duration = Duration::from_millis(10);

/// Tokens that prompts are read by beside sequences that decode, and the fewest where they are bounded by time: rows that a GPU
/// computes together.
const TOGETHER: usize = 128;

/// Tokens that prompts are read by beside sequences that decode while nobody knows how long that takes, and the fewest that tell
/// what one more takes.
const TELLING: usize = 512;

/// So many prompts make a pass longer by as much again, where it would take little but what it takes whatever is read: up to so many
/// times as long, so that this is no more than one part of so many.
const PROMPTS: usize = 8;
const LONGER: f64 = 3.0;
const PARTS: f64 = 4.0;

/// A pass that reads prompts too takes a time of its own beside that for each token: for the weights, for the sequences that decode,
/// and for what they and the prompts do apart. So the next one has as many tokens more, or fewer, as the last one left time for.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How long the last decoding pass took for each token of a sequence.
    decoding: Duration,
    /// How long prompts took for each token beyond that: what it was at its shortest, and what it is lately.
    reading: Option<Duration>,
    /// Tokens of prompts of the last pass beside sequences that decode, and how long it took.
    beside: Option<(usize, Duration)>,
    /// What the last two such passes took beside the time for each token.
    apart: [Duration; 2],
}

impl Pace {
    pub(super) fn decoded(&mut self, took: Duration, tokens: usize) {
        self.decoding = each(took, tokens);
    }

    /// Tokens of prompts were read, of so many that there was room for, beside so many sequences that decode. Fewer than that say
    /// little: they take as long as many.
    pub(super) fn read(&mut self, took: Duration, tokens: usize, room: usize, decoding: usize) {
        // Fewer may decode than when that was taken, or none.
        let decoded = if decoding > 0 { self.decoding.min(took / 2) } else { Duration::ZERO };
        let of_one = each(took - decoded, tokens);
        let tells = tokens >= room.min(TELLING);
        self.reading = match self.reading {
            None => tells.then_some(of_one),
            // What a pass takes beside its tokens is in this too, of few of them most: one takes no longer than this.
            Some(known) if of_one <= known => Some(of_one),
            Some(known) if tokens >= TELLING => Some(known + (of_one - known) / 8),
            known => known,
        };
        if decoding > 0 {
            let of_tokens = self.reading.unwrap_or_default().saturating_mul(tokens as u32);
            self.apart = [took.saturating_sub(of_tokens), self.apart[0]];
        }
        if decoding > 0 && (tokens >= room || self.beside.is_none_or(|(_, last)| took > last)) {
            self.beside = Some((tokens, took));
        }
    }

    /// How long prompts take for each token, where that is known.
    pub(super) fn reading(&self) -> Option<Duration> {
        self.reading
    }

    /// Decoding steps that may be in flight.
    pub(super) fn in_flight(&self) -> usize {
        fit(IN_FLIGHT, self.decoding).max(2)
    }

    /// What a step that reads so many prompts has: each waits as long for its first token as those who decode for their next, and a
    /// step that is full of their tokens reads few of its own.
    pub(super) fn among(&self, prompts: usize, budget: StepBudget) -> StepBudget {
        if prompts < PROMPTS || budget.patience == Duration::MAX {
            return budget;
        }
        // One that was slow for once says nothing.
        let apart = self.apart[0].min(self.apart[1]);
        let times = apart.as_secs_f64() * PARTS / budget.patience.as_secs_f64();
        let times = times.min((1 + prompts / PROMPTS) as f64).clamp(1.0, LONGER);
        let beside = (budget.beside as f64 * times) as usize;
        let beside = beside.min(budget.tokens).max(budget.beside);
        StepBudget { beside, patience: budget.patience.mul_f64(times), ..budget }
    }

    /// Tokens of prompts for a step beside so many sequences that decode. A step that took long for once, to plan or to record,
    /// makes the next one small, and this the one after it larger again.
    pub(super) fn beside(&self, budget: StepBudget, decoding: usize) -> usize {
        let most = budget.beside.saturating_sub(decoding).max(budget.beside.div_ceil(2)).max(1);
        let left = match (self.reading, self.beside) {
            _ if budget.patience == Duration::MAX => return most,
            (None, _) => TELLING,
            (Some(reading), None) => fit(budget.patience.saturating_sub(self.decoding), reading),
            (Some(reading), Some((tokens, took))) => {
                let more = fit(budget.patience.saturating_sub(took), reading);
                let fewer = fit(took.saturating_sub(budget.patience), reading);
                tokens.saturating_add(more).saturating_sub(fewer)
            }
        };
        let left = left.max(TOGETHER).min(most);
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

    const BUDGET: StepBudget =
        StepBudget { tokens: 8192, beside: 2048, patience: Duration::from_millis(20), ahead: 8 };

    fn millis(millis: f64) -> Duration {
        Duration::from_secs_f64(millis / 1e3)
    }

    /// How long others wait at most while prompts of so many tokens are read beside `streams`, and the steps. A token costs more the
    /// later it comes, for its keys, and a number of tokens costs more the first time, to plan it. In milliseconds.
    fn longest_gap(pace: &mut Pace, streams: usize, all: usize) -> (f64, usize) {
        let decoding = 2.2 + 2.3 * (streams - 1) as f64 / 31.0;
        let (mut longest, mut steps, mut read, mut planned) = (0f64, 0, 0, Vec::new());
        while read < all {
            pace.decoded(millis(decoding), 1);
            let room = pace.beside(BUDGET, streams);
            let tokens = room.min(all - read);
            let first = if planned.contains(&tokens) { 0.0 } else { 3.4 };
            planned.push(tokens);
            let each = 0.0107 * (1.0 + 0.16 * read as f64 / 32_768.0);
            let took = decoding + 2.5 + each * tokens as f64 + first;
            pace.read(millis(took), tokens, room, streams);
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
                    pace.read(Duration::from_micros(93_000), before, before, 0);
                }
                let (longest, steps) = longest_gap(&mut pace, streams, 32_768);
                assert!(longest < 28.0, "{streams} streams: {longest} ms");
                assert!(steps <= 34, "{streams} streams: {steps} steps");
            }
        }
    }

    /// What a pass takes whatever is read makes prompts no shorter than the time that is left: a rate of all of it, which few tokens
    /// raise, would end with the fewest.
    #[test]
    fn prompts_are_read_beside_many_sequences_that_decode() {
        let mut pace = Pace::default();
        pace.read(millis(53.0), 512, 8192, 0);
        let (longest, steps) = longest_gap(&mut pace, 100, 65_536);
        assert!(longest < 28.0, "{longest} ms");
        // Of 20 ms a step has 7.6 for prompts.
        assert!(steps <= 130, "{steps} steps");
    }

    #[test]
    fn many_prompts_have_longer_steps_where_these_read_few_of_their_tokens() {
        // Steps of 20 ms, of which so much is there whatever is read.
        for (apart, prompts, expect) in [
            (2.0, 128, 20),
            (9.0, 7, 20),
            (9.0, 8, 36),
            (14.0, 8, 40),
            (14.0, 128, 56),
            (40.0, 16, 60),
        ] {
            let mut pace = Pace::default();
            pace.read(millis(0.0107 * 8192.0), 8192, 8192, 0);
            pace.decoded(millis(apart), 1);
            let cost = |tokens: usize| millis(apart + 0.0107 * tokens as f64);
            let mut budget = BUDGET;
            for _ in 0..20 {
                budget = pace.among(prompts, BUDGET);
                let tokens = pace.beside(budget, 100);
                pace.read(cost(tokens), tokens, tokens, 100);
            }
            let patience = millis(f64::from(expect));
            let near = budget.patience.abs_diff(patience) < millis(1.5);
            assert!(near, "{apart} ms, {prompts} prompts: {:?}", budget.patience);
            // Tokens are as many times more, and what is left of the time is theirs.
            let took = cost(pace.beside(budget, 100));
            assert!(
                took < patience * 11 / 10 || apart > patience.as_secs_f64() * 500.0,
                "{took:?}"
            );
            let times = budget.patience.as_secs_f64() / BUDGET.patience.as_secs_f64();
            assert!((budget.beside as f64 / BUDGET.beside as f64 - times).abs() < 0.01);
        }
        // One slow step changes nothing.
        let mut pace = Pace::default();
        pace.read(millis(0.0107 * 8192.0), 8192, 8192, 0);
        pace.read(millis(15.0), 1024, 1024, 32);
        pace.read(millis(300.0), 1024, 1024, 32);
        assert_eq!(pace.among(16, BUDGET), BUDGET);
        let unbounded = StepBudget { patience: Duration::MAX, ..BUDGET };
        assert_eq!(pace.among(16, unbounded), unbounded);
    }

    #[test]
    fn one_slow_step_does_not_slow_those_after_it() {
        let mut pace = Pace::default();
        let cost = |tokens: usize| Duration::from_micros(3000 + 12 * tokens as u64);
        assert_eq!(pace.beside(BUDGET, 32), 480);
        pace.read(Duration::from_secs(1), 1920, 1920, 32);
        let mut steps = Vec::new();
        for _ in 0..8 {
            let tokens = pace.beside(BUDGET, 32);
            steps.push(tokens);
            pace.read(cost(tokens), tokens, tokens, 32);
            // The end of a prompt says nothing.
            pace.read(cost(3), 3, tokens, 32);
        }
        assert!(steps[0] <= 128 && steps[7] > 1000, "{steps:?}");
        assert!(steps.iter().all(|tokens| cost(*tokens) < BUDGET.patience * 5 / 4), "{steps:?}");
        // Where nothing is bounded by time, nothing changes.
        let budget = StepBudget { beside: 60, patience: Duration::MAX, ..BUDGET };
        assert_eq!((pace.beside(budget, 1), pace.beside(budget, 59)), (59, 30));
    }
}
