//! Shows each step with its bytes and its time on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use setup::apply::Progress;
use std::io::IsTerminal;
use std::time::Duration;

/// The bar of the current step.
#[derive(Default)]
pub(super) struct Bar {
    bar: Option<ProgressBar>,
}

impl Progress for Bar {
    fn begin(&mut self, step: &'static str, bytes: Option<u64>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let (bar, template) = match bytes.filter(|bytes| *bytes > 0) {
            Some(bytes) => (
                ProgressBar::new(bytes),
                "{spinner} {prefix} {bytes}/{total_bytes} {bytes_per_sec} {wide_msg} {elapsed}",
            ),
            None => (ProgressBar::new_spinner(), "{spinner} {prefix} {wide_msg} {elapsed}"),
        };
        let bar = bar.with_prefix(step);
        bar.enable_steady_tick(Duration::from_millis(120));
        ProgressStyle::with_template(template).map(|style| bar.set_style(style)).ok();
        self.bar = Some(bar);
    }

    fn advance(&mut self, bytes: u64, what: &str) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
            bar.set_message(what.to_owned());
        }
    }

    fn end(&mut self, outcome: &str, took: Duration) {
        if let Some(bar) = self.bar.take() {
            let (step, seconds) = (bar.prefix(), took.as_secs_f64());
            bar.finish_and_clear();
            eprintln!("{step:<14}{seconds:8.1} s  {outcome}");
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
