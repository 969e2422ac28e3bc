//! Repeats a verified execution.

use ops::OpError;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use verify::Verified;

/// Times of single runs, in milliseconds, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    millis: Vec<f64>,
}

impl Samples {
    /// Adds later samples.
    pub(crate) fn extend(&mut self, later: impl IntoIterator<Item = f64>) {
        self.millis.extend(later);
    }

    /// Number of timed runs.
    pub fn count(&self) -> usize {
        self.millis.len()
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The 95th percentile.
    pub fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    /// The fastest run.
    pub fn fastest(&self) -> f64 {
        self.millis.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The raw times.
    pub fn millis(&self) -> &[f64] {
        &self.millis
    }

    /// The smallest value that at least this share of the samples does not exceed.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.millis.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1]
    }
}

/// Minimum samples of a median.
const FEWEST: usize = 5;
/// Maximum number of samples.
const MAX_SAMPLES: usize = 200;

/// Times a verified execution: warm-up first, then samples until `budget` is used (at least five).
///
/// # Errors
/// The device's error; never on the CPU.
pub fn time(execution: &mut Verified<'_>, budget: Duration) -> Result<Samples, OpError> {
    sample(budget, || execution.time())
}

/// [`time`] for a decoding step, which is shorter than a launch's latency: each sample is the mean of [`REPLAYS`] runs
/// back to back if the device can replay. Also returns the runs per sample.
///
/// # Errors
/// As [`time`].
pub fn time_steps(
    execution: &mut Verified<'_>,
    budget: Duration,
) -> Result<(Samples, u32), OpError> {
    if !execution.can_replay() {
        return Ok((time(execution, budget)?, 1));
    }
    Ok((sample(budget, || execution.replay(REPLAYS))?, REPLAYS))
}

/// Runs per replay: enough that its start-up time is negligible.
pub(crate) const REPLAYS: u32 = 20;

/// Samples of a ceiling, which has no reference but checks its own results: at least two, because the fastest is taken and not
/// the median.
pub(crate) fn repeat(budget: Duration, mut run: impl FnMut()) -> Samples {
    let timed = || {
        let begin = Instant::now();
        run();
        Ok::<_, Infallible>(begin.elapsed().as_secs_f64() * 1e3)
    };
    match sample_at_least(2, 1, budget, timed) {
        Ok(samples) => samples,
        Err(never) => match never {},
    }
}

/// Samples timed by a device, in milliseconds.
pub(crate) fn sample<E>(
    budget: Duration,
    timed: impl FnMut() -> Result<f64, E>,
) -> Result<Samples, E> {
    // Two runs warm up pages, caches and clocks.
    sample_at_least(FEWEST, 2, budget, timed)
}

/// At least `fewest` samples after `warm_up` runs, and more until `budget` is used.
fn sample_at_least<E>(
    fewest: usize,
    warm_up: usize,
    budget: Duration,
    mut timed: impl FnMut() -> Result<f64, E>,
) -> Result<Samples, E> {
    for _ in 0..warm_up {
        timed()?;
    }
    let (start, mut millis) = (Instant::now(), Vec::new());
    while millis.len() < fewest || (start.elapsed() < budget && millis.len() < MAX_SAMPLES) {
        millis.push(timed()?);
    }
    Ok(Samples { millis })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_15_median_and_p95_are_values_that_were_measured() {
        let check = |millis: &[f64], median, p95| {
            let samples = Samples { millis: millis.to_vec() };
            assert_eq!((samples.median(), samples.p95()), (median, p95), "{millis:?}");
        };
        check(&[3.0], 3.0, 3.0);
        check(&[9.0, 1.0, 5.0], 5.0, 9.0);
        check(&[4.0, 3.0, 2.0, 1.0], 2.0, 4.0);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        check(&hundred, 50.0, 95.0);
    }

    #[test]
    fn a_spent_budget_still_gives_enough_samples() {
        let mut runs = 0;
        let samples = repeat(Duration::ZERO, || runs += 1);
        assert_eq!((samples.count(), runs), (2, 3));
        runs = 0;
        let timed = || {
            runs += 1;
            Ok::<_, Infallible>(1.0)
        };
        assert_eq!(sample(Duration::ZERO, timed).map(|samples| samples.count()), Ok(FEWEST));
        assert_eq!(runs, FEWEST + 2);
    }
}
