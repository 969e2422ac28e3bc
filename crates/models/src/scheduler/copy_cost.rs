//! Which copies between the device and the host pay: the time on the link compared with the time to read the same tokens again.

use std::time::Duration;

/// Copies after which a part of 1 - 1/e of what is known of earlier ones is forgotten, and which are made before anything is known.
const MEMORY: f64 = 64.0;

/// Copies to the host that are left out before one is made to see whether they pay by now.
const TRIALS: u32 = 16;

/// A snapshot that comes back takes the slot of another one, which goes the other way: both directions are counted.
const DIRECTIONS: f64 = 2.0;

/// What copies to the host have cost and what those that came back have gained, lately.
#[derive(Debug, Default)]
pub(super) struct CopyCost {
    /// Seconds on the link.
    spent: f64,
    /// Seconds of reading.
    gained: f64,
    made: u32,
    left_out: u32,
}

/// Whether it is faster to bring back so many bytes, at so many per second, than to read the tokens that they save. Where either is
/// unknown it is tried.
pub(super) fn pays_to_bring(
    bytes: u64,
    per_second: Option<f64>,
    tokens: usize,
    reading: Option<Duration>,
) -> bool {
    let (Some(rate), Some(reading)) = (per_second, reading) else { return true };
    reading.as_secs_f64() * tokens as f64 >= DIRECTIONS * bytes as f64 / rate
}

impl CopyCost {
    /// Whether another copy to the host is likely to pay, by how often earlier ones were wanted again and what they saved.
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

    /// So many bytes go to the host.
    pub(super) fn saved(&mut self, bytes: u64, per_second: Option<f64>) {
        self.made = self.made.saturating_add(1);
        let Some(rate) = per_second else { return };
        let kept = 1.0 - 1.0 / MEMORY;
        self.gained *= kept;
        self.spent = self.spent * kept + bytes as f64 / rate;
    }

    /// A copy comes back, and so many tokens need not be read.
    pub(super) fn brought(&mut self, tokens: usize, reading: Option<Duration>) {
        self.gained += reading.unwrap_or_default().as_secs_f64() * tokens as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state of 81 MB over PCIe 5.0 at 50 GB/s is 1.6 ms each way; a GPU reads 269 tokens at 12 us each in the time of both.
    const BYTES: u64 = 77 << 20;
    const RATE: Option<f64> = Some(50e9);
    const READING: Option<Duration> = Some(Duration::from_micros(12));

    #[test]
    fn a_copy_comes_back_only_for_more_tokens_than_its_time_reads() {
        for (tokens, pays) in [(64, false), (256, false), (320, true), (4000, true)] {
            assert_eq!(pays_to_bring(BYTES, RATE, tokens, READING), pays, "{tokens} tokens");
        }
        assert!(pays_to_bring(BYTES, None, 1, READING) && pays_to_bring(BYTES, RATE, 1, None));
    }

    fn saved_of(asked: usize, cost: &mut CopyCost, tokens_per_copy: usize) -> usize {
        let saved = (0..asked).filter(|_| {
            let pays = cost.pays_to_save(RATE);
            if pays {
                cost.saved(BYTES, RATE);
                cost.brought(tokens_per_copy, READING);
            }
            pays
        });
        saved.count()
    }

    #[test]
    fn copies_that_are_not_wanted_again_are_left_out_but_for_trials() {
        let mut cost = CopyCost::default();
        assert_eq!(saved_of(64, &mut cost, 0), 64, "until something is known");
        assert_eq!(saved_of(1600, &mut cost, 0), 100);
        // The load changes: trials find out, and from then on all are made.
        assert!(saved_of(2000, &mut cost, 600) > 1000);
        assert_eq!(saved_of(100, &mut cost, 600), 100);
        // Where copies take no measurable time all of them are made.
        assert!((0..1000).all(|_| CopyCost::default().pays_to_save(None)));
    }
}
