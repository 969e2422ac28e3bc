//! Measures the parts of a command's time, from process start.

use serde::Serialize;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// When `main` started.
static BEGAN: OnceLock<Instant> = OnceLock::new();

/// Called at the start of `main`.
pub(crate) fn begin() {
    BEGAN.get_or_init(Instant::now);
}

/// Seconds from process start to a moment. If the system does not report process start (Linux has hundredths of a
/// second), the start of `main` counts.
pub(crate) fn since_process_start(moment: Instant) -> f64 {
    let began = *BEGAN.get_or_init(Instant::now);
    let in_main = moment.saturating_duration_since(began).as_secs_f64();
    match process_age() {
        Some(age) => (age - moment.elapsed().as_secs_f64()).max(in_main),
        None => in_main,
    }
}

/// Seconds since the kernel started this process, by its own clock.
fn process_age() -> Option<f64> {
    /// Ticks per second: `/proc` uses 100 on every supported architecture.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in parentheses, may contain spaces. Field 22 is the start time, and this is field 3.
    let started: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some(uptime - started / TICKS)
}

/// A part of a command's time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
}

/// Consecutive parts.
#[derive(Debug)]
pub(crate) struct Phases {
    last: Instant,
    pub(crate) all: Vec<Phase>,
}

impl Phases {
    /// Starts with the part before `main`: loading the program and reading its arguments.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let before = Phase { name: "program start", seconds: since_process_start(now) };
        Self { last: now, all: vec![before] }
    }

    /// Ends the current part.
    pub(crate) fn done(&mut self, name: &'static str) -> Duration {
        let now = Instant::now();
        let took = now - self.last;
        self.last = now;
        self.all.push(Phase { name, seconds: took.as_secs_f64() });
        took
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn process_age_is_measured() {
        begin();
        let age = process_age().unwrap();
        assert!((0.0..3600.0).contains(&age), "{age}");
        let now = Instant::now();
        let since = since_process_start(now);
        assert!((since - age).abs() < 0.5, "{since} {age}");
        assert!(since_process_start(now + Duration::from_secs(5)) >= 5.0);
    }
}
