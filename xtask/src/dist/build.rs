//! Builds the program and the library of ops for a platform, and runs a platform's programs.

use super::{Dist, Platform, zig};
use crate::cross::{self, TARGETS};
use crate::{cargo, steps};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The built program, and the library that Python loads.
pub(super) struct Built {
    pub(super) program: PathBuf,
    /// `None` if a given program has no library next to it.
    pub(super) library: Option<PathBuf>,
}

impl Built {
    /// A given program, and the library in its folder or in `deps` below it.
    pub(super) fn of_program(program: &Path) -> Self {
        let library_in = |folder: &Path| Some(folder.join(LIBRARY)).filter(|file| file.is_file());
        let folder = program.parent();
        let library =
            folder.and_then(|folder| library_in(folder).or(library_in(&folder.join("deps"))));
        Self { program: program.to_owned(), library }
    }
}

/// The library's name, in the build's folder and in the package.
pub(super) const LIBRARY: &str =
    if cfg!(target_os = "macos") { "libfirstlight_ops.dylib" } else { "libfirstlight_ops.so" };

/// Arguments of cargo for the program and for the library, before and after the target. `opt-level` of the program's last crate
/// applies to link-time optimization of the whole program, kernels included; the profile optimizes the other crates for size.
const CALLS: [(&[&str], &[&str]); 2] = [
    (&["rustc", "--package", "firstlight", "--bin", "firstlight"], &["--", "-C", "opt-level=3"]),
    (&["build", "--package", "python", "--config", CHECKS, "--config", LAUNCHES], &[]),
];

/// A call from Python is checked, planned and launched in microseconds.
const CHECKS: &str = "profile.dist.package.ops.opt-level=3";
const LAUNCHES: &str = "profile.dist.package.ops-cuda.opt-level=3";

/// Omits unwind tables of functions that cannot panic and of epilogues, which only debuggers and profilers read: an eighth of
/// the tables of a crate at level "z".
const UNWIND_TABLES: &str = "-Cforce-unwind-tables=no";

/// Builds the program and the library with the profile `dist`.
pub(super) fn build(dist: &Dist, platform: Platform, host: &str) -> anyhow::Result<Built> {
    let triple = platform.triple;
    let toolchain = if triple == host {
        None
    } else {
        let target = TARGETS.iter().find(|target| target.triple == triple);
        let target = target.with_context(|| format!("this machine is {host}"))?;
        if triple.ends_with("darwin") {
            bail!(
                "Apple's linker and a signature are needed: run `cargo xtask wheel` on a Mac with Apple silicon"
            );
        }
        Some(cross::toolchain(*target, dist.request.source, &dist.target_directory)?)
    };
    let linker = match triple.split_once("-unknown-linux") {
        Some((architecture, _)) => Some(zig::linker(&dist.target_directory, architecture)?),
        None => None,
    };
    // Replaces local source paths, which would make the programs of two machines differ.
    let mut flags = vec![remap(dist.root, "firstlight")];
    if let Some(home) = cargo_home() {
        flags.push(remap(&home.join("registry/src"), "crates"));
    }
    flags.push(UNWIND_TABLES.to_owned());
    let flags = flags.join("\u{1f}");
    let mut folder = dist.target_directory.clone();
    for (arguments, last) in CALLS {
        let mut command = match &toolchain {
            None => cargo::command(dist.root, arguments),
            Some(toolchain) => {
                let (command, outputs) =
                    toolchain.command_of(dist.root, arguments, &dist.target_directory);
                folder = outputs;
                command
            }
        };
        command.args(["--profile", "dist", "--locked", "--target", triple]).args(last);
        if let Some(linker) = &linker {
            let target = triple.to_uppercase().replace('-', "_");
            command.env(format!("CARGO_TARGET_{target}_LINKER"), linker);
        }
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", &flags);
        command.env("CARGO_INCREMENTAL", "0");
        steps::run(&mut command)?;
    }
    let folder = folder.join(triple).join("dist");
    Ok(Built { program: folder.join("firstlight"), library: Some(folder.join(LIBRARY)) })
}

fn remap(folder: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}={name}", folder.display())
}

fn cargo_home() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    folder("CARGO_HOME").or_else(|| Some(folder("HOME")?.join(".cargo")))
}

/// Starts programs of a platform.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    /// The emulator and its options; empty if none is needed.
    before: Vec<String>,
    /// A Python of the platform, if there is one.
    python: Option<PathBuf>,
}

/// The runner of a platform on this machine. The error says why there is none.
pub(super) fn runner(dist: &Dist, platform: Platform, host: &str) -> anyhow::Result<Runner> {
    if platform.triple == host {
        return Ok(Runner { before: Vec::new(), python: Some("python3".into()) });
    }
    let emulator = cross::emulator(platform.triple, &dist.target_directory)?;
    Ok(Runner { before: emulator.command, python: emulator.python })
}

impl Runner {
    /// The platform's Python, for [`Self::command`].
    pub(super) fn python(&self) -> anyhow::Result<&Path> {
        let found = self.python.as_deref();
        found.context("this machine has no Python of this platform to install the wheel")
    }

    pub(super) fn command(&self, program: &Path) -> Command {
        match self.before.split_first() {
            None => Command::new(program),
            Some((emulator, options)) => {
                let mut command = Command::new(emulator);
                command.args(options).arg(program);
                command
            }
        }
    }

    /// Runs `--version` and `doctor` and returns the version and the platform that the doctor detects.
    pub(super) fn version(&self, program: &Path) -> anyhow::Result<String> {
        let version = steps::output(self.command(program).arg("--version"))?;
        let doctor = self.command(program).args(["doctor", "--json"]).output()?;
        // Exit status 1: findings about this machine, which are not a failure of the program.
        if !matches!(doctor.status.code(), Some(0 | 1)) {
            let message = String::from_utf8_lossy(&doctor.stderr);
            bail!("`firstlight doctor` ended with {}: {}", doctor.status, message.trim());
        }
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout)
            .context("`firstlight doctor --json` printed no JSON")?;
        let seen = report["machine"]["platform"].as_str().unwrap_or("no platform").to_owned();
        let how =
            self.before.first().map_or("here".to_owned(), |emulator| format!("under {emulator}"));
        Ok(format!("{} runs {how} and sees {seen}", version.trim()))
    }
}
