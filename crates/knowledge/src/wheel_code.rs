//! The GPU code inside wheels and the CUDA libraries that they need, read from the files because wheel names do not have them.

use crate::packed::table;
use crate::table::rows;
use crate::{Citation, Sm};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::sync::LazyLock;

/// The CUDA version that the libraries of one wheel need, and their GPU code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WheelCode {
    /// Major version of the CUDA runtime that its libraries need (`DT_NEEDED`): 13 for `libcudart.so.13`. `None` if they need
    /// none, or several.
    pub cuda: Option<u32>,
    /// Architectures in at least a tenth of the fatbin containers of one library; a rarer one is a linker stub or a special
    /// case. Empty for a wheel without GPU code.
    pub architectures: Vec<GpuArchitecture>,
}

/// One architecture of GPU code: `sm_90a`, `compute_80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuArchitecture {
    /// Whether it is PTX, which the driver compiles for newer GPUs.
    pub ptx: bool,
    /// The compute capability.
    pub sm: Sm,
    /// `a` for architecture-specific code, `f` for family-specific code.
    pub suffix: Option<char>,
}

impl GpuArchitecture {
    /// Parses `sm_90a` or `compute_80`.
    pub fn parse(text: &str) -> Option<Self> {
        let (ptx, rest) = match text.strip_prefix("sm_") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("compute_")?),
        };
        let suffix = rest.chars().last().filter(|last| matches!(last, 'a' | 'f'));
        let number: u32 = rest.strip_suffix(['a', 'f']).unwrap_or(rest).parse().ok()?;
        Some(Self { ptx, sm: (number / 10, number % 10), suffix })
    }

    /// Whether a GPU runs it. A Tegra GPU runs machine code of exactly its compute capability.
    pub fn runs_on(self, gpu: Sm, tegra: bool) -> bool {
        match (self.ptx, self.suffix) {
            (_, Some('a')) => self.sm == gpu,
            (true, None) => self.sm <= gpu,
            _ if tegra => self.sm == gpu,
            _ => self.sm.0 == gpu.0 && self.sm.1 <= gpu.1,
        }
    }
}

impl fmt::Display for GpuArchitecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.ptx { "compute" } else { "sm" };
        write!(f, "{kind}_{}{}", self.sm.0, self.sm.1)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}

impl WheelCode {
    /// Whether a GPU runs one of the wheel's architectures; true for a wheel without GPU code.
    pub fn runs_on(&self, gpu: Sm, tegra: bool) -> bool {
        self.architectures.is_empty()
            || self.architectures.iter().any(|one| one.runs_on(gpu, tegra))
    }

    /// The architectures as torch prints them: `sm_80 sm_90a compute_90`.
    pub fn words(&self) -> String {
        let words: Vec<String> = self.architectures.iter().map(ToString::to_string).collect();
        words.join(" ")
    }

    /// Parses the text of [`Self::words`].
    pub fn parse(cuda: Option<u32>, words: &str) -> Option<Self> {
        let architectures =
            words.split_whitespace().map(GpuArchitecture::parse).collect::<Option<_>>()?;
        Some(Self { cuda, architectures })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// SHA-256 of the wheel.
    sha256: String,
    cuda: Option<u32>,
    #[serde(deserialize_with = "architectures")]
    code: Vec<GpuArchitecture>,
    #[allow(dead_code, reason = "a row without a source does not parse")]
    source: Citation,
}

fn architectures<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<GpuArchitecture>, D::Error> {
    let text = String::deserialize(from)?;
    let read = WheelCode::parse(None, &text).map(|code| code.architectures);
    read.ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not like `sm_80 sm_90a`")))
}

static ROWS: LazyLock<Vec<(String, WheelCode)>> = LazyLock::new(|| {
    let read = rows::<Row>(table!("wheel_code.toml"), "wheel");
    let code = |row: Row| (row.sha256, WheelCode { cuda: row.cuda, architectures: row.code });
    read.into_iter().map(code).collect()
});

/// The code of the wheel with this SHA-256; `None` if it is not in the table.
pub fn wheel_code(sha256: &str) -> Option<&'static WheelCode> {
    ROWS.iter().find(|row| row.0 == sha256).map(|row| &row.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pypi;

    #[test]
    fn architectures_run_on_the_same_and_newer_gpus() {
        let check = |words: &str, gpu: Sm, tegra: bool, expect: bool| {
            let code = WheelCode::parse(Some(12), words).expect(words);
            assert_eq!(code.words(), words);
            assert_eq!(code.runs_on(gpu, tegra), expect, "{words} on {gpu:?}");
        };
        check("sm_70 sm_80", (7, 5), false, true);
        check("sm_80 sm_90a", (7, 0), false, false);
        check("sm_90a", (9, 0), false, true);
        check("sm_100a sm_100f", (10, 3), false, true);
        check("sm_100a", (10, 3), false, false);
        check("sm_80 compute_90", (12, 0), false, true);
        check("compute_90a", (10, 0), false, false);
        check("sm_80", (8, 7), true, false);
        check("", (7, 0), false, true);
        assert_eq!(WheelCode::parse(None, "sm80"), None);
    }

    #[test]
    fn every_vllm_wheel_of_the_table_has_its_code() {
        let wheels = || pypi::releases("vllm").flat_map(|row| &row.files);
        for file in wheels().filter(|file| file.name.ends_with(".whl")) {
            let code = wheel_code(&file.sha256).expect(&file.name);
            assert!(code.cuda.is_some() && !code.architectures.is_empty(), "{}", file.name);
        }
    }
}
