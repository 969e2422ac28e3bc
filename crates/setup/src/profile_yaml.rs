//! The versions of a stack as a YAML file.

use facts::InstallPlan;
use serde::{Deserialize, Serialize};

/// The versions of one stack, and two settings of the program that uses it (row R4-07).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// torch, without its label: `2.3.1`.
    pub torch_version: String,
    /// triton, if the stack has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triton_version: Option<String>,
    /// flash-attn, if the stack has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_attn_version: Option<String>,
    /// CUDA release of torch's build: `12.1`; without it torch runs on the processor or with Metal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
    /// Selects the Triton kernel for selected attention even if it was found slower or wrong. Testing only.
    #[serde(default)]
    pub triton_sel_force: bool,
    /// Whether FlashAttention-2 may be used.
    #[serde(default)]
    pub fa2_enabled: bool,
}

/// The purpose of reading a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To plan or to run a stack.
    Use,
    /// To test a kernel that is not ready for use.
    Testing,
}

/// Why a text is not a valid profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It is not YAML, or has other keys or types.
    #[error("not a profile: {0}")]
    Text(#[from] yaml_serde::Error),
    /// It sets a switch that is only for tests.
    #[error("`triton_sel_force` is for testing only: it selects a kernel that may be wrong")]
    Forced,
    /// FlashAttention-2 is enabled, and its version is missing.
    #[error("`fa2_enabled` is set without a `flash_attn_version`")]
    NoFlashAttention,
}

impl ProfileError {
    /// The remedy.
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

impl ProfileFile {
    /// Reads a profile.
    ///
    /// # Errors
    /// The text is not a profile, or sets `triton_sel_force` and is not read for testing.
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

    /// Writes it, so that it reads back the same.
    ///
    /// # Errors
    /// YAML cannot represent it.
    pub fn write(&self) -> Result<String, ProfileError> {
        Ok(yaml_serde::to_string(self)?)
    }

    /// The versions of a plan; `None` without torch.
    pub fn of(plan: &InstallPlan) -> Option<Self> {
        let version = |name: &str| {
            let package = plan.packages.iter().find(|package| package.name == name)?;
            let public = package.version.split('+').next()?;
            // A plan has no version for packages that only uv resolves.
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

    /// The packages as requirements.
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
    use super::{ProfileError, ProfileFile, Purpose};

    const REPORTED: &str = "torch_version: 2.3.1\ntriton_version: 2.3.1\nflash_attn_version: 2.5.9\n\
                            cuda_version: '12.1'\ntriton_sel_force: false\nfa2_enabled: true\n";

    #[test]
    fn r4_07_a_profile_is_read_written_and_read_the_same() {
        let profile = ProfileFile::read(REPORTED, Purpose::Use).unwrap();
        assert_eq!(profile.write().unwrap(), REPORTED);
        assert_eq!(profile.requirements(), ["torch==2.3.1", "triton==2.3.1", "flash-attn==2.5.9"]);
        for text in ["torch_version: 2.10", "torch_version: '2.10'\ncuda_version: \"13.0\"\n"] {
            let profile = ProfileFile::read(text, Purpose::Use).unwrap();
            assert_eq!(profile.torch_version, "2.10", "a version is not a number");
            let written = profile.write().unwrap();
            assert_eq!(ProfileFile::read(&written, Purpose::Use).unwrap(), profile, "{written}");
        }
    }

    #[test]
    fn r4_07_the_forced_switch_is_refused_outside_tests() {
        let text = REPORTED.replace("force: false", "force: true");
        let error = ProfileFile::read(&text, Purpose::Use).unwrap_err();
        assert!(matches!(error, ProfileError::Forced), "{error}");
        let profile = ProfileFile::read(&text, Purpose::Testing).unwrap();
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
            let error = ProfileFile::read(text, Purpose::Use).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert!(!error.hint().is_empty(), "{text}");
        }
    }
}
