//! The bundle of compiled kernels: tools from the Python registry, the compilation, and the gate on what came out.

mod cubin;
mod gate;
mod tools;

use crate::cargo;
use crate::steps::{Steps, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where the bundle is committed, from which it is built in.
const COMMITTED: &str = "crates/ops-cuda/src/bundle.bin";
/// Most that the bundle may weigh: it is part of every binary and of every clone.
const MOST_BYTES: u64 = (3 << 20) + (768 << 10);
/// What mends a bundle that is not what its sources give.
const HINT: &str = "hint: run `cargo xtask bundle` and commit it";

/// What is asked of the bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Compile it and put it where it is committed.
    Make,
    /// Compile all of it and compare.
    Check,
    /// Hold the committed one against its sources, and compile about so many of its kernels again.
    Sample(usize),
}

/// Makes the bundle, or compares the committed one with what the sources give, by the `program` of the example where it was built
/// before.
pub(crate) fn make(root: &Path, asked: Asked, program: Option<&Path>) -> anyhow::Result<()> {
    let target = cargo::target_directory(root)?;
    let check = asked != Asked::Make;
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
        let built = ["run", "--locked", "--quiet", "-p", "ops-cuda", "--example", "bundle", "--"];
        let mut bundle = program.map_or_else(|| cargo::command(root, &built), Command::new);
        bundle.arg("--nvrtc").arg(&tools.nvrtc).arg("--into").arg(&folder);
        match asked {
            Asked::Make => bundle.args(["--compile", "changed"]),
            Asked::Check => &mut bundle,
            Asked::Sample(count) => bundle.args(["--sample", &count.to_string()]),
        };
        run(&mut bundle).context(HINT)
    })?;
    steps.run("gate", || gate::check(&folder, &tools.nvdisasm))?;
    let (made, committed) = (folder.join("bundle.bin"), root.join(COMMITTED));
    let bytes = fs::metadata(if asked == Asked::Make { &made } else { &committed })?.len();
    if bytes > MOST_BYTES {
        bail!("the bundle is {bytes} bytes, more than {MOST_BYTES}\nhint: list fewer shapes");
    }
    match asked {
        Asked::Make => {
            fs::copy(&made, committed)?;
            println!("wrote {COMMITTED}, {bytes} bytes");
        }
        Asked::Check if fs::read(&made)? != fs::read(committed)? => {
            bail!("{COMMITTED} is not what the kernels' sources give\n{HINT}");
        }
        Asked::Check => {
            println!("{COMMITTED} is what the sources give, byte by byte, {bytes} bytes");
        }
        Asked::Sample(_) => {
            println!("{COMMITTED} has the kernels of the sources, and no others, {bytes} bytes");
        }
    }
    steps.finish();
    Ok(())
}
