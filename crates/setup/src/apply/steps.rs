//! The steps of an apply: timed, shown and recorded for the report.

use super::{ApplyError, Progress};
use facts::ApplyStep;
use std::time::Instant;

/// The result of a step: its value, its bytes, and one line.
pub(super) type Outcome<T> = Result<(T, u64, String), ApplyError>;

/// A count with its noun: `1 file`, `2 files`.
pub(super) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The steps so far.
pub(super) struct Steps<'a> {
    progress: &'a mut dyn Progress,
    done: Vec<ApplyStep>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(progress: &'a mut dyn Progress) -> Self {
        Self { progress, done: Vec::new() }
    }

    /// Runs one step.
    pub(super) fn run<T>(
        &mut self,
        name: &'static str,
        bytes: Option<u64>,
        act: impl FnOnce(&mut dyn Progress) -> Outcome<T>,
    ) -> Result<T, ApplyError> {
        self.run_since(name, Instant::now(), bytes, act)
    }

    /// Runs the rest of a step that started earlier, in parallel with another one.
    pub(super) fn run_since<T>(
        &mut self,
        name: &'static str,
        began: Instant,
        bytes: Option<u64>,
        act: impl FnOnce(&mut dyn Progress) -> Outcome<T>,
    ) -> Result<T, ApplyError> {
        self.progress.begin(name, bytes);
        let (value, bytes, outcome) = act(self.progress)?;
        let took = began.elapsed();
        self.progress.end(&outcome, took);
        let millis = took.as_secs_f64() * 1e3;
        self.done.push(ApplyStep { name: name.to_owned(), millis, bytes, outcome });
        Ok(value)
    }

    /// The completed steps.
    pub(super) fn done(self) -> Vec<ApplyStep> {
        self.done
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn count_of_one_is_singular() {
        let count = |number| super::count(number, "file");
        assert_eq!([0, 1, 2].map(count), ["0 files", "1 file", "2 files"]);
    }
}
