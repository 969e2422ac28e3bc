//! How long Triton looks for the best configuration of a kernel; `tuning.py` is its other half.

use serde_json::{Value, json};

/// How long Triton measures each configuration of a kernel that is new to it, in place of an eighth of a second. What is found
/// so is kept nowhere: later processes of the user's are to find the best ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Milliseconds before it is measured.
    pub warmup_millis: u32,
    /// Milliseconds in which it is measured.
    pub millis: u32,
}

impl Tuning {
    /// Where a call is verified and not timed, any of its configurations will do.
    pub const BESIDE_OTHERS: Self = Self { warmup_millis: 1, millis: 4 };
    /// For what is timed, alone on the GPU: a hundred runs of a kernel of a tenth of a millisecond, which tell configurations
    /// apart as well as a thousand do.
    pub const ALONE: Self = Self { warmup_millis: 2, millis: 10 };

    pub(super) fn request(self) -> Value {
        json!({ "do": "tune", "warmup": self.warmup_millis, "rep": self.millis })
    }
}
