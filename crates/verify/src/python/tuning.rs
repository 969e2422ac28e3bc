//! How long Triton looks for the best configuration of a kernel; `tuning.py` is its other half.

use serde_json::{Value, json};

/// How Triton finds the configuration of a kernel that is new to it, where not as its package does: which configurations it
/// tries, and how long it measures each, in place of an eighth of a second. What is found so is kept nowhere: later processes
/// of the user's are to find the best ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Milliseconds before it is measured.
    pub warmup_millis: u32,
    /// Milliseconds in which it is measured.
    pub millis: u32,
    /// Which of them are tried.
    configurations: Configurations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Configurations {
    All,
    FirstThatRuns,
    Share { nth: u32, of: u32 },
}

impl Tuning {
    /// Where a call is verified and not timed, any of its configurations will do: the first that runs is taken.
    pub const BESIDE_OTHERS: Self =
        Self { warmup_millis: 1, millis: 4, configurations: Configurations::FirstThatRuns };
    /// For what is timed, alone on the GPU: a hundred runs of a kernel of a tenth of a millisecond, which tell configurations
    /// apart as well as a thousand do.
    pub const ALONE: Self =
        Self { warmup_millis: 2, millis: 10, configurations: Configurations::All };

    /// For one of several processes that compile all configurations, each its share, for a later one to find on the disk.
    pub const fn compiling(nth: u32, of: u32) -> Self {
        Self { configurations: Configurations::Share { nth, of }, ..Self::BESIDE_OTHERS }
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
