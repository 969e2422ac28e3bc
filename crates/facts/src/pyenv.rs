use crate::{Fact, NativeFile};
use serde::{Deserialize, Serialize};

/// One Python environment, read from its files without running or importing any package.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PyEnv {
    /// Environment folder.
    pub root: String,
    /// Virtual environment, conda environment or system Python.
    pub kind: EnvKind,
    /// How it was found: `--venv`, `VIRTUAL_ENV`, `CONDA_PREFIX`, `./.venv`, `python on PATH`.
    pub found_by: String,
    /// Who made it or installs into it.
    pub manager: Option<Fact<EnvManager>>,
    /// The interpreter.
    pub interpreter: Interpreter,
    /// Folders packages are read from.
    pub site_packages: Vec<String>,
    /// Installed distributions, sorted by normalised name.
    pub dists: Vec<Dist>,
    /// torch, when installed.
    pub torch: Option<Torch>,
    /// Compiled extensions and bundled shared libraries.
    pub native_files: Vec<NativeFile>,
    /// The ptxas programs that Triton brings, each with the CUDA release its own bytes name: `12.8`.
    #[serde(default)]
    pub ptxas: Vec<Fact<String>>,
    /// What could not be read, one sentence each, naming the file.
    pub problems: Vec<String>,
}

impl PyEnv {
    /// The distribution with this name, compared as PEP 503 normalises names.
    pub fn dist(&self, name: &str) -> Option<&Dist> {
        let wanted = Dist::normalise(name);
        self.dists.iter().find(|dist| Dist::normalise(&dist.name) == wanted)
    }
}

/// What sort of environment it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvKind {
    /// A folder with a pyvenv.cfg.
    Venv,
    /// A folder with conda-meta.
    Conda,
    /// An interpreter with its own site-packages.
    System,
}

/// Who manages an environment: decides the words of a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvManager {
    /// uv.
    Uv,
    /// pip.
    Pip,
    /// conda, mamba or micromamba.
    Conda,
}

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// The executable as the environment names it.
    pub executable: Option<String>,
    /// The file behind the links.
    pub resolved: Option<String>,
    /// Full version: `3.12.3`.
    pub version: Option<Fact<String>>,
    /// Wheel ABI tag: `cp312`, `cp313t`.
    pub abi_tag: Option<Fact<String>>,
    /// The installation a virtual environment was made from (`home` in pyvenv.cfg).
    pub base: Option<String>,
}

/// One installed distribution (a dist-info folder).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dist {
    /// Name as its METADATA gives it.
    pub name: String,
    /// Version as its METADATA gives it.
    pub version: String,
    /// The dist-info folder.
    pub path: String,
    /// `Tag:` lines of WHEEL: `cp312-cp312-manylinux_2_28_x86_64`.
    pub tags: Vec<String>,
    /// `Requires-Dist:` lines.
    pub requires: Vec<String>,
    /// `Requires-Python:`, where given.
    pub requires_python: Option<String>,
    /// INSTALLER's word: `pip`, `uv`, `conda`.
    pub installer: Option<String>,
    /// Files listed in RECORD; `None` when there is no readable RECORD.
    pub record_files: Option<u32>,
}

impl Dist {
    /// PEP 503: lower case, runs of `-`, `_` and `.` become one `-`.
    pub fn normalise(name: &str) -> String {
        let mut out = String::with_capacity(name.len());
        for letter in name.chars() {
            if matches!(letter, '-' | '_' | '.') {
                if !out.ends_with('-') {
                    out.push('-');
                }
            } else {
                out.extend(letter.to_lowercase());
            }
        }
        out
    }
}

/// What torch/version.py says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torch {
    /// `__version__`: `2.11.0+cu130`.
    pub version: String,
    /// `cuda`: the CUDA release torch was built with, `None` for a CPU-only build.
    pub cuda: Option<String>,
    /// `hip`, where given.
    pub hip: Option<String>,
    /// `git_version`, where given.
    pub git_version: Option<String>,
    /// The file that was read.
    pub source: String,
}

#[cfg(test)]
mod tests {
    use super::Dist;

    #[test]
    fn names_are_compared_as_pep_503_says() {
        for name in ["Flash-Attn", "flash_attn", "flash.attn", "FLASH--_attn"] {
            assert_eq!(Dist::normalise(name), "flash-attn");
        }
    }
}
