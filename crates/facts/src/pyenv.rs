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
    /// The tool that created it or installs into it.
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
    /// Triton's ptxas programs.
    #[serde(default)]
    pub ptxas: Vec<Ptxas>,
    /// The version files of torch's companions (torchvision, torchaudio), by distribution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<Companion>,
    /// Folders of PYTHONPATH that precede the environment's, with their packages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_front: Vec<PathFolder>,
    /// Imports of required packages that are not installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmet_imports: Vec<UnmetImport>,
    /// Imported names that installed packages do not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_names: Vec<MissingName>,
    /// Problems of reading it, one sentence each, naming the file.
    pub problems: Vec<String>,
}

impl PyEnv {
    /// The distribution with this name, normalized by PEP 503.
    pub fn dist(&self, name: &str) -> Option<&Dist> {
        self.dists.iter().find(|dist| Dist::same_name(&dist.name, name))
    }
}

/// The kind of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvKind {
    /// A folder with a pyvenv.cfg.
    Venv,
    /// A folder with conda-meta.
    Conda,
    /// An interpreter with its site-packages.
    System,
}

/// The manager of an environment, which determines the commands of a remedy.
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
    /// The file after resolving links.
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
    /// Files that differ from RECORD; a limited number, compiled files and Python modules first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub altered: Vec<AlteredFile>,
    /// Total number of files that differ from RECORD.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub altered_total: u32,
}

/// Whether a count is omitted from the JSON. By reference, as serde requires.
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A file that differs from its distribution's RECORD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlteredFile {
    /// The file.
    pub path: String,
    /// The difference.
    pub how: Alteration,
    /// Another distribution that lists the file and whose RECORD matches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<String>,
}

/// How a file differs from its RECORD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Alteration {
    /// It is missing.
    Missing,
    /// It has another size, in bytes.
    Size {
        /// The recorded size.
        recorded: u64,
        /// The actual size.
        found: u64,
    },
    /// It has the recorded size but another SHA-256.
    Hash,
    /// It is a Python file with NUL bytes, which Python refuses.
    Zeros,
    /// It is a shorter Python file that ends within a line.
    CutOff {
        /// The recorded size.
        recorded: u64,
        /// The actual size.
        found: u64,
    },
}

impl Dist {
    /// PEP 503 normalization: lower case, runs of `-`, `_` and `.` become one `-`.
    pub fn normalise(name: &str) -> String {
        let mut out = String::with_capacity(name.len());
        out.extend(normalised(name));
        out
    }

    /// Whether both names denote the same distribution.
    pub fn same_name(one: &str, other: &str) -> bool {
        normalised(one).eq(normalised(other))
    }
}

/// The characters of a normalized name. PEP 508 allows ASCII only.
fn normalised(name: &str) -> impl Iterator<Item = char> {
    let is_mark = |letter: char| matches!(letter, '-' | '_' | '.');
    let mut before = None;
    name.chars().filter_map(move |letter| {
        let repeats = is_mark(letter) && before.replace(letter).is_some_and(is_mark);
        before = Some(letter);
        (!repeats).then(|| if is_mark(letter) { '-' } else { letter.to_ascii_lowercase() })
    })
}

/// The version file of a package compiled for a specific torch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Companion {
    /// The distribution.
    pub name: String,
    /// `__version__`: `2.11.0+cu130`.
    pub version: String,
    /// The file that was read.
    pub source: String,
    /// The Python file that compares CUDA's major and minor version with torch's on import, if there is one.
    pub compares_cuda: Option<String>,
}

/// A folder of PYTHONPATH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFolder {
    /// The folder.
    pub folder: String,
    /// Top-level packages with compiled files, which hide those of the environment or exist only here.
    pub modules: Vec<PathModule>,
}

/// A top-level package with compiled modules in a folder of PYTHONPATH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathModule {
    /// Its name: `numpy`.
    pub name: String,
    /// Whether it hides a package of this name in the environment.
    pub hides: bool,
    /// The Python releases that its compiled modules are named for: `310`, `313t`; empty if they fit any.
    pub releases: Vec<String>,
    /// One of those modules.
    pub example: String,
    /// The release of the dist-info of this name in the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// An import of a required package that is not installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmetImport {
    /// The importing distribution.
    pub dist: String,
    /// The missing requirement, normalized by PEP 503.
    pub requirement: String,
    /// File and line of an import that runs whenever the distribution's package is imported.
    pub at: String,
}

/// An imported name that the installed package certainly does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingName {
    /// The distribution of the importing file; `None` if no RECORD lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dist: Option<String>,
    /// File and line of the statement.
    pub at: String,
    /// The module: `huggingface_hub.utils`.
    pub module: String,
    /// The name.
    pub name: String,
    /// How it is imported.
    pub kind: MissingKind,
    /// The module's distribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Modules whose import fails because of it: packages, and the modules of commands.
    pub imports: Vec<String>,
    /// Files and lines of the imports that lead to it, the outermost last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
}

/// How a name is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingKind {
    /// `from module import name`.
    Name,
    /// `import module.name`.
    Submodule,
    /// `module.name` in an expression.
    Attribute,
    /// The module requires the same version as the package `name`, and has another.
    Version,
    /// `module(.., name=..)`, where the module is that of a function with the function's name.
    Keyword,
}

/// An assembler of GPU code, as its own bytes describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ptxas {
    /// Its CUDA release: `12.8`.
    #[serde(alias = "value")]
    pub release: String,
    /// The architectures that it compiles for, as its `--help` lists them: `90`, `90a`, `100f`; empty where they were not found.
    #[serde(default)]
    pub targets: Vec<String>,
    /// The file.
    pub source: String,
}

/// The content of torch/version.py.
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
