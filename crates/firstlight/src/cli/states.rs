//! Storage type of recurrent states, with vLLM's name.

use clap::{Args, ValueEnum};
use models::StateType;

/// Storage type of the states of Mamba-2's scan.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct States {
    /// Storage type of the states of Mamba-2's scan; auto is float32. bfloat16 is for GPUs.
    ///
    /// It halves the memory of states and the time to read and write them when many sequences decode. A bfloat16 value
    /// has 8 significant bits: an addition of less than 2^-9 of the value is lost.
    #[arg(long = "mamba-ssm-cache-dtype", value_name = "TYPE", value_enum, default_value_t = ScanStateType::Auto)]
    held: ScanStateType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScanStateType {
    Auto,
    #[value(aliases = ["f32", "fp32", "float"])]
    Float32,
    #[value(alias = "bf16")]
    Bfloat16,
}

impl States {
    pub(crate) fn held(self) -> StateType {
        match self.held {
            ScanStateType::Auto | ScanStateType::Float32 => StateType::F32,
            ScanStateType::Bfloat16 => StateType::Bf16,
        }
    }

    /// The chosen type, if it is not the default.
    pub(crate) fn chosen(self) -> Option<&'static str> {
        let held = self.held();
        (held != StateType::default()).then(|| held.as_str())
    }
}
