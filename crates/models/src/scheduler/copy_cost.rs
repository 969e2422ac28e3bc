//! Decides which copies between device and host pay off: time on the link compared with time to recompute the tokens.

use std::time::Duration;

/// Number of copies after which past observations have decayed by 1 - 1/e, and which are made before anything is known.
const MEMORY: f64 = 64.0;

/// Copies to the host that are skipped before one is tried again.
const TRIALS: u32 = 16;

/// A snapshot that is swapped in takes the slot of another, which is swapped out: both directions are counted.
const DIRECTIONS: f64 = 2.0;

/// Decayed sums of the cost of copies to the host and the gain of copies back.
#[derive(Debug, Default)]
pub(super) struct CopyCost {
    /// Seconds on the link.
    spent: f64,
    /// Seconds of prefill that were saved.
    gained: f64,
    made: u32,
    left_out: u32,
}

/// Whether copying `bytes` to the device is faster than prefilling the tokens that they save. Copied if either speed is
/// unknown.
pub(super) fn pays_to_restore(
    bytes: u64,
    per_second: Option<f64>,
    tokens: usize,
    reading: Option<Duration>,
) -> bool {
    let (Some(rate), Some(reading)) = (per_second, reading) else { return true };
    reading.as_secs_f64() * tokens as f64 >= DIRECTIONS * bytes as f64 / rate
}

impl CopyCost {
    /// Whether another copy to the host is likely to pay off, given how often earlier ones were used and what they
    /// saved.
    pub(super) fn pays_to_save(&mut self, per_second: Option<f64>) -> bool {
        let known = per_second.is_some() && f64::from(self.made) >= MEMORY;
        if !known || self.gained >= self.spent {
            return true;
        }
        self.left_out += 1;
        if self.left_out < TRIALS {
            return false;
        }
        self.left_out = 0;
        true
    }

    /// Records a copy to the host.
    pub(super) fn saved(&mut self, bytes: u64, per_second: Option<f64>) {
        self.made = self.made.saturating_add(1);
        let Some(rate) = per_second else { return };
        let kept = 1.0 - 1.0 / MEMORY;
        self.gained *= kept;
        self.spent = self.spent * kept + bytes as f64 / rate;
    }

    /// Records a copy to the device that saves `tokens` tokens.
    pub(super) fn record_restore(&mut self, tokens: usize, reading: Option<Duration>) {
        self.gained += reading.unwrap_or_default().as_secs_f64() * tokens as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state of 81 MB over PCIe 5.0 at 50 GB/s takes 1.6 ms each way; a GPU prefills 269 tokens at 12 us each in that
    /// time.
    const BYTES: u64 = 77 << 20;
    const RATE: Option<f64> = Some(50e9);
    const READING: Option<Duration> = Some(Duration::from_micros(12));

    #[test]
    fn copy_is_restored_only_if_faster_than_prefill() {
        for (tokens, pays) in [(64, false), (256, false), (320, true), (4000, true)] {
            assert_eq!(pays_to_restore(BYTES, RATE, tokens, READING), pays, "{tokens} tokens");
        }
        assert!(pays_to_restore(BYTES, None, 1, READING) && pays_to_restore(BYTES, RATE, 1, None));
    }

    fn saved_of(asked: usize, cost: &mut CopyCost, tokens_per_copy: usize) -> usize {
        let saved = (0..asked).filter(|_| {
            let pays = cost.pays_to_save(RATE);
            if pays {
                cost.saved(BYTES, RATE);
                cost.record_restore(tokens_per_copy, READING);
            }
            pays
        });
        saved.count()
    }

    #[test]
    fn unused_copies_stop_except_trials() {
        let mut cost = CopyCost::default();
        assert_eq!(saved_of(64, &mut cost, 0), 64, "until something is known");
        assert_eq!(saved_of(1600, &mut cost, 0), 100);
        // The load changes: trials detect it, and then all copies are made.
        assert!(saved_of(2000, &mut cost, 600) > 1000);
        assert_eq!(saved_of(100, &mut cost, 600), 100);
        // If copies take no measurable time, all of them are made.
        assert!((0..1000).all(|_| CopyCost::default().pays_to_save(None)));
    }
}
