//! Error codes of CUDA, HIP, cuDNN, cuBLAS and NCCL, and advice for each class of codes.

use crate::Citation;
use crate::messages::CauseRow;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// One code of the CUDA or HIP API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Its number.
    pub code: u32,
    /// The runtime's name.
    pub name: String,
    /// The driver API's name; empty if it has none.
    #[serde(default)]
    pub driver: String,
    /// The text of cudaGetErrorString; empty for HIP.
    #[serde(default)]
    pub words: String,
    /// Whether no other program prints this text.
    #[serde(default)]
    pub distinct: bool,
    /// The class of advice; empty for HIP.
    #[serde(default)]
    pub advice: String,
    /// Source of the row.
    pub source: Citation,
}

/// One status of a library.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryStatus {
    /// Its name, or the text that is printed for it.
    pub name: String,
    /// The library: `cuDNN`, `cuBLAS` or `NCCL`.
    pub library: String,
    /// The class of advice.
    pub advice: String,
    /// Source of the row.
    pub source: Citation,
}

/// Meaning and commands of a class of codes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// The class.
    pub name: String,
    /// The meaning of the code, and the cause if there is only one.
    pub meaning: String,
    /// The possible causes; empty if there is only one.
    #[serde(default)]
    pub causes: Vec<CauseRow>,
    /// Commands that are right under every cause; `{python}` is the environment's interpreter.
    #[serde(default)]
    pub fix: Vec<String>,
    /// Source of the row.
    pub source: Citation,
}

static CUDA: LazyLock<Vec<Code>> = LazyLock::new(|| rows(table!("gpu_codes.toml"), "cuda"));
static HIP: LazyLock<Vec<Code>> = LazyLock::new(|| rows(table!("gpu_codes.toml"), "hip"));
static STATUS: LazyLock<Vec<LibraryStatus>> =
    LazyLock::new(|| rows(table!("gpu_codes.toml"), "status"));
static ADVICE: LazyLock<Vec<Advice>> = LazyLock::new(|| rows(table!("gpu_codes.toml"), "advice"));

/// Codes of the CUDA runtime and driver APIs, by number.
pub fn cuda() -> &'static [Code] {
    &CUDA
}

/// Codes of HIP, by number.
pub fn hip() -> &'static [Code] {
    &HIP
}

/// Statuses of cuDNN, cuBLAS and NCCL.
pub fn statuses() -> &'static [LibraryStatus] {
    &STATUS
}

/// The advice of a class.
pub fn advice(class: &str) -> Option<&'static Advice> {
    ADVICE.iter().find(|advice| advice.name == class)
}

#[cfg(test)]
mod tests {
    use super::{advice, cuda, hip, statuses};

    #[test]
    fn each_code_has_advice_and_a_unique_number() {
        for codes in [cuda(), hip()] {
            assert!(codes.windows(2).all(|pair| pair[0].code < pair[1].code));
        }
        let classes = cuda().iter().map(|code| &code.advice);
        for class in classes.chain(statuses().iter().map(|status| &status.advice)) {
            let advice = advice(class).unwrap_or_else(|| panic!("no advice {class}"));
            assert!(!advice.fix.is_empty() || advice.causes.len() > 1, "{class}");
        }
        let named = |name: &str| cuda().iter().find(|code| code.name == name).map(|code| code.code);
        assert_eq!(named("cudaErrorIllegalAddress"), Some(700));
        assert_eq!(
            hip().iter().find(|code| code.code == 209).unwrap().name,
            "hipErrorNoBinaryForGpu"
        );
    }
}
