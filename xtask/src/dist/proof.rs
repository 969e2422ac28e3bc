//! What was made is installed and run, as its users will: the wheel by pip, the steps of the GitHub Action by bash, those of the Dockerfile in a
//! folder that has a C library and nothing else.

mod action;
mod image;

use super::{Dist, Made};
use crate::steps::{self, output};
use anyhow::{Context, bail};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Reads the wheel with Python's own library, which shares no code with what wrote it.
const CHECK_WHEEL: &str = include_str!("proof/check_wheel.py");

/// The package without any other: it finds its library, and says what it is.
const IMPORT: &str = "import time; start = time.perf_counter(); import firstlight; \
    took = time.perf_counter() - start; \
    print(firstlight.__version__, 'in', round(took * 1e3, 1), 'ms,', len(firstlight.tables()), 'ops')";

/// Proves what was made for this machine.
pub(super) fn run(dist: &Dist, made: &Made) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    eprintln!("== the wheel, read by Python");
    let check = output(Command::new("python3").args(["-I", "-c", CHECK_WHEEL]).arg(&made.wheel))?;
    println!("{}", check.trim());
    eprintln!("== the wheel, installed by pip without a network");
    installed(dist, made, &folder.path().join("venv"))?;
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

fn installed(dist: &Dist, made: &Made, venv: &Path) -> anyhow::Result<()> {
    steps::run(Command::new("python3").args(["-m", "venv"]).arg(venv))
        .context("hint: `apt-get install python3-venv`")?;
    let start = Instant::now();
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    steps::run(pip.arg(&made.wheel))?;
    let seconds = start.elapsed().as_secs_f64();
    let version = output(Command::new(venv.join("bin/firstlight")).arg("--version"))?;
    if !version.starts_with(&format!("firstlight {}", dist.version)) {
        bail!("the installed program says `{}`; wanted {}", version.trim(), dist.version);
    }
    for file in ["share/man/man1/firstlight.1", "share/bash-completion/completions/firstlight"] {
        if !venv.join(file).is_file() {
            bail!("pip installed no {file}");
        }
    }
    println!("installed by pip in {seconds:.1} s: {}", version.trim());
    let package = venv.join("bin/python");
    let imported = output(Command::new(package).args(["-I", "-c", IMPORT]))?;
    println!("imported: {}", imported.trim());
    Ok(())
}
