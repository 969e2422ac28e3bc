//! Limits Triton's autotuning; `tuning.py` is the Python part.

use serde_json::{Value, json};

/// How Triton tunes a kernel that it has not tuned before, instead of the package's way: which configurations it tries,
/// and how long it measures each, instead of an eighth of a second. Results are not cached, so that the user's later
/// processes tune fully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Warm-up milliseconds.
    pub warmup_millis: u32,
    /// Measured milliseconds.
    pub millis: u32,
    /// The configurations that are tried.
    configurations: Configurations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Configurations {
    All,
    FirstThatRuns,
    Share { nth: u32, of: u32 },
}

impl Tuning {
    /// For calls that are verified and not timed, any configuration will do: the first that runs is used.
    pub const CONCURRENT: Self =
        Self { warmup_millis: 1, millis: 4, configurations: Configurations::FirstThatRuns };
    /// For timed calls, alone on the GPU: a hundred runs of a kernel of a tenth of a millisecond, which distinguish
    /// configurations as well as a thousand.
    pub const ALONE: Self =
        Self { warmup_millis: 2, millis: 10, configurations: Configurations::All };

    /// For one of several processes that each compile a share of the configurations, which a later one loads from disk.
    pub const fn compiling(nth: u32, of: u32) -> Self {
        Self { configurations: Configurations::Share { nth, of }, ..Self::CONCURRENT }
    }

    pub(super) fn request(self) -> Value {
        let share = match self.configurations {
            Configurations::All => None,
            Configurations::FirstThatRuns => Some([0, 0]),
            Configurations::Share { nth, of } => Some([nth, of]),
        };
        json!({
            "do": "tune", "warmup": self.warmup_millis, "rep": self.millis, "share": share
        })
    }
}
