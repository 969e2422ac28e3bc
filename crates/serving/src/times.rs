//! Latency of one sequence.

use crate::metrics::{DEVICE, FinishedReason, LossReason, Metrics, RAM};
use crate::worker::Ending;
use models::FinishReason;
use std::time::Instant;

/// Times of a sequence's events.
#[derive(Debug)]
pub(crate) struct Times {
    arrived: Instant,
    prompt: usize,
    /// Whether its prefix cache lookup was counted.
    prefix_looked_up: bool,
    began: Option<Instant>,
    first: Option<Instant>,
    last: Instant,
    tokens: usize,
}

impl Times {
    pub(crate) fn new(arrived: Instant, prompt: usize) -> Self {
        Self {
            arrived,
            prompt,
            prefix_looked_up: false,
            began: None,
            first: None,
            last: arrived,
            tokens: 0,
        }
    }

    /// Records that it got a slot. Getting one again after preemption does not change the time.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// Counts the prefix cache lookup: cached tokens, and lost tokens (tokens of a prefix that an earlier prompt shared
    /// but whose state is not cached). Returns false if it was counted before.
    pub(crate) fn prefix_looked_up(
        &mut self,
        metrics: &Metrics,
        cached: usize,
        from_host: bool,
        lost: usize,
    ) -> bool {
        let new = !std::mem::replace(&mut self.prefix_looked_up, true);
        if new {
            metrics.cache_queries.inc_by(self.prompt as u64);
            metrics.cache_hits.inc_by(cached as u64);
            metrics.cached_tokens.inc_by(cached as u64);
            let tier = if from_host { RAM } else { DEVICE };
            metrics.hits_by_tier.get_or_create(&tier).inc_by(cached as u64);
            let reason = LossReason { reason: "no_state" };
            metrics.lost_tokens.get_or_create(&reason).inc_by(lost as u64);
        }
        new
    }

    /// Counts a token. `now` is given for the first token of a step only.
    pub(crate) fn token(&mut self, metrics: &Metrics, now: Option<Instant>) {
        self.tokens += 1;
        metrics.generated_tokens.inc();
        let Some(now) = now else { return };
        match self.first {
            None => {
                self.first = Some(now);
                metrics.prompt_tokens.inc_by(self.prompt as u64);
                metrics.first_token.observe((now - self.arrived).as_secs_f64());
                metrics.first_token_of_process(now);
            }
            Some(_) => metrics.between_tokens.observe((now - self.last).as_secs_f64()),
        }
        self.last = now;
    }

    /// Records the end in the metrics.
    pub(crate) fn end(self, metrics: &Metrics, ending: &Ending) {
        let now = Instant::now();
        let finished_reason = match ending {
            Ending::Finished(FinishReason::StopId | FinishReason::Caller) => "stop",
            Ending::Finished(FinishReason::Limit) => "length",
            Ending::Failed(_) | Ending::Finished(FinishReason::NoToken) => "error",
            Ending::Cancelled { .. } => "abort",
        };
        metrics.ended.get_or_create(&FinishedReason { finished_reason }).inc();
        metrics.sequence_ended(now);
        // Durations and lengths of aborted sequences would distort the histograms.
        if !matches!(ending, Ending::Finished(_)) {
            return;
        }
        metrics.end_to_end.observe((now - self.arrived).as_secs_f64());
        metrics.prompt_lengths.observe(self.prompt as f64);
        metrics.answer_lengths.observe(self.tokens as f64);
        let Some(began) = self.began else { return };
        metrics.queue.observe(began.saturating_duration_since(self.arrived).as_secs_f64());
        let Some(first) = self.first else { return };
        metrics.prefill.observe(first.saturating_duration_since(began).as_secs_f64());
        metrics.decode.observe((self.last - first).as_secs_f64());
        metrics.inference.observe(self.last.saturating_duration_since(began).as_secs_f64());
        if self.tokens > 1 {
            let later_tokens = (self.tokens - 1) as f64;
            metrics.per_token.observe((self.last - first).as_secs_f64() / later_tokens);
        }
    }
}
