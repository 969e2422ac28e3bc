//! Times reading a machine and an environment of 300 packages, one of them with a RECORD as long as torch's.
//!
//! Run with `cargo run --release -p probe --example timing`. The environment is written to a temporary folder first and
//! read once before the clock starts, so the figures are for a warm page cache.
#![allow(clippy::print_stdout)] // An example can only print.

use probe::{EnvOptions, ProbeOptions, Source};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

const PACKAGES: usize = 299;
const FILES_EACH: usize = 120;
const TORCH_FILES: usize = 15_000;
const TORCH_NATIVE: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let venv = folder.path().join("venv");
    write_environment(&venv)?;
    // Only the environment and the machine are timed, not the shell's Python.
    let source = || Source::live().without_vars().with_working_folder(folder.path());
    let envs =
        EnvOptions { source: source(), venv: Some(venv.clone()), cache: None, verify_files: false };

    let report = probe::read(&envs)?;
    let env = &report.envs[0];
    println!(
        "{} distributions, {} lines in torch's RECORD, {} compiled files, {} problems, {} threads",
        env.dists.len(),
        env.dist("torch").and_then(|torch| torch.record_files).unwrap_or_default(),
        env.native_files.len(),
        env.problems.len(),
        std::thread::available_parallelism()?,
    );
    time("environment", || {
        let _ = probe::environments(&envs);
    });
    time("machine", || {
        probe::machine(&ProbeOptions { source: source(), site_packages: Vec::new() });
    });
    time("both side by side", || {
        let _ = probe::read(&EnvOptions {
            source: source(),
            venv: Some(venv.clone()),
            cache: None,
            verify_files: false,
        });
    });
    Ok(())
}

fn time(what: &str, run: impl Fn()) {
    let mut millis: Vec<f64> = (0..40)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    millis.sort_by(f64::total_cmp);
    println!("{what}: median {:.2} ms, least {:.2}, most {:.2}", millis[20], millis[0], millis[39]);
}

fn write_environment(venv: &Path) -> std::io::Result<()> {
    let site = venv.join("lib/python3.12/site-packages");
    fs::create_dir_all(&site)?;
    fs::create_dir_all(venv.join("bin"))?;
    fs::write(venv.join("bin/python"), "")?;
    fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\nversion = 3.12.3\n")?;
    // Such files usually have a description of about 12 kB after their headers.
    let description = "Some words about the package.\n".repeat(400);
    for index in 0..PACKAGES {
        write_package(
            &site,
            &format!("package_{index}"),
            FILES_EACH,
            usize::from(index % 5 == 0),
            &description,
        )?;
    }
    write_package(&site, "torch", TORCH_FILES, TORCH_NATIVE, &description)?;
    fs::write(
        site.join("torch/version.py"),
        "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n",
    )
}

fn write_package(
    site: &Path,
    name: &str,
    files: usize,
    native: usize,
    description: &str,
) -> std::io::Result<()> {
    let info = site.join(format!("{name}-1.0.dist-info"));
    fs::create_dir_all(&info)?;
    fs::create_dir_all(site.join(name).join("lib"))?;
    let mut metadata =
        format!("Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nRequires-Python: >=3.10\n");
    for other in 0..12 {
        let _ =
            writeln!(metadata, "Requires-Dist: package_{other}>=1.0; platform_system == \"Linux\"");
    }
    fs::write(info.join("METADATA"), format!("{metadata}\n{description}"))?;
    fs::write(info.join("WHEEL"), "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_28_x86_64\n")?;
    fs::write(info.join("INSTALLER"), "pip\n")?;
    let hash = "sha256=kuXTHkg5Zqnr49Aq5ceyQgPCeHXYePsmu4-Wf_lNBhY";
    let mut record = String::new();
    for index in 0..native {
        fs::write(site.join(name).join(format!("lib/lib{index}.so")), "")?;
        let _ = writeln!(record, "{name}/lib/lib{index}.so,{hash},123456");
    }
    for index in native..files {
        let _ = writeln!(
            record,
            "{name}/include/some/folder/header_file_number_{index}.h,{hash},12345"
        );
    }
    fs::write(info.join("RECORD"), record)
}
