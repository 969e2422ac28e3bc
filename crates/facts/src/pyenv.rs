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
    /// What the version files of torch's companions (torchvision, torchaudio) say, by distribution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<Companion>,
    /// Folders that PYTHONPATH puts in front of the environment's own, with the packages in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_front: Vec<PathFolder>,
    /// Imports of packages that are required and not installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmet_imports: Vec<UnmetImport>,
    /// Names that imports ask of installed packages and that these do not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_names: Vec<MissingName>,
    /// What could not be read, one sentence each, naming the file.
    pub problems: Vec<String>,
}

impl PyEnv {
    /// The distribution with this name, compared as PEP 503 normalises names.
    pub fn dist(&self, name: &str) -> Option<&Dist> {
        self.dists.iter().find(|dist| Dist::same_name(&dist.name, name))
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Files that are not as RECORD says; a bounded number of them, compiled files and Python modules first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub altered: Vec<AlteredFile>,
    /// How many files are not as RECORD says, in all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub altered_total: u32,
}

/// Whether a count needs no line in the JSON. By reference, as serde asks.
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A file that is not as its distribution's RECORD says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlteredFile {
    /// The file.
    pub path: String,
    /// In what it differs.
    pub how: Alteration,
    /// Another distribution that lists the file too, and whose RECORD it agrees with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<String>,
}

/// In what a file differs from its RECORD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alteration {
    /// It is not there.
    Missing,
    /// It has another size, in bytes.
    Size {
        /// What RECORD says.
        recorded: u64,
        /// What is there.
        found: u64,
    },
    /// It has the recorded size and another SHA-256.
    Hash,
    /// It is a Python file with zero bytes in it, which Python refuses.
    Zeros,
    /// It is a Python file that is shorter, in bytes, and ends in the middle of a line.
    CutOff {
        /// What RECORD says.
        recorded: u64,
        /// What is there.
        found: u64,
    },
}

impl Dist {
    /// PEP 503: lower case, runs of `-`, `_` and `.` become one `-`.
    pub fn normalise(name: &str) -> String {
        let mut out = String::with_capacity(name.len());
        out.extend(normalised(name));
        out
    }

    /// Whether both are names of one distribution.
    pub fn same_name(one: &str, other: &str) -> bool {
        normalised(one).eq(normalised(other))
    }
}

/// The letters of a normalised name. PEP 508 allows ASCII alone.
fn normalised(name: &str) -> impl Iterator<Item = char> {
    let is_mark = |letter: char| matches!(letter, '-' | '_' | '.');
    let mut before = None;
    name.chars().filter_map(move |letter| {
        let repeats = is_mark(letter) && before.replace(letter).is_some_and(is_mark);
        before = Some(letter);
        (!repeats).then(|| if is_mark(letter) { '-' } else { letter.to_ascii_lowercase() })
    })
}

/// What the version file of a package compiled for one torch says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Companion {
    /// The distribution.
    pub name: String,
    /// `__version__`: `2.11.0+cu130`.
    pub version: String,
    /// The file that was read.
    pub source: String,
    /// The Python file that compares CUDA's major and minor version with torch's when it is imported, where there is one.
    pub compares_cuda: Option<String>,
}

/// A folder of PYTHONPATH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFolder {
    /// The folder.
    pub folder: String,
    /// Top-level packages that it hides in the environment, or brings alone, and that have compiled files.
    pub modules: Vec<PathModule>,
}

/// A top-level package with compiled modules in a folder of PYTHONPATH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathModule {
    /// Its name: `numpy`.
    pub name: String,
    /// Whether the environment has a package of this name, which is hidden.
    pub hides: bool,
    /// The releases its compiled modules are named for: `310`, `313t`; empty where they fit any.
    pub releases: Vec<String>,
    /// One of those modules.
    pub example: String,
    /// The release that the dist-info of its name there is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// An import of a package that is required and not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmetImport {
    /// The distribution that imports it.
    pub dist: String,
    /// The requirement that is not installed, its name as PEP 503 normalises it.
    pub requirement: String,
    /// File and line of an import that runs whenever the distribution's package is imported.
    pub at: String,
}

/// A name that an import asks for and that the installed package certainly does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingName {
    /// The distribution whose file asks for it; `None` for a file that no RECORD lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dist: Option<String>,
    /// File and line of the statement.
    pub at: String,
    /// The module that is asked: `huggingface_hub.utils`.
    pub module: String,
    /// The name.
    pub name: String,
    /// How it is asked for.
    pub kind: MissingKind,
    /// The distribution that the module is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Modules whose import fails by it: packages, and the modules of commands.
    pub imports: Vec<String>,
    /// Files and lines of the imports that lead there, the outermost last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
}

/// How an import asks for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingKind {
    /// `from module import name`.
    Name,
    /// `import module.name`.
    Submodule,
    /// `module.name` in an expression.
    Attribute,
    /// The version of the module has to equal that of the package `name`, and does not.
    Version,
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
