//! Source builds: a wheel is compiled against the new environment, in a separate folder, with evidence that it was
//! compiled here. The environment itself is only read.
//!
//! The setup.py of flash-attn, causal-conv1d and mamba-ssm looks for a prebuilt wheel first and uses it without a
//! message in pip's output. Switches such as `FLASH_ATTENTION_FORCE_BUILD` forbid that; whether they worked is
//! verified: every compiler is started through a recording wrapper, and each library of the wheel has to be one that a
//! recorded run has linked.

mod compilers;
mod error;
mod memory;
mod preconditions;
mod proof;
mod run;
mod source;
#[cfg(test)]
mod test_support;

pub use compilers::CompilerRun;
pub use error::BuildError;
pub use preconditions::MissingRequirement;
pub use proof::{LinkEvidence, LinkedLibrary};
pub use source::BuildSource;

use crate::wheel;
use compilers::Compilers;
use facts::BuildRecipe;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The inputs of one build.
#[derive(Debug, Clone, Copy)]
pub struct WheelBuild<'a> {
    /// Normalised name of the package.
    pub package: &'a str,
    /// Its recipe and cost.
    pub recipe: &'a BuildRecipe,
    /// The location of its source.
    pub source: BuildSource<'a>,
    /// The environment it is compiled against: a virtual environment with torch and the build tools.
    pub env: &'a Path,
    /// Python of the environment: `3.12`.
    pub python: &'a str,
    /// Compute capabilities of the target GPUs; empty leaves the choice to the package.
    pub gpus: &'a [(u32, u32)],
    /// The CUDA toolkit whose nvcc is used.
    pub cuda_home: Option<&'a Path>,
    /// Parallel compile jobs (MAX_JOBS): as many as fit in memory with `recipe.job_bytes` each.
    pub jobs: u32,
    /// A folder for this build only. Results of an earlier build in it are removed first.
    pub folder: &'a Path,
}

/// A compiled wheel and its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct BuiltWheel {
    /// The wheel, in the build's folder.
    pub wheel: PathBuf,
    /// The build's output, preceded by its command and switches.
    pub log: PathBuf,
    /// Duration without downloading the source.
    pub seconds: f64,
    /// Peak memory of all its processes together, sampled ten times a second from /proc; `None` on systems without it.
    pub peak_memory_bytes: Option<u64>,
    /// Every run of a compiler, in the order in which they ended.
    pub runs: Vec<CompilerRun>,
    /// Every library of the wheel, with the run that linked it.
    pub linked: Vec<LinkedLibrary>,
}

/// Compiles a wheel with uv; `uv` is a command without arguments. Nothing outside of `folder` is changed.
///
/// # Errors
/// If something is missing that the build needs, the source is not available, the build fails, or its result was not
/// compiled by it.
pub fn build(build: &WheelBuild<'_>, uv: Command) -> Result<BuiltWheel, BuildError> {
    let missing = preconditions::missing(build);
    if !missing.is_empty() {
        return Err(BuildError::Preconditions { package: build.package.to_owned(), missing });
    }
    // Objects of an earlier build, perhaps for another torch, must not be reused (`rm -rf build dist *.egg-info`).
    let fresh = |name: &str| {
        let folder = build.folder.join(name);
        let made = remove(&folder).and_then(|()| fs::create_dir_all(&folder));
        made.map(|()| folder.clone()).map_err(|source| BuildError::Folder { folder, source })
    };
    let (sources, out, notes) = (fresh("source")?, fresh("wheel")?, fresh("notes")?);
    let log = build.folder.join("build.log");
    let source = build.source.fetch(build, &sources)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let compilers = Compilers::new(&path, build.cuda_home, &notes)?;

    let started = Instant::now();
    let (status, peak_memory_bytes) = run::run(build, uv, &compilers, (&source, &out, &log))?;
    let seconds = started.elapsed().as_secs_f64();
    if !status.success() {
        return Err(BuildError::failed(build.package, status, &log));
    }
    let runs = compilers.runs()?;
    let wheel = only_wheel(&out).ok_or_else(|| BuildError::failed(build.package, status, &log))?;
    let unpacked = wheel::unpack(&wheel, &fresh("unpacked")?, build.python)?;
    let linked = proof::linked(build, &unpacked, &runs, &log)?;
    Ok(BuiltWheel { wheel, log, seconds, peak_memory_bytes, runs, linked })
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn only_wheel(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "whl"))
}
