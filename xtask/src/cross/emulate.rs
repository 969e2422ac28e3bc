//! Runs tests of another architecture under an emulator, so that its kernels are executed and not only compiled.

use super::{Source, TARGETS, Target, debian, toolchain};
use crate::{cargo, steps};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates with architecture-specific code, and their dependencies.
const CRATES: &[&str] = &["facts", "device", "ops", "ops-cpu", "backends", "verify"];

/// The emulated target: 64-bit Arm Linux, for the NEON kernels.
const TARGET: &Target = &TARGETS[0];

/// A C compiler driver that links for the target.
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// Debian packages with the linker, the C library and the emulator.
const PACKAGES: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"];

/// The folder of the target's C library, which the linker's package installs.
const C_LIBRARY: &str = "/usr/aarch64-linux-gnu";

/// Program names of the emulator.
const EMULATORS: &[&str] = &["qemu-aarch64-static", "qemu-aarch64"];

/// Arguments of the emulated tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Emulated {
    /// Only this source of the standard library; any if `None`.
    pub(crate) source: Option<Source>,
    /// Only these crates; [`CRATES`] if empty.
    pub(crate) packages: Vec<String>,
    /// Only unit tests: the others compute whole references, which is slow in an emulator.
    pub(crate) unit: bool,
    /// Arguments of the test programs.
    pub(crate) filter: Vec<String>,
}

/// Builds the tests for 64-bit Arm Linux and runs them under qemu.
pub(crate) fn run_tests(root: &Path, options: &Emulated) -> anyhow::Result<()> {
    let emulator = set_up()?;
    let target_directory = cargo::target_directory(root)?;
    let toolchain = toolchain(*TARGET, options.source, &target_directory)?;
    let mut command = toolchain.command(root, "test", *TARGET, &target_directory);
    command.args(["--locked", "--no-fail-fast", "--lib"]);
    if !options.unit {
        command.args(["--bins", "--tests"]);
    }
    let all: Vec<String> = CRATES.iter().map(|name| (*name).to_owned()).collect();
    let packages = if options.packages.is_empty() { &all } else { &options.packages };
    command.args(packages.iter().flat_map(|name| ["--package", name]));
    let prefix = format!("CARGO_TARGET_{}", TARGET.triple.to_uppercase().replace('-', "_"));
    command.env(format!("{prefix}_LINKER"), LINKER);
    command.env(format!("{prefix}_RUNNER"), format!("{emulator} -L {C_LIBRARY}"));
    if !options.filter.is_empty() {
        command.arg("--").args(&options.filter);
    }
    steps::run(&mut command)
}

/// Finds the linker and an emulator, or installs them if the user may.
fn set_up() -> anyhow::Result<&'static str> {
    if let Some(emulator) = found() {
        return Ok(emulator);
    }
    let names = PACKAGES.join(" ");
    let install = || {
        steps::run(Command::new("apt-get").args(["-q", "update"]))?;
        let mut install = Command::new("apt-get");
        install.args(["-q", "-y", "--no-install-recommends", "install"]).args(PACKAGES);
        steps::run(install.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    install().with_context(|| {
        format!("emulated tests need {LINKER} and qemu\nhint: as root, `apt-get install {names}`")
    })?;
    found().with_context(|| format!("{names} are installed, yet {LINKER} or qemu is not on PATH"))
}

fn found() -> Option<&'static str> {
    if !steps::is_available(LINKER, "--version") {
        return None;
    }
    EMULATORS.iter().copied().find(|emulator| steps::is_available(emulator, "--version"))
}

/// Runs programs of another architecture.
pub(crate) struct Emulator {
    /// The emulator and its options; the program is appended.
    pub(crate) command: Vec<String>,
    /// A Python of that architecture, if there is one.
    pub(crate) python: Option<PathBuf>,
}

/// An emulator for a target: Debian's with a Python, unpacked below the target folder, otherwise the installed one if the
/// target's C library is installed. The error says why there is neither.
pub(crate) fn emulator(triple: &str, target_directory: &Path) -> anyhow::Result<Emulator> {
    let architecture = TARGET.debian_architecture.filter(|_| triple == TARGET.triple);
    let architecture = architecture.with_context(|| format!("no emulator for {triple}"))?;
    let program = format!("usr/bin/{}", EMULATORS[0]);
    let prepared = debian::prepare_emulated(target_directory, architecture, &program);
    let (paths, python) = match prepared {
        Ok(root) => ([root.join(program), root.clone()], Some(root.join("usr/bin/python3"))),
        Err(reason) => {
            let is_installed = |name: &&&str| steps::is_available(name, "--version");
            let installed = EMULATORS.iter().find(is_installed);
            let installed = installed.filter(|_| Path::new(C_LIBRARY).is_dir()).ok_or(reason)?;
            ([PathBuf::from(installed), C_LIBRARY.into()], None)
        }
    };
    let [program, root] = paths.map(|path| path.display().to_string());
    Ok(Emulator { command: vec![program, "-L".to_owned(), root], python })
}
