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
    /// The notice that may be printed, with the steps done so far.
    slow: Mutex<Option<(SlowNotice, u64)>>,
    steps: Option<u64>,
    began: Instant,
}

struct LogProgress {
    stage: String,
    steps: Option<u64>,
    done: u64,
    began: Instant,
    said: Instant,
}

/// Printed once if a stage takes more than twice as long as expected at its present rate.
#[derive(Debug)]
pub(crate) struct SlowNotice {
    pub(crate) expected: Duration,
    /// How to do less.
    pub(crate) hint: &'static str,
}

impl SlowNotice {
    fn text(&self, (done, steps): (u64, u64), took: Duration) -> Option<String> {
        // The first steps load libraries and compile kernels.
        if done == 0 || took < 2 * APART {
            return None;
        }
        let whole = took.as_secs_f64() * steps as f64 / done as f64;
        let expected = self.expected.as_secs_f64();
        (whole > 2.0 * expected).then(|| {
            let (whole, expected) = (rounded(whole), rounded(expected));
            format!("note: this takes about {whole} instead of {expected}: {}", self.hint)
        })
    }
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
            let plain = Some(Mutex::new(plain));
            return Self {
                bar: ProgressBar::hidden(),
                plain,
                steps,
                slow: Mutex::default(),
                began: now,
            };
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
        Self { bar, plain: None, steps, slow: Mutex::default(), began: Instant::now() }
    }

    /// Also prints a notice, once, if the stage takes much longer than expected.
    pub(crate) fn with_notice(mut self, notice: Option<SlowNotice>) -> Self {
        self.slow = Mutex::new(notice.map(|notice| (notice, 0)));
        self
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
        self.notice_if_slow(steps);
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

    fn notice_if_slow(&self, steps: u64) {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((notice, done)) = &mut *slow else { return };
        *done += steps;
        let steps = self.steps.unwrap_or_default();
        if let Some(text) = notice.text((*done, steps), self.began.elapsed()) {
            self.bar.suspend(|| eprintln!("{text}"));
            *slow = None;
        }
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

/// Rounds seconds: to 5 s below a minute and a half, to 10 s below ten minutes, and then to minutes.
pub(crate) fn rounded(seconds: f64) -> String {
    if seconds < 90.0 {
        return format!("{:.0} s", (seconds / 5.0).ceil() * 5.0);
    }
    let whole = match seconds {
        seconds if seconds < 600.0 => (seconds / 10.0).round() as u64 * 10,
        seconds => (seconds / 60.0).round() as u64 * 60,
    };
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    match (whole / 60, whole % 60) {
        (minutes, 0) => format!("{minutes} minute{}", plural(minutes)),
        (minutes, seconds) => format!("{minutes} minute{} {seconds} s", plural(minutes)),
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

    #[test]
    fn slow_stage_is_noticed_after_ten_seconds() {
        let notice = SlowNotice { expected: Duration::from_secs(60), hint: "do less" };
        let text = |done, seconds| notice.text((done, 1000), Duration::from_secs(seconds));
        // 100 s in total are less than twice the expectation.
        assert_eq!((text(100, 10), text(0, 60), text(10, 9)), (None, None, None));
        let expect = "note: this takes about 9 minutes 10 s instead of 60 s: do less";
        assert_eq!(text(20, 11).as_deref(), Some(expect));
    }

    #[test]
    fn rounds_within_a_tenth() {
        for (seconds, expect) in [
            (3.0, "5 s"),
            (41.0, "45 s"),
            (89.0, "90 s"),
            (91.0, "1 minute 30 s"),
            (118.0, "2 minutes"),
            (193.0, "3 minutes 10 s"),
            (240.0, "4 minutes"),
            (640.0, "11 minutes"),
        ] {
            assert_eq!(rounded(seconds), expect);
        }
    }
}
