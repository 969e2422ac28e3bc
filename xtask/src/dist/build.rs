//! Builds the program and the library of ops for a platform, and finds how a program of a platform is run here.

use super::{Dist, Platform, zig};
use crate::cross::{self, TARGETS};
use crate::{cargo, steps};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, and the library that Python loads.
pub(super) struct Built {
    pub(super) program: PathBuf,
    /// Absent beside a program that was brought without one.
    pub(super) library: Option<PathBuf>,
}

impl Built {
    /// A program that is there already, and the library that its build left beside it.
    pub(super) fn brought(program: &Path) -> Self {
        let beside = |folder: &Path| Some(folder.join(LIBRARY)).filter(|file| file.is_file());
        let folder = program.parent();
        let library = folder.and_then(|folder| beside(folder).or(beside(&folder.join("deps"))));
        Self { program: program.to_owned(), library }
    }
}

/// The library's name, in the build's folder and in the package.
pub(super) const LIBRARY: &str =
    if cfg!(target_os = "macos") { "libfirstlight_ops.dylib" } else { "libfirstlight_ops.so" };

/// What cargo is told of the program and of the library, and what follows the target. The level of the program's last crate is that of the
/// whole program's optimisation, kernels included; the profile makes the rest of the command small.
const CALLS: [(&[&str], &[&str]); 2] = [
    (&["rustc", "--package", "firstlight", "--bin", "firstlight"], &["--", "-C", "opt-level=3"]),
    (&["build", "--package", "python"], &[]),
];

/// Functions that can panic keep their unwind tables, which describe them at their calls; the others have none, and no table describes
/// the end of a function, which only debuggers and profilers would read. That is an eighth of the tables of a crate at level "z".
const UNWIND_TABLES: &str = "-Cforce-unwind-tables=no";

/// Builds both with the profile `dist`.
pub(super) fn build(dist: &Dist, platform: Platform, here: &str) -> anyhow::Result<Built> {
    let triple = platform.triple;
    let toolchain = if triple == here {
        None
    } else {
        let target = TARGETS.iter().find(|target| target.triple == triple);
        let target = target.with_context(|| format!("this machine is {here}"))?;
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
    // Where the sources lay is nobody's business, and would make two machines' programs differ.
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

/// How a program of a platform is started.
#[derive(Debug, Clone)]
pub(super) struct Runner {
    /// The emulator and its options; empty where none is needed.
    before: Vec<String>,
    /// A Python of the platform.
    python: Option<PathBuf>,
}

/// How a program of this platform is started here. The error says why it cannot be.
pub(super) fn runner(dist: &Dist, platform: Platform, here: &str) -> anyhow::Result<Runner> {
    if platform.triple == here {
        return Ok(Runner { before: Vec::new(), python: Some("python3".into()) });
    }
    let emulator = cross::emulator(platform.triple, &dist.target_directory)?;
    Ok(Runner { before: emulator.command, python: emulator.python })
}

impl Runner {
    /// The platform's Python, which `command` starts.
    pub(super) fn python(&self) -> anyhow::Result<&Path> {
        let found = self.python.as_deref();
        found.context("no Python of this platform is here to install the wheel with")
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

    /// Starts it: its version, and that the doctor reads a machine with it.
    pub(super) fn version(&self, program: &Path) -> anyhow::Result<String> {
        let version = steps::output(self.command(program).arg("--version"))?;
        let doctor = self.command(program).args(["doctor", "--json"]).output()?;
        // 1 tells of findings about this machine, which are its own matter.
        if !matches!(doctor.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&doctor.stderr);
            bail!("`firstlight doctor` ended with {}: {}", doctor.status, said.trim());
        }
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout)
            .context("`firstlight doctor --json` printed no JSON")?;
        let seen = report["machine"]["platform"].as_str().unwrap_or("no platform").to_owned();
        let how =
            self.before.first().map_or("here".to_owned(), |emulator| format!("under {emulator}"));
        Ok(format!("{} runs {how} and sees {seen}", version.trim()))
    }
}
