//! Builds the bundle of compiled kernels: installs the tools from PyPI, compiles the kernels, and checks the cubins.

mod cubin;
mod gate;
mod tools;

use crate::cargo;
use crate::steps::{Steps, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The committed bundle, which the build embeds.
const COMMITTED: &str = "crates/ops-cuda/src/bundle.bin";
/// Maximum size of the bundle in bytes, since every binary and every clone of the repository contains it.
const MAX_BYTES: u64 = (3 << 20) + (768 << 10);
/// The remedy for a bundle that differs from its sources.
const HINT: &str = "hint: run `cargo xtask bundle` and commit it";

/// The mode of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BundleMode {
    /// Compile the bundle and replace the committed one.
    Make,
    /// Compile all kernels and compare the bundle byte by byte.
    Check,
    /// Compare the hashes of all sources with the committed bundle, and compile about this number of its kernels again.
    Sample(usize),
}

/// Builds the bundle, or compares the committed one with the sources. `program` is the built example `bundle`, if there is one.
pub(crate) fn make(root: &Path, mode: BundleMode, program: Option<&Path>) -> anyhow::Result<()> {
    let target = cargo::target_directory(root)?;
    let check = mode != BundleMode::Make;
    let folder = target.join(if check { "bundle-check" } else { "bundle" });
    let mut steps = Steps::new();
    let mut tools = None;
    steps.run("tools", || {
        tools = Some(tools::prepare(&target)?);
        Ok(())
    })?;
    let tools = tools.context("the tools were not installed")?;
    steps.run("compile", || {
        // A check does not reuse kernels of an earlier run.
        if check && folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let built = ["run", "--locked", "--quiet", "-p", "ops-cuda", "--example", "bundle", "--"];
        let mut bundle = program.map_or_else(|| cargo::command(root, &built), Command::new);
        bundle.arg("--nvrtc").arg(&tools.nvrtc).arg("--into").arg(&folder);
        match mode {
            BundleMode::Make => bundle.args(["--compile", "changed"]),
            BundleMode::Check => &mut bundle,
            BundleMode::Sample(count) => bundle.args(["--sample", &count.to_string()]),
        };
        run(&mut bundle).context(HINT)
    })?;
    steps.run("gate", || gate::check(&folder, &tools.nvdisasm))?;
    let (made, committed) = (folder.join("bundle.bin"), root.join(COMMITTED));
    let bytes = fs::metadata(if mode == BundleMode::Make { &made } else { &committed })?.len();
    if bytes > MAX_BYTES {
        bail!("the bundle is {bytes} bytes, more than {MAX_BYTES}\nhint: list fewer shapes");
    }
    match mode {
        BundleMode::Make => {
            fs::copy(&made, committed)?;
            println!("wrote {COMMITTED}, {bytes} bytes");
        }
        BundleMode::Check if fs::read(&made)? != fs::read(committed)? => {
            bail!("{COMMITTED} differs from the kernels' sources\n{HINT}");
        }
        BundleMode::Check => {
            println!("{COMMITTED} equals the compiled sources, {bytes} bytes");
        }
        BundleMode::Sample(_) => {
            println!("{COMMITTED} has exactly the kernels of the sources, {bytes} bytes");
        }
    }
    steps.finish();
    Ok(())
}
