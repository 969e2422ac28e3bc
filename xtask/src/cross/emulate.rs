//! Runs tests of another architecture under an emulator, so that its kernels execute and not only compile.

use super::{Source, TARGETS, Target, debian, toolchain};
use crate::{cargo, steps};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rooms with code that depends on the processor, and what they stand on.
const ROOMS: &[&str] = &["facts", "device", "ops", "ops-cpu", "backends", "verify"];

/// The one target that is emulated: the Arm servers and boards the NEON kernels are for.
const TARGET: &Target = &TARGETS[0];

/// A C compiler driver that links for the target.
const LINKER: &str = "aarch64-linux-gnu-gcc";

/// Debian's names of what is needed.
const PACKAGES: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"];

/// The target's C library, as the linker's package installs it.
const C_LIBRARY: &str = "/usr/aarch64-linux-gnu";

/// The names an emulator goes by.
const EMULATORS: &[&str] = &["qemu-aarch64-static", "qemu-aarch64"];

/// Which emulated tests are asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Emulated {
    /// Only from this source, where one is named.
    pub(crate) source: Option<Source>,
    /// Only these rooms; [`ROOMS`] where none is named.
    pub(crate) rooms: Vec<String>,
    /// Only the tests beside the code: the others compute whole references, which is slow in an emulator.
    pub(crate) unit: bool,
    /// Goes to the test programs.
    pub(crate) filter: Vec<String>,
}

/// Builds the tests for 64-bit Arm Linux and runs them under qemu.
pub(crate) fn run_tests(root: &Path, asked: &Emulated) -> anyhow::Result<()> {
    let emulator = set_up()?;
    let target_directory = cargo::target_directory(root)?;
    let toolchain = toolchain(*TARGET, asked.source, &target_directory)?;
    let mut command = toolchain.command(root, "test", *TARGET, &target_directory);
    command.args(["--locked", "--no-fail-fast", "--lib"]);
    if !asked.unit {
        command.args(["--bins", "--tests"]);
    }
    let all: Vec<String> = ROOMS.iter().map(|room| (*room).to_owned()).collect();
    let rooms = if asked.rooms.is_empty() { &all } else { &asked.rooms };
    command.args(rooms.iter().flat_map(|room| ["--package", room]));
    let prefix = format!("CARGO_TARGET_{}", TARGET.triple.to_uppercase().replace('-', "_"));
    command.env(format!("{prefix}_LINKER"), LINKER);
    command.env(format!("{prefix}_RUNNER"), format!("{emulator} -L {C_LIBRARY}"));
    if !asked.filter.is_empty() {
        command.arg("--").args(&asked.filter);
    }
    steps::run(&mut command)
}

/// Finds the linker and an emulator, or installs them where this user may.
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

/// How programs of another processor run here.
pub(crate) struct Emulator {
    /// The emulator and its options; the program follows.
    pub(crate) command: Vec<String>,
    /// A Python of that processor, if there is one.
    pub(crate) python: Option<PathBuf>,
}

/// An emulator for a target: Debian's with a Python, unpacked below the target folder, or the installed one if the target's C library
/// is installed too. The error says why there is neither.
pub(crate) fn emulator(triple: &str, target_directory: &Path) -> anyhow::Result<Emulator> {
    let architecture = TARGET.debian_architecture.filter(|_| triple == TARGET.triple);
    let architecture = architecture.with_context(|| format!("no emulator for {triple}"))?;
    let program = format!("usr/bin/{}", EMULATORS[0]);
    let prepared = debian::prepare_emulated(target_directory, architecture, &program);
    let (paths, python) = match prepared {
        Ok(root) => ([root.join(program), root.clone()], Some(root.join("usr/bin/python3"))),
        Err(reason) => {
            let here = |name: &&&str| steps::is_available(name, "--version");
            let installed = EMULATORS.iter().find(here);
            let installed = installed.filter(|_| Path::new(C_LIBRARY).is_dir()).ok_or(reason)?;
            ([PathBuf::from(installed), C_LIBRARY.into()], None)
        }
    };
    let [program, root] = paths.map(|path| path.display().to_string());
    Ok(Emulator { command: vec![program, "-L".to_owned(), root], python })
}
