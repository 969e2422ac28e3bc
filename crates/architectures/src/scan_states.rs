//! The storage type of Mamba-2's scan states.

use crate::{Architecture, Mixer};

/// The type in which an engine stores the states of Mamba-2's scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateType {
    /// float32.
    #[default]
    F32,
    /// bfloat16: half the memory and traffic. A token's contribution below 2^-9 of a state's value is lost.
    Bf16,
}

impl StateType {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Its name, as in vLLM.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// A model whose states support float32 only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} states are of Mamba-2's scan alone, and {what}",
    StateType::Bf16.as_str()
)]
pub struct UnsupportedStateType {
    /// The states of the model.
    what: String,
}

impl Mixer {
    /// Whether its recurrence is Mamba-2's scan.
    fn is_scan(&self) -> bool {
        matches!(self, Self::Mamba2(_) | Self::Parallel(_))
    }
}

impl Architecture {
    /// The model with the states of Mamba-2's scan in another type.
    ///
    /// # Errors
    /// [`UnsupportedStateType`] when the type is not float32 and the model has states of another recurrence or none.
    pub fn with_scan_states(mut self, held: StateType) -> Result<Self, UnsupportedStateType> {
        let mixers = || self.layers.iter().map(|layer| &layer.mixer);
        let other = mixers().find(|mixer| !mixer.is_scan() && mixer.states().recurrent > 0);
        let what = match other {
            _ if held == StateType::F32 => None,
            Some(other) => Some(format!("this model has layers of {} too", other.kind())),
            None if mixers().any(Mixer::is_scan) => None,
            None => Some("this model has no such layer".to_owned()),
        };
        if let Some(what) = what {
            return Err(UnsupportedStateType { what });
        }
        self.scan_states = held;
        Ok(self)
    }

    /// Bytes of a mixer's recurrent state per sequence.
    pub(crate) fn recurrent_bytes(&self, mixer: &Mixer) -> u64 {
        let held = if mixer.is_scan() { self.scan_states } else { StateType::F32 };
        mixer.states().recurrent.saturating_mul(held.bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UnexpandedWeights, shape};

    fn of(name: &str) -> Result<Architecture, UnsupportedStateType> {
        Architecture::of(&shape(name).unwrap()).unwrap().with_scan_states(StateType::Bf16)
    }

    #[test]
    fn bfloat16_states_need_only_scan_states() {
        for (name, words) in [
            ("granite-4.0-h-micro", None),
            ("falcon-h1-mini", None),
            ("kimi-linear-mini", Some("this model has layers of kda too")),
            ("qwen3-next-mini", Some("this model has layers of gated-delta-net too")),
            ("jamba-mini", Some("this model has layers of mamba too")),
            ("qwen2-mini", Some("this model has no such layer")),
            // The state of a short convolution contains inputs, not a recurrence.
            ("lfm2-moe-mini", Some("this model has no such layer")),
        ] {
            let refused = of(name).err().map(|error| error.to_string());
            let words = words
                .map(|words| format!("bfloat16 states are of Mamba-2's scan alone, and {words}"));
            assert_eq!(refused, words, "{name}");
            let plain = Architecture::of(&shape(name).unwrap()).unwrap();
            assert!(plain.with_scan_states(StateType::F32).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_step_moves_half_the_bytes_of_the_scans_states() {
        let [plain, narrow] = [StateType::F32, StateType::Bf16].map(|held| {
            let micro = Architecture::of(&shape("granite-4.0-h-micro").unwrap()).unwrap();
            micro.with_scan_states(held).unwrap().decode_bytes(
                2,
                UnexpandedWeights::Nothing,
                128,
                0,
            )
        });
        // 36 layers of 64 heads of 64 channels by 128, read and written, two bytes less each.
        assert_eq!(plain - narrow, 128 * 36 * 2 * 2 * 64 * 64 * 128);
    }
}
