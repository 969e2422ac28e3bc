//! Estimates how many prompt tokens fit in a step's time limit from the durations of recent steps.

use super::StepBudget;
use std::time::Duration;

/// Maximum total duration of steps in flight, for which a new request waits.
const IN_FLIGHT: Duration = Duration::from_millis(10);

/// Granularity and minimum of a step's prompt tokens while sequences decode: rows that a GPU computes together.
const ROW_GRANULARITY: usize = 128;

/// Prompt tokens per step while their speed is unknown, and the minimum from which it can be measured.
const MIN_MEASURED_TOKENS: usize = 512;

/// With many prompts a pass may take longer, if fixed costs dominate: as much longer per this number of prompts, up to
/// `MAX_STRETCH` times, until fixed costs are at most one of `FIXED_COST_PARTS` parts.
const MANY_PROMPTS: usize = 8;
const MAX_STRETCH: f64 = 3.0;
const FIXED_COST_PARTS: f64 = 4.0;

/// A pass with prompt tokens has fixed costs in addition to the time per token: reading weights, decoding sequences,
/// and work of separate groups. Each pass therefore has as many tokens more, or fewer, as the last one was below, or
/// above, the limit.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Duration of the last decoding pass per token.
    decoding: Duration,
    /// Prefill time per token: its minimum, adjusted to recent values.
    reading: Option<Duration>,
    /// Prompt tokens of the last pass with decoding sequences, and its duration.
    last_mixed_pass: Option<(usize, Duration)>,
    /// Fixed costs of the last two such passes.
    apart: [Duration; 2],
}

impl Pace {
    pub(super) fn decoded(&mut self, took: Duration, tokens: usize) {
        self.decoding = each(took, tokens);
    }

    /// Records a pass that prefilled `tokens` of at most `room` tokens alongside `decoding` sequences. Passes far below
    /// `room` are ignored, since they take as long as full ones.
    pub(super) fn read(&mut self, took: Duration, tokens: usize, room: usize, decoding: usize) {
        // Fewer sequences than in the measured pass may decode, or none.
        let decoded = if decoding > 0 { self.decoding.min(took / 2) } else { Duration::ZERO };
        let of_one = each(took - decoded, tokens);
        let tells = tokens >= room.min(MIN_MEASURED_TOKENS);
        self.reading = match self.reading {
            None => tells.then_some(of_one),
            // This includes fixed costs, which dominate small passes, so it is an upper bound.
            Some(known) if of_one <= known => Some(of_one),
            Some(known) if tokens >= MIN_MEASURED_TOKENS => Some(known + (of_one - known) / 8),
            known => known,
        };
        if decoding > 0 {
            let of_tokens = self.reading.unwrap_or_default().saturating_mul(tokens as u32);
            self.apart = [took.saturating_sub(of_tokens), self.apart[0]];
        }
        if decoding > 0
            && (tokens >= room || self.last_mixed_pass.is_none_or(|(_, last)| took > last))
        {
            self.last_mixed_pass = Some((tokens, took));
        }
    }

    /// Prefill time per token, if known.
    pub(super) fn reading(&self) -> Option<Duration> {
        self.reading
    }

    /// Number of decoding steps that may be in flight.
    pub(super) fn in_flight(&self) -> usize {
        fit(IN_FLIGHT, self.decoding).max(2)
    }

    /// The budget of a step that prefills this number of prompts. Each prompt waits for its first token as decoding
    /// sequences wait for theirs, and a step with little room for prompts delays all of them.
    pub(super) fn among(&self, prompts: usize, budget: StepBudget) -> StepBudget {
        if prompts < MANY_PROMPTS || budget.max_mixed_step == Duration::MAX {
            return budget;
        }
        // The minimum of two ignores a single slow pass.
        let apart = self.apart[0].min(self.apart[1]);
        let times = apart.as_secs_f64() * FIXED_COST_PARTS / budget.max_mixed_step.as_secs_f64();
        let times = times.min((1 + prompts / MANY_PROMPTS) as f64).clamp(1.0, MAX_STRETCH);
        let max_mixed_tokens = (budget.max_mixed_tokens as f64 * times) as usize;
        let max_mixed_tokens = max_mixed_tokens.min(budget.tokens).max(budget.max_mixed_tokens);
        StepBudget {
            max_mixed_tokens,
            max_mixed_step: budget.max_mixed_step.mul_f64(times),
            ..budget
        }
    }

