//! Progress on standard error: a bar on a terminal, otherwise a plain line at intervals.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The progress of one stage.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Set if standard error is not a terminal; a log gets no line for each step.
    plain: Option<Mutex<LogProgress>>,
}

struct LogProgress {
    stage: String,
    steps: Option<u64>,
    done: u64,
    began: Instant,
    said: Instant,
}

/// Minimum duration of a step that is reported, and minimum interval between lines of a log.
const APART: Duration = Duration::from_secs(5);

impl Progress {
    /// A stage without a known number of steps.
    pub(crate) fn start(stage: &str) -> Self {
        Self::new(stage, None)
    }

    /// A stage of this many steps.
    pub(crate) fn counted(stage: &str, steps: usize) -> Self {
        Self::new(stage, Some(steps as u64))
    }

    fn new(stage: &str, steps: Option<u64>) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if !std::io::stderr().is_terminal() || dumb {
            let (stage, now) = (stage.to_owned(), Instant::now());
            let plain = LogProgress { stage, steps, done: 0, began: now, said: now };
            return Self { bar: ProgressBar::hidden(), plain: Some(Mutex::new(plain)) };
        }
        let (bar, template) = match steps {
            Some(steps) => (
                ProgressBar::new(steps),
                "{prefix} {bar:10} {pos}/{len}, {rate}/s, {eta} left  {wide_msg}",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {prefix} {pos} {wide_msg} {elapsed}"),
        };
        let bar = bar.with_prefix(stage.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{:.1}", state.per_sec());
        };
        let style = ProgressStyle::with_template(template);
        style.map(|style| bar.set_style(style.with_key("rate", rate))).ok();
        Self { bar, plain: None }
    }

    /// Starts the next step.
    pub(crate) fn step(&self, what: String) {
        self.bar.inc(1);
        self.advance(1, what);
    }

    /// Sets the text of the current step.
    pub(crate) fn set_step(&self, what: String) {
        self.advance(0, what);
    }

    fn advance(&self, steps: u64, what: String) {
        if let Some(plain) = &self.plain {
            let mut plain = plain.lock().unwrap_or_else(PoisonError::into_inner);
            plain.done += steps;
            if plain.said.elapsed() >= APART {
                plain.said = Instant::now();
                eprintln!("{}", plain.line(plain.began.elapsed(), &what));
            }
        }
        self.bar.set_message(what);
    }
}

impl LogProgress {
    /// `verify 350 of 2446, 45/s, 46 s left: kda fla/b1-t64 bf16`.
    fn line(&self, took: Duration, what: &str) -> String {
        let rate = self.done as f64 / took.as_secs_f64().max(1e-9);
        let (stage, done) = (&self.stage, self.done);
        match self.steps {
            Some(steps) if done > 0 => {
                let left = steps.saturating_sub(done) as f64 / rate;
                format!("{stage} {done} of {steps}, {rate:.1}/s, {left:.0} s left: {what}")
            }
            _ => format!("{stage}, {:.0} s: {what}", took.as_secs_f64()),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_has_count_rate_and_remaining_time() {
        let check = |steps, done, expect: &str| {
            let now = Instant::now();
            let plain = LogProgress { stage: "verify".into(), steps, done, began: now, said: now };
            assert_eq!(plain.line(Duration::from_secs(10), "kda x"), expect);
        };
        check(Some(2446), 350, "verify 350 of 2446, 35.0/s, 60 s left: kda x");
        check(Some(10), 0, "verify, 10 s: kda x");
        check(None, 7, "verify, 10 s: kda x");
        // With more rows than cases, the remainder is zero.
        check(Some(10), 12, "verify 12 of 10, 1.2/s, 0 s left: kda x");
    }
}
