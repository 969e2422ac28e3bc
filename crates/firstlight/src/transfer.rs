//! Progress of a transfer: bytes done and total, rate, and remaining time. On a terminal a bar; otherwise plain lines
//! at intervals, for a log. Transfers of less than a second show nothing.

use facts::byte_count;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shorter transfers are not shown.
const QUIET: Duration = Duration::from_secs(1);
/// Refresh interval on a terminal.
const TICK: Duration = Duration::from_millis(100);
/// Interval between lines of a log.
const LOGGED: Duration = Duration::from_secs(10);

/// Shows a counter until it is dropped.
pub(crate) struct Transfer {
    end: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Transfer {
    /// Shows `count` bytes of `total` with the label `what`; `total` is 0 if it is not known.
    pub(crate) fn watch(what: &str, total: u64, count: Arc<AtomicU64>) -> Self {
        let what = what.to_owned();
        let (end, ended) = channel();
        let watcher = std::thread::spawn(move || {
            let start = Instant::now();
            if ended.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
            let bar = (std::io::stderr().is_terminal() && !dumb).then(|| bar(&what, total, start));
            let mut told = Instant::now();
            loop {
                let done = count.load(Ordering::Relaxed);
                match &bar {
                    Some(bar) => bar.set_position(done),
                    None if is_due(done, told.elapsed()) => {
                        told = Instant::now();
                        eprintln!("{}", line(&what, done, total, start.elapsed()));
                    }
                    None => {}
                }
                if ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        Self { end: Some(end), watcher: Some(watcher) }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        drop(self.end.take());
        // Later output starts after the bar's line.
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}

fn bar(what: &str, total: u64, start: Instant) -> ProgressBar {
    let template = match total {
        0 => "{prefix} {decimal_bytes} {decimal_bytes_per_sec}",
        _ => {
            "{prefix} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left"
        }
    };
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    ProgressStyle::with_template(template).map(|style| bar.set_style(style)).ok();
    bar.with_prefix(what.to_owned()).with_elapsed(start.elapsed())
}

/// Whether a log gets a line: nothing is shown before the first byte, because the connection may still fail.
fn is_due(done: u64, since_last: Duration) -> bool {
    done > 0 && since_last >= LOGGED
}

/// A line of a log.
fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let mut line = format!("{what}: {}", short_byte_count(done));
    if total > 0 {
        line += &format!(" of {}", short_byte_count(total));
    }
    line += &format!(", {}/s", short_byte_count(rate as u64));
    if total > done && rate >= 1.0 {
        line += &format!(", {:.0} s left", (total - done) as f64 / rate);
    }
    line
}

/// The decimal part of [`facts::byte_count`], for short lines.
pub(crate) fn short_byte_count(bytes: u64) -> String {
    let both = byte_count(bytes);
    both.split(" = ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_has_label_amount_rate_and_time() {
        let after = |seconds| Duration::from_secs(seconds);
        let said = line("loading", 2_000_000_000, 6_000_000_000, after(4));
        assert_eq!(said, "loading: 2.00 GB of 6.00 GB, 500.00 MB/s, 8 s left");
        assert_eq!(line("download", 3_000_000, 0, after(1)), "download: 3.00 MB, 3.00 MB/s");
        assert_eq!(line("loading", 0, 10, after(2)), "loading: 0 B of 10 B, 0 B/s");
    }

    #[test]
    fn log_gets_no_line_before_the_first_byte() {
        assert!(!is_due(0, LOGGED * 3));
        assert!(!is_due(1, LOGGED / 2));
        assert!(is_due(1, LOGGED));
    }
}
