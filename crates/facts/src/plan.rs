use crate::Fact;
use serde::{Deserialize, Serialize};

/// A consistent selection of Python, accelerator, torch and packages for one machine: what to install, from where, in
/// which order and why. The content of `plan.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallPlan {
    /// Version of this document, [`crate::SCHEMA`].
    pub schema: u32,
    /// The machine it is for.
    pub target: PlanTarget,
    /// The requests, in order.
    pub wants: Vec<PlanRequirement>,
    /// Python: `3.12`.
    pub python: String,
    /// CUDA release of the torch builds: `12.8`. `None` for CPU or Metal.
    pub cuda: Option<String>,
    /// The package indexes; the first one is the default.
    pub indexes: Vec<PlanIndex>,
    /// The packages, in installation order.
    pub packages: Vec<PlannedPackage>,
    /// Warnings: an uncertain combination, or an unavailable option and its replacement.
    pub warnings: Vec<Fact<String>>,
    /// Rejected candidates, best first.
    pub rejected: Vec<RejectedCandidate>,
    /// Whether the packages are complete, dependencies included, each with at least one file and its hash. A plan made
    /// without network names the selected packages only; uv adds the rest when the plan is locked.
    pub locked: bool,
}

/// The machine of a plan: the probed one, or one known by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTarget {
    /// `this` for the probed machine, otherwise the requested name: `gh200`, `cpu-x86_64`.
    pub name: String,
    /// `linux` or `macos`.
    pub os: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    /// glibc's version on Linux: `2.35`; the newest platform tag that a wheel may have.
    pub glibc: Option<String>,
    /// Compute capability of each NVIDIA GPU, major and minor.
    pub gpus: Vec<(u32, u32)>,
    /// Version of the NVIDIA driver; `None` if the machine has none or is only named.
    pub driver: Option<String>,
    /// The newest CUDA release that the driver runs, major and minor, if known.
    pub cuda_limit: Option<(u32, u32)>,
    /// Whether it is a Tegra (Jetson), on which wheels for Arm servers do not run.
    pub tegra: bool,
    /// Memory of the machine in bytes, which limits the jobs of a source build; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// The source of these facts.
    pub source: String,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequirement {
    /// A package by its normalised name: `flash-attn`.
    pub package: String,
    /// PEP 440 specifiers, `==2.8.3`; empty for any version.
    pub specifiers: String,
    /// Its origin: `requirement`, `profile granite-a10`, `config.json: mamba2 layers`.
    pub because: String,
    /// Whether building it from source was allowed.
    pub source_build: bool,
}

/// The package indexes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanIndex {
    /// Its name in a pyproject.toml: `pytorch-cu128`.
    pub name: String,
    /// Address of a simple index (PEP 503), or of a page of files if `flat`.
    pub url: String,
    /// Whether only packages that name it are taken from it. Every index except the default is explicit, so that no
    /// other package can come from it.
    pub explicit: bool,
    /// Whether it is a plain page of links (`--find-links`) instead of an index.
    pub flat: bool,
}

/// One package of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPackage {
    /// Normalised name (PEP 503).
    pub name: String,
    /// Version, with the index's local label: `2.10.0+cu128`.
    pub version: String,
    /// Name of its index.
    pub index: String,
    /// The reason: `wanted`, `torch 2.10 pins it`, `build tool of flash-attn`.
    pub because: String,
    /// The installed artifact: a wheel or a source that is built.
    pub origin: PackageOrigin,
    /// Environment marker (PEP 508) if the package is for some platforms only.
    pub marker: Option<String>,
    /// The files that may be installed, with hashes; empty until the plan is locked, unless the table of published
    /// wheels has them.
    pub files: Vec<PlannedFile>,
    /// The published fact that this choice is based on.
    pub source: String,
}

/// How a package is installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PackageOrigin {
    /// From a wheel.
    Wheel,
    /// From source, compiled against the torch of this plan.
    Build(BuildRecipe),
}

/// The recipe of a source build and its cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecipe {
    /// The argument of pip or uv: `flash-attn==2.8.3`, or `git+https://..@v2.8.3`.
    pub requirement: String,
    /// Environment variables, name and value: `FLASH_ATTENTION_FORCE_BUILD` and `TRUE`.
    pub env: Vec<(String, String)>,
    /// Packages that have to be installed first, because the build uses the environment (`--no-build-isolation`).
    pub build_requires: Vec<String>,
    /// Requirements of the built package (PEP 508, its Requires-Dist). Known in advance, so that a plan is locked
    /// without compiling.
    pub requires: Vec<String>,
    /// Required programs and headers of the system: `nvcc`, `c++`, `pybind11/pybind11.h`.
    pub system_requires: Vec<String>,
    /// Minimum and maximum observed build times in minutes.
    pub minutes: (u32, u32),
    /// Memory of one compile job in bytes.
    pub job_bytes: u64,
    /// The source of time and memory.
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

/// A rejected candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedCandidate {
    /// The candidate: `torch 2.14 cu130`.
    pub candidate: String,
    /// The reason, in one sentence.
    pub reason: String,
    /// The published fact that the reason is based on.
    pub source: String,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRefusal {
    /// The machine.
    pub target: PlanTarget,
    /// The requests.
    pub wants: Vec<PlanRequirement>,
    /// A minimal set of facts that cannot all hold, each with its source.
    pub conflict: Vec<Fact<String>>,
    /// Further conflicts that remain after giving up the user's requests (versions, Python, CUDA) in the first one.
    #[serde(default)]
    pub further: Vec<Vec<Fact<String>>>,
    /// Changes of the request with the resulting plan, nearest first.
    pub nearest: Vec<NearestPlan>,
    /// Rejected candidates, best first.
    pub rejected: Vec<RejectedCandidate>,
}

/// A plan that works if one request is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearestPlan {
    /// The change, as an instruction: `build flash-attn from source`, `leave out vllm`.
    pub change: String,
    /// The resulting selection: `Python 3.12, torch 2.10.0 cu128, flash-attn 2.8.3`.
    pub stack: String,
}
