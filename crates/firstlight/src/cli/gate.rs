//! Arguments of `gate`.

use super::{DriverTimeout, percent};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(override_usage = "firstlight gate [OPTIONS] --certificate <FILE>")]
pub(crate) struct Gate {
    /// The former name of `compare BASE RUN --fail`: the run to check.
    #[arg(value_name = "RUN", hide = true, requires = "baseline", conflicts_with = "certificate")]
    pub(crate) run: Option<PathBuf>,
    /// The run to compare it with.
    #[arg(long, value_name = "RUN", hide = true)]
    pub(crate) baseline: Option<PathBuf>,
    /// How much longer, in percent, a median may be than in the baseline.
    #[arg(long, value_name = "PERCENT", hide = true, default_value_t = report::TOLERANCE_PCT, value_parser = percent)]
    pub(crate) tolerance: f64,
    /// Allow runs of different machines.
    #[arg(long, hide = true)]
    pub(crate) any_machine: bool,
    /// Also write gate.md and gate.html into this folder.
    #[arg(short, long, value_name = "DIR", hide = true)]
    pub(crate) output: Option<PathBuf>,
    /// A certificate that `check --certificate FILE` wrote on this machine.
    #[arg(long, value_name = "FILE", required_unless_present = "run")]
    pub(crate) certificate: Option<PathBuf>,
    /// Public key of the signer in PEM. Default: ~/.config/firstlight/signing-key.pub.pem.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) public_key: Option<PathBuf>,
    /// Oldest certificate that is accepted, such as 90m, 24h or 7d.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time_span)]
    pub(crate) max_age: Duration,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
}

/// A duration with its unit: minutes, hours or days.
fn time_span(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number with m, h or d, such as 90m, 24h or 7d".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_span_has_a_unit() {
        for (text, minutes) in [("90m", 90), ("24h", 1440), ("7d", 10_080), ("0h", 0)] {
            assert_eq!(time_span(text), Ok(Duration::from_secs(60 * minutes)));
        }
        for text in ["", "h", "24", "24s", "-1h", "1.5h", "99999999999999999999d", "é"] {
            assert!(time_span(text).is_err(), "{text}");
        }
    }
}
