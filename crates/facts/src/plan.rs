use crate::Fact;
use serde::{Deserialize, Serialize};

/// One consistent choice of Python, accelerator, torch and packages for one machine: what to install, from where, in
/// which order and why. `plan.toml` is this record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this document, [`crate::SCHEMA`].
    pub schema: u32,
    /// The machine it is for.
    pub target: PlanTarget,
    /// What was asked for, in the order it was asked.
    pub wants: Vec<Want>,
    /// Python: `3.12`.
    pub python: String,
    /// CUDA release whose builds of torch are taken: `12.8`. `None` where the processor or Metal computes.
    pub cuda: Option<String>,
    /// Where packages come from; the first one is the default.
    pub indexes: Vec<PlanIndex>,
    /// What to install, in the order in which it has to be installed.
    pub packages: Vec<PlannedPackage>,
    /// What the user should know: a doubtful pair, an option that is not there and what takes its place.
    pub warnings: Vec<Fact<String>>,
    /// Candidates that were looked at and refused, best first.
    pub rejected: Vec<Rejected>,
    /// Whether the packages are complete, dependencies included, each with at least one file and its hash. A plan made
    /// without network names what was chosen; uv adds the rest when the plan is locked.
    pub locked: bool,
}

/// The machine a plan is for: one that was probed, or one known by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTarget {
    /// `this` for the machine that was probed, else the name that was asked for: `gh200`, `cpu-x86_64`.
    pub name: String,
    /// `linux` or `macos`.
    pub os: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    /// glibc's version on Linux: `2.35`; the newest platform tag a wheel may carry.
    pub glibc: Option<String>,
    /// Compute capability of each NVIDIA GPU, major and minor.
    pub gpus: Vec<(u32, u32)>,
    /// Version of the NVIDIA driver; `None` where the machine has none or is only named.
    pub driver: Option<String>,
    /// The newest CUDA release the driver runs, major and minor, where it is known.
    pub cuda_limit: Option<(u32, u32)>,
    /// Whether it is a Tegra (Jetson), where wheels for server Arm do not run.
    pub tegra: bool,
    /// Memory of the machine in bytes, which bounds the jobs of a source build; `None` where it is not known.
    pub memory_bytes: Option<u64>,
    /// Where all this was read.
    pub source: String,
}

/// One thing that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// A package by its normalised name: `flash-attn`.
    pub package: String,
    /// PEP 440 specifiers, `==2.8.3`; empty for any version.
    pub specifiers: String,
    /// Who asked: `requirement`, `profile granite-a10`, `config.json: mamba2 layers`.
    pub because: String,
    /// Whether building it from source was allowed.
    pub source_build: bool,
}

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanIndex {
    /// Its name in a pyproject.toml: `pytorch-cu128`.
    pub name: String,
    /// Address of a simple index (PEP 503), or of a page of files where `flat`.
    pub url: String,
    /// Whether it serves only the packages that name it. An index that is not the default is always explicit, so that
    /// no other package can come from it.
    pub explicit: bool,
    /// Whether it is a plain page of links (`--find-links`) and not an index.
    pub flat: bool,
}

/// One package of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPackage {
    /// Normalised name (PEP 503).
    pub name: String,
    /// Version, with the local label where the index has one: `2.10.0+cu128`.
    pub version: String,
    /// Name of the index it comes from.
    pub index: String,
    /// Why it is in the plan: `wanted`, `torch 2.10 pins it`, `build tool of flash-attn`.
    pub because: String,
    /// What is installed: a wheel or a source that is built.
    pub origin: PackageOrigin,
    /// Environment marker (PEP 508) where the package is for some platforms only.
    pub marker: Option<String>,
    /// The files that may be installed, each with its hash; empty until the plan is locked, unless the table of published
    /// wheels knows them.
    pub files: Vec<PlannedFile>,
    /// The published fact that this choice rests on.
    pub source: String,
}

/// How a package comes to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PackageOrigin {
    /// A wheel is installed as it is.
    Wheel,
    /// Its source is compiled against the torch of this plan.
    Build(BuildRecipe),
}

/// How a source build is made, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecipe {
    /// What pip or uv is given: `flash-attn==2.8.3`, or `git+https://..@v2.8.3`.
    pub requirement: String,
    /// Switches of its environment, name and value: `FLASH_ATTENTION_FORCE_BUILD` and `TRUE`.
    pub env: Vec<(String, String)>,
    /// Packages that have to be there before, because the build sees the environment (`--no-build-isolation`).
    pub build_requires: Vec<String>,
    /// What the built package needs (PEP 508, its Requires-Dist). Known beforehand, so that a plan is locked without
    /// compiling anything.
    pub requires: Vec<String>,
    /// Programs and headers of the system it needs: `nvcc`, `c++`, `pybind11/pybind11.h`.
    pub system_requires: Vec<String>,
    /// Least and most minutes that builds of it were seen to take.
    pub minutes: (u32, u32),
    /// Memory of one compile job in bytes.
    pub job_bytes: u64,
    /// Where time and memory were read.
    pub source: String,
}

/// A file that a plan may install.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// File name: `flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl`.
    pub name: String,
    /// Its address.
    pub url: Option<String>,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: Option<String>,
    /// Size in bytes.
    pub bytes: Option<u64>,
}

/// A candidate that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// What was looked at: `torch 2.14 cu130`.
    pub candidate: String,
    /// Why not, in one sentence.
    pub reason: String,
    /// The published fact behind the reason.
    pub source: String,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The machine it was for.
    pub target: PlanTarget,
    /// What was asked for.
    pub wants: Vec<Want>,
    /// The smallest set of facts that cannot all hold, each with its source.
    pub conflict: Vec<Fact<String>>,
    /// The conflicts that remain when what the user asked for in the first one (versions, Python, CUDA) is given up.
    #[serde(default)]
    pub further: Vec<Vec<Fact<String>>>,
    /// What to change, and the plan that this gives, nearest first.
    pub nearest: Vec<NearestPlan>,
    /// Candidates that were looked at and refused, best first.
    pub rejected: Vec<Rejected>,
}

/// A plan that would work if one thing that was asked for were different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearestPlan {
    /// The change, as an instruction: `build flash-attn from source`, `leave out vllm`.
    pub change: String,
    /// The choice it gives: `Python 3.12, torch 2.10.0 cu128, flash-attn 2.8.3`.
    pub stack: String,
}
