//! Progress on standard error, only where a person is watching.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// One stage: a spinner with what is being done and how far it is.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn start(stage: &str) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let style =
                ProgressStyle::with_template("{spinner} {prefix} {pos} {wide_msg} {elapsed}");
            let bar = ProgressBar::new_spinner().with_prefix(stage.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            style.map(|style| bar.set_style(style)).ok();
            bar
        } else {
            ProgressBar::hidden()
        };
        Self { bar }
    }

    pub(crate) fn step(&self, what: String) {
        self.bar.inc(1);
        self.say(what);
    }

    /// What of this step is being done.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
