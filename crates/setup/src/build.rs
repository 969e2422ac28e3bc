//! Source builds: a wheel is compiled against the environment that is being made, in a folder of its own, and comes with
//! the proof that it was compiled here. The environment itself is only read.
//!
//! The setup.py of flash-attn, causal-conv1d and mamba-ssm looks for a prebuilt wheel first and takes it without a word
//! in pip's output. Switches such as `FLASH_ATTENTION_FORCE_BUILD` forbid that; whether they worked is not believed
//! but seen: every compiler is started through a note-taker, and each library of the wheel has to be one that a noted
//! run has linked.

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
pub use preconditions::Missing;
pub use proof::{Linked, Sameness};
pub use source::Source;

use crate::wheel;
use compilers::Compilers;
use facts::BuildRecipe;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// One build.
#[derive(Debug, Clone, Copy)]
pub struct Build<'a> {
    /// Normalised name of the package.
    pub package: &'a str,
    /// How it is made, and what it takes.
    pub recipe: &'a BuildRecipe,
    /// Where its source is.
    pub source: Source<'a>,
    /// The environment it is compiled against: a virtual environment that has torch and the build tools.
    pub env: &'a Path,
    /// Python of the environment: `3.12`.
    pub python: &'a str,
    /// Compute capabilities of the GPUs that the code is made for; empty leaves the choice to the package.
    pub gpus: &'a [(u32, u32)],
    /// The CUDA toolkit whose nvcc is used.
    pub cuda_home: Option<&'a Path>,
    /// Compile jobs at once (MAX_JOBS): what the memory holds, `recipe.job_bytes` each.
    pub jobs: u32,
    /// A folder of the build's own. What an earlier build left in it goes away first.
    pub folder: &'a Path,
}

/// A wheel that was compiled, and what that took.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// The wheel, in the build's folder.
    pub wheel: PathBuf,
    /// All that the build printed, with its command and switches above it.
    pub log: PathBuf,
    /// How long it took, fetching the source not counted.
    pub seconds: f64,
    /// The most memory that its processes had together, as sampled ten times a second; `None` where the system does not
    /// tell (it is read from /proc).
    pub peak_memory_bytes: Option<u64>,
    /// Every run of a compiler, in the order in which they ended.
    pub runs: Vec<CompilerRun>,
    /// Every library of the wheel, with the run that linked it.
    pub linked: Vec<Linked>,
}

/// Compiles a wheel with uv, of which `uv` is a command without arguments. Nothing outside of `folder` is changed.
///
/// # Errors
/// Where something is missing that the build needs, the source cannot be had, the build fails, or what came out was not
/// compiled by it.
pub fn build(build: &Build<'_>, uv: Command) -> Result<Built, BuildError> {
    let missing = preconditions::missing(build);
    if !missing.is_empty() {
        return Err(BuildError::Preconditions { package: build.package.to_owned(), missing });
    }
    // Objects of an earlier build, perhaps for another torch, must not get into this one (`rm -rf build dist *.egg-info`).
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
    Ok(Built { wheel, log, seconds, peak_memory_bytes, runs, linked })
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
