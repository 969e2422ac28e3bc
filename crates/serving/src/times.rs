//! What is measured of a sequence while it is open.

use crate::metrics::{DEVICE, Lost, Metrics, RAM, Reason};
use crate::worker::Ending;
use models::Ended;
use std::time::Instant;

/// When what happened to a sequence.
#[derive(Debug)]
pub(crate) struct Times {
    arrived: Instant,
    prompt: usize,
    /// Whether it was looked up in the prefix cache.
    found: bool,
    began: Option<Instant>,
    first: Option<Instant>,
    last: Instant,
    tokens: usize,
}

impl Times {
    pub(crate) fn new(arrived: Instant, prompt: usize) -> Self {
        Self { arrived, prompt, found: false, began: None, first: None, last: arrived, tokens: 0 }
    }

    /// It has a slot; what comes again behind a preemption changes nothing.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began.get_or_insert(now);
    }

    /// What of its prompt need not be read, and what is read although another prompt began with it; whether that was not known.
    pub(crate) fn found(
        &mut self,
        metrics: &Metrics,
        cached: usize,
        from_host: bool,
        lost: usize,
    ) -> bool {
        let new = !std::mem::replace(&mut self.found, true);
        if new {
            metrics.cache_queries.inc_by(self.prompt as u64);
            metrics.cache_hits.inc_by(cached as u64);
            metrics.cached_tokens.inc_by(cached as u64);
            let tier = if from_host { RAM } else { DEVICE };
            metrics.hits_by_tier.get_or_create(&tier).inc_by(cached as u64);
            let reason = Lost { reason: "no_state" };
            metrics.lost_tokens.get_or_create(&reason).inc_by(lost as u64);
        }
        new
    }

    /// It has a token more, the first of those that came together where there is a time.
    pub(crate) fn token(&mut self, metrics: &Metrics, now: Option<Instant>) {
        self.tokens += 1;
        metrics.generated_tokens.inc();
        let Some(now) = now else { return };
        match self.first {
            None => {
                self.first = Some(now);
                metrics.prompt_tokens.inc_by(self.prompt as u64);
                metrics.first_token.observe((now - self.arrived).as_secs_f64());
                metrics.first_of_all(now);
            }
            Some(_) => metrics.between_tokens.observe((now - self.last).as_secs_f64()),
        }
        self.last = now;
    }

    /// It ended.
    pub(crate) fn end(self, metrics: &Metrics, ending: &Ending) {
        let now = Instant::now();
        let finished_reason = match ending {
            Ending::Finished(Ended::StopId | Ended::Listener) => "stop",
            Ending::Finished(Ended::Limit) => "length",
            Ending::Failed(_) | Ending::Finished(Ended::NoToken) => "error",
            Ending::Left { .. } => "abort",
        };
        metrics.ended.get_or_create(&Reason { finished_reason }).inc();
        metrics.one_ended(now);
        // Times and lengths of what was broken off say nothing of those that were not.
        if !matches!(ending, Ending::Finished(_)) {
            return;
        }
        metrics.whole.observe((now - self.arrived).as_secs_f64());
        metrics.prompt_lengths.observe(self.prompt as f64);
        metrics.answer_lengths.observe(self.tokens as f64);
        let Some(began) = self.began else { return };
        metrics.queue.observe(began.saturating_duration_since(self.arrived).as_secs_f64());
        let Some(first) = self.first else { return };
        metrics.prefill.observe(first.saturating_duration_since(began).as_secs_f64());
        metrics.decode.observe((self.last - first).as_secs_f64());
        metrics.inference.observe(self.last.saturating_duration_since(began).as_secs_f64());
        if self.tokens > 1 {
            let behind = (self.tokens - 1) as f64;
            metrics.per_token.observe((self.last - first).as_secs_f64() / behind);
        }
    }
}
