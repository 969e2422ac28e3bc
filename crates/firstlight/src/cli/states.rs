//! What recurrent states are held in, by vLLM's name.

use clap::{Args, ValueEnum};
use models::StateType;

/// What the states of Mamba-2's scan are held in.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct States {
    /// Storage type of the states of Mamba-2's scan; auto is float32. bfloat16 is for GPUs.
    ///
    /// It halves the memory of states and the time that decoding many sequences takes to read and write them. A number of a state
    /// keeps 8 bits: what a token adds is lost where it is less than 2^-9 of it.
    #[arg(long = "mamba-ssm-cache-dtype", value_name = "TYPE", value_enum, default_value_t = Held::Auto)]
    held: Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Held {
    Auto,
    Float32,
    Bfloat16,
}

impl States {
    pub(crate) fn held(self) -> StateType {
        match self.held {
            Held::Auto | Held::Float32 => StateType::F32,
            Held::Bfloat16 => StateType::Bf16,
        }
    }

    /// The choice, where it is not what holds without one.
    pub(crate) fn told(self) -> Option<&'static str> {
        let held = self.held();
        (held != StateType::default()).then(|| held.as_str())
    }
}
