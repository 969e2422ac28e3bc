//! Installs NVRTC and nvdisasm from the Python registry into an environment below the target folder.

use crate::steps::{is_available, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// CUDA 12 binaries load on drivers from 525 on, those of CUDA 13 only from 580 on.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvdisasm==13.5.37"];

/// Paths of the tools.
pub(super) struct Tools {
    /// The NVRTC library.
    pub(super) nvrtc: PathBuf,
    /// The program nvdisasm.
    pub(super) nvdisasm: PathBuf,
}

/// Installs the tools unless they are installed.
pub(super) fn prepare(target: &Path) -> anyhow::Result<Tools> {
    let home = target.join("bundle-tools");
    let stamp = home.join("complete");
    let wanted = PACKAGES.join("\n");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        if !is_available("python3", "--version") {
            bail!("`python3` was not found\nhint: `apt-get install python3-venv`");
        }
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))
            .context("hint: `apt-get install python3-venv`")?;
        let mut pip = Command::new(home.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        run(pip.args(PACKAGES))?;
        fs::write(&stamp, wanted)?;
    }
    Ok(Tools {
        nvrtc: find(&home, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")?,
        nvdisasm: find(&home, "nvidia/cu13/bin/nvdisasm")?,
    })
}

/// The path of a package's file, for any Python version.
fn find(home: &Path, file: &str) -> anyhow::Result<PathBuf> {
    let pythons = fs::read_dir(home.join("lib"))?.flatten().map(|entry| entry.path());
    let mut files = pythons.map(|python| python.join("site-packages").join(file));
    files
        .find(|file| file.exists())
        .with_context(|| format!("no package in {} has {file}", home.display()))
}
