//! A stack's versions as a YAML file, read and written.

use facts::Plan;
use serde::{Deserialize, Serialize};

/// The versions of one stack, and two settings of the program on it (row R4-07).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// torch, without its label: `2.3.1`.
    pub torch_version: String,
    /// triton, where the stack has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triton_version: Option<String>,
    /// flash-attn, where the stack has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_attn_version: Option<String>,
    /// CUDA release of torch's build: `12.1`; without it torch computes on the processor or by Metal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    /// Takes the Triton kernel for selected attention even where it was found slower or wrong. Testing only.
    #[serde(default)]
    pub triton_sel_force: bool,
    /// Whether FlashAttention-2 may be used.
    #[serde(default)]
    pub fa2_enabled: bool,
}

/// What a profile is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To plan or to run a stack.
    Use,
    /// To test a kernel that nobody should use yet.
    Testing,
}

/// Why a text is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is not YAML, or has other keys or types.
    #[error("not a profile: {0}")]
    Text(#[from] yaml_serde::Error),
    /// It sets a switch that is for tests.
    #[error("`triton_sel_force` is for testing only: it takes a kernel that may be wrong")]
    Forced,
    /// FlashAttention-2 is to be used, and is not there.
    #[error("`fa2_enabled` is set without a `flash_attn_version`")]
    NoFlashAttention,
}

impl ProfileError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Text(_) => {
                "the keys are torch_version, triton_version, flash_attn_version, cuda_version, triton_sel_force and \
                 fa2_enabled; quote a version, for 12.10 is not 12.1"
            }
            Self::Forced => "set it to false",
            Self::NoFlashAttention => "name the version, or set it to false",
        }
    }
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Where the text is none, or sets `triton_sel_force` and is not read for testing.
    pub fn read(text: &str, purpose: Purpose) -> Result<Self, ProfileError> {
        let profile: Self = yaml_serde::from_str(text)?;
        if profile.triton_sel_force && purpose != Purpose::Testing {
            return Err(ProfileError::Forced);
        }
        if profile.fa2_enabled && profile.flash_attn_version.is_none() {
            return Err(ProfileError::NoFlashAttention);
        }
        Ok(profile)
    }

    /// Writes it, so that it is read again the same.
    ///
    /// # Errors
    /// Where YAML cannot hold it.
    pub fn write(&self) -> Result<String, ProfileError> {
        Ok(yaml_serde::to_string(self)?)
    }

    /// The versions of a plan; `None` where it has no torch.
    pub fn of(plan: &Plan) -> Option<Self> {
        let version = |name: &str| {
            let package = plan.packages.iter().find(|package| package.name == name)?;
            let public = package.version.split('+').next()?;
            // A plan names no version of what only uv knows.
            (!public.is_empty()).then(|| public.to_owned())
        };
        let flash_attn_version = version("flash-attn");
        Some(Self {
            torch_version: version("torch")?,
            triton_version: version("triton"),
            fa2_enabled: flash_attn_version.is_some(),
            flash_attn_version,
            cuda_version: plan.cuda.clone(),
            triton_sel_force: false,
        })
    }

    /// The packages it names, as requirements.
    pub fn requirements(&self) -> Vec<String> {
        let named = [
            ("torch", Some(&self.torch_version)),
            ("triton", self.triton_version.as_ref()),
            ("flash-attn", self.flash_attn_version.as_ref()),
        ];
        let pin = |(name, version): (&str, Option<&String>)| Some(format!("{name}=={}", version?));
        named.into_iter().filter_map(pin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Profile, ProfileError, Purpose};

    const REPORTED: &str = "torch_version: 2.3.1\ntriton_version: 2.3.1\nflash_attn_version: 2.5.9\n\
                            cuda_version: '12.1'\ntriton_sel_force: false\nfa2_enabled: true\n";

    #[test]
    fn r4_07_a_profile_is_read_written_and_read_the_same() {
        let profile = Profile::read(REPORTED, Purpose::Use).unwrap();
        assert_eq!(profile.write().unwrap(), REPORTED);
        assert_eq!(profile.requirements(), ["torch==2.3.1", "triton==2.3.1", "flash-attn==2.5.9"]);
        for text in ["torch_version: 2.10", "torch_version: '2.10'\ncuda_version: \"13.0\"\n"] {
            let profile = Profile::read(text, Purpose::Use).unwrap();
            assert_eq!(profile.torch_version, "2.10", "a version is no number");
            let written = profile.write().unwrap();
            assert_eq!(Profile::read(&written, Purpose::Use).unwrap(), profile, "{written}");
        }
    }

    #[test]
    fn r4_07_the_forced_switch_is_refused_outside_tests() {
        let text = REPORTED.replace("force: false", "force: true");
        let error = Profile::read(&text, Purpose::Use).unwrap_err();
        assert!(matches!(error, ProfileError::Forced), "{error}");
        let profile = Profile::read(&text, Purpose::Testing).unwrap();
        assert!(profile.triton_sel_force);
        assert_eq!(profile.write().unwrap(), text);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, words) in [
            ("torch_version: 2.3.1\ntorch: 2.3.1\n", "unknown field `torch`"),
            ("triton_version: 2.3.1\n", "torch_version"),
            ("torch_version: 2.3.1\nfa2_enabled: true\n", "without a `flash_attn_version`"),
            ("torch_version: [2\n", "not a profile"),
            ("", "not a profile"),
        ] {
            let error = Profile::read(text, Purpose::Use).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(!error.hint().is_empty(), "{text}");
        }
    }
}
