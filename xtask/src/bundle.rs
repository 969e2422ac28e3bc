//! The bundle of compiled kernels: tools from the Python registry, the compilation, and the gate on what came out.

mod cubin;
mod gate;
mod tools;

use crate::cargo;
use crate::steps::{Steps, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;

/// Where the bundle is committed, from which it is built in.
const COMMITTED: &str = "crates/kernels/src/cuda/bundle.bin";
/// Most that the bundle may weigh: it is part of every binary and of every clone.
const MOST_BYTES: u64 = 12 << 20;

/// Makes the bundle, or with `check` compares a fresh one with the committed one.
pub(crate) fn make(root: &Path, check: bool) -> anyhow::Result<()> {
    let target = cargo::target_directory(root)?;
    let folder = target.join(if check { "bundle-check" } else { "bundle" });
    let mut steps = Steps::new();
    let mut tools = None;
    steps.run("tools", || {
        tools = Some(tools::prepare(&target)?);
        Ok(())
    })?;
    let tools = tools.context("the tools are not there")?;
    steps.run("compile", || {
        // A check takes nothing from an earlier run.
        if check && folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let mut cargo = cargo::command(root, &["run", "--locked", "--quiet", "-p", "kernels"]);
        cargo.args(["--example", "bundle", "--", "--nvrtc"]).arg(&tools.nvrtc);
        run(cargo.arg("--into").arg(&folder))
    })?;
    steps.run("gate", || gate::check(&folder, &tools.nvdisasm))?;
    let made = folder.join("bundle.bin");
    let bytes = fs::metadata(&made)?.len();
    if bytes > MOST_BYTES {
        bail!("the bundle is {bytes} bytes, more than {MOST_BYTES}\nhint: list fewer shapes");
    }
    if !check {
        fs::copy(&made, root.join(COMMITTED))?;
        println!("wrote {COMMITTED}, {bytes} bytes");
    } else if fs::read(&made)? != fs::read(root.join(COMMITTED))? {
        bail!(
            "{COMMITTED} is not what the kernels' sources give\nhint: run `cargo xtask bundle` and commit it"
        );
    } else {
        println!("{COMMITTED} is what the sources give, byte by byte, {bytes} bytes");
    }
    steps.finish();
    Ok(())
}