    /// Prompt tokens for a step alongside `decoding` sequences. A single slow step, for example one that plans or
    /// captures, makes the next one small, and the one after it larger.
    pub(super) fn prompt_tokens(&self, budget: StepBudget, decoding: usize) -> usize {
        let most = budget
            .max_mixed_tokens
            .saturating_sub(decoding)
            .max(budget.max_mixed_tokens.div_ceil(2))
            .max(1);
        let left = match (self.reading, self.last_mixed_pass) {
            _ if budget.max_mixed_step == Duration::MAX => return most,
            (None, _) => MIN_MEASURED_TOKENS,
            (Some(reading), None) => {
                fit(budget.max_mixed_step.saturating_sub(self.decoding), reading)
            }
            (Some(reading), Some((tokens, took))) => {
                let more = fit(budget.max_mixed_step.saturating_sub(took), reading);
                let fewer = fit(took.saturating_sub(budget.max_mixed_step), reading);
                tokens.saturating_add(more).saturating_sub(fewer)
            }
        };
        let left = left.max(ROW_GRANULARITY).min(most);
        // An engine plans each number of tokens once; rounding limits the number of different totals.
        let spare = (left + decoding) % ROW_GRANULARITY;
        if left > ROW_GRANULARITY + spare { left - spare } else { left }
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

    const BUDGET: StepBudget = StepBudget {
        tokens: 8192,
        max_mixed_tokens: 2048,
        max_mixed_step: Duration::from_millis(20),
        decode_steps_in_flight: 8,
    };

    fn millis(millis: f64) -> Duration {
        Duration::from_secs_f64(millis / 1e3)
    }

    /// Longest gap between tokens of `streams` sequences while prompts of `all` tokens are prefilled, in milliseconds,
    /// and the number of steps. Later tokens cost more, because of their keys, and a new number of tokens costs more
    /// once, for planning.
    fn longest_gap(pace: &mut Pace, streams: usize, all: usize) -> (f64, usize) {
        let decoding = 2.2 + 2.3 * (streams - 1) as f64 / 31.0;
        let (mut longest, mut steps, mut read, mut planned) = (0f64, 0, 0, Vec::new());
        while read < all {
            pace.decoded(millis(decoding), 1);
            let room = pace.prompt_tokens(BUDGET, streams);
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
    fn gap_stays_below_30_ms_during_a_long_prefill() {
        for streams in [1, 32] {
            // A new server, and one that has prefilled without decoding sequences.
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

    /// Fixed costs do not make chunks smaller than the remaining time: dividing the whole duration by the tokens would
    /// converge to the minimum.
    #[test]
    fn prompts_progress_alongside_many_decoding_sequences() {
        let mut pace = Pace::default();
        pace.read(millis(53.0), 512, 8192, 0);
        let (longest, steps) = longest_gap(&mut pace, 100, 65_536);
        assert!(longest < 28.0, "{longest} ms");
        // 7.6 of 20 ms per step are left for prompts.
        assert!(steps <= 130, "{steps} steps");
    }

    #[test]
    fn many_prompts_get_longer_steps() {
        // Steps of 20 ms with these fixed costs.
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
                let tokens = pace.prompt_tokens(budget, 100);
                pace.read(cost(tokens), tokens, tokens, 100);
            }
            let patience = millis(f64::from(expect));
            let near = budget.max_mixed_step.abs_diff(patience) < millis(1.5);
            assert!(near, "{apart} ms, {prompts} prompts: {:?}", budget.max_mixed_step);
            // There are as many times more tokens, which use the remaining time.
            let took = cost(pace.prompt_tokens(budget, 100));
            assert!(
                took < patience * 11 / 10 || apart > patience.as_secs_f64() * 500.0,
                "{took:?}"
            );
            let times = budget.max_mixed_step.as_secs_f64() / BUDGET.max_mixed_step.as_secs_f64();
            assert!(
                (budget.max_mixed_tokens as f64 / BUDGET.max_mixed_tokens as f64 - times).abs()
                    < 0.01
            );
        }
        // One slow step changes nothing.
        let mut pace = Pace::default();
        pace.read(millis(0.0107 * 8192.0), 8192, 8192, 0);
        pace.read(millis(15.0), 1024, 1024, 32);
        pace.read(millis(300.0), 1024, 1024, 32);
        assert_eq!(pace.among(16, BUDGET), BUDGET);
        let unbounded = StepBudget { max_mixed_step: Duration::MAX, ..BUDGET };
        assert_eq!(pace.among(16, unbounded), unbounded);
    }

    #[test]
    fn single_slow_step_is_ignored() {
        let mut pace = Pace::default();
        let cost = |tokens: usize| Duration::from_micros(3000 + 12 * tokens as u64);
        assert_eq!(pace.prompt_tokens(BUDGET, 32), 480);
        pace.read(Duration::from_secs(1), 1920, 1920, 32);
        let mut steps = Vec::new();
        for _ in 0..8 {
            let tokens = pace.prompt_tokens(BUDGET, 32);
            steps.push(tokens);
            pace.read(cost(tokens), tokens, tokens, 32);
            // The last chunk of a prompt is too small to measure.
            pace.read(cost(3), 3, tokens, 32);
        }
        assert!(steps[0] <= 128 && steps[7] > 1000, "{steps:?}");
        assert!(
            steps.iter().all(|tokens| cost(*tokens) < BUDGET.max_mixed_step * 5 / 4),
            "{steps:?}"
        );
        // Without a time limit nothing changes.
        let budget = StepBudget { max_mixed_tokens: 60, max_mixed_step: Duration::MAX, ..BUDGET };
        assert_eq!((pace.prompt_tokens(budget, 1), pace.prompt_tokens(budget, 59)), (59, 30));
    }
}
