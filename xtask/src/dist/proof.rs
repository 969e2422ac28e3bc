//! Installs and runs the built packages as users do: the wheel with pip, the steps of the GitHub Action with bash, and those of
//! the Dockerfile in a folder with only a C library.

mod action;
mod image;

use super::build::Runner;
use super::{Dist, PlatformBuild};
use crate::steps::{self, output};
use anyhow::{Context, bail};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Checks the wheel with Python's standard library, which shares no code with its writer.
const CHECK_WHEEL: &str = include_str!("proof/check_wheel.py");

/// Imports the package without others and prints its version, import time and number of ops.
const IMPORT: &str = "import time; start = time.perf_counter(); import firstlight; \
    took = time.perf_counter() - start; \
    print(firstlight.__version__, 'in', round(took * 1e3, 1), 'ms,', len(firstlight.tables()), 'ops')";

/// Tests the packages of a platform whose programs run on this machine; for the host also the action and the Dockerfile.
pub(super) fn run(dist: &Dist, made: &PlatformBuild, here: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let runner = made.runner.as_ref().context("its programs do not run here")?;
    eprintln!("== the wheel of {}, read by Python", made.triple);
    let check = output(Command::new("python3").args(["-I", "-c", CHECK_WHEEL]).arg(&made.wheel))?;
    println!("{}", check.trim());
    eprintln!("== the wheel, installed by pip without a network");
    installed(dist, made, runner, folder.path())?;
    if made.triple != here {
        println!("proven: the wheel of {}", made.triple);
        return Ok(());
    }
    eprintln!("== action.yml, by bash");
    action::run(&dist.root.join("action.yml"), &made.wheel, &folder.path().join("action"))?;
    if cfg!(target_os = "linux") {
        eprintln!("== Dockerfile, in an empty root");
        let root = folder.path().join("root");
        image::run(&dist.root.join("Dockerfile"), &dist.output, &made.program, &root)?;
    }
    println!("proven: the wheel, action.yml and Dockerfile");
    Ok(())
}

/// Installs the wheel into a virtual environment of the platform's Python, and runs the command and the package there.
fn installed(
    dist: &Dist,
    made: &PlatformBuild,
    runner: &Runner,
    folder: &Path,
) -> anyhow::Result<()> {
    let (own, venv) = (folder.join("pip"), folder.join("venv"));
    // Uses the host's pip, which is pure Python: an emulated Python cannot start another Python, as ensurepip does.
    steps::run(Command::new("python3").args(["-m", "venv"]).arg(&own))
        .context("hint: `apt-get install python3-venv`")?;
    let place = ["-I", "-c", "import os, pip; print(os.path.dirname(pip.__file__))"];
    let pip_folder = output(Command::new(own.join("bin/python")).args(place))?;
    let mut make = runner.command(runner.python()?);
    steps::run(make.args(["-m", "venv", "--without-pip"]).arg(&venv))?;
    let start = Instant::now();
    let python = venv.join("bin/python");
    let mut pip = runner.command(&python);
    pip.args(["-I", pip_folder.trim(), "install", "--quiet", "--disable-pip-version-check"]);
    steps::run(pip.arg("--no-index").arg(&made.wheel))?;
    let seconds = start.elapsed().as_secs_f64();
    let version = output(runner.command(&venv.join("bin/firstlight")).arg("--version"))?;
    if !version.starts_with(&format!("firstlight {}", dist.version)) {
        bail!("the installed program says `{}`; wanted {}", version.trim(), dist.version);
    }
    for file in ["share/man/man1/firstlight.1", "share/bash-completion/completions/firstlight"] {
        if !venv.join(file).is_file() {
            bail!("pip installed no {file}");
        }
    }
    println!("installed by pip in {seconds:.1} s: {}", version.trim());
    let imported = output(runner.command(&python).args(["-I", "-c", IMPORT]))?;
    println!("imported: {}", imported.trim());
    Ok(())
}
