//! Compiles the workspace for other targets.
//!
//! The standard library of a target comes from rustup if the user installed that target, otherwise from Debian's packages,
//! which are unpacked below the target folder and not installed.

mod debian;
mod emulate;
mod rustup;

use crate::commands::Usage;
use crate::{cargo, steps};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

pub(crate) use emulate::{Emulated, emulator, run_tests as run_tests_emulated};

/// One target of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// The target triple.
    pub(crate) triple: &'static str,
    /// Debian's name for the architecture if Debian has a built standard library for it; otherwise the standard library
    /// is compiled from its sources.
    debian_architecture: Option<&'static str>,
}

/// Every target in addition to x86-64 Linux.
pub(crate) const TARGETS: &[Target] = &[
    Target { triple: "aarch64-unknown-linux-gnu", debian_architecture: Some("arm64") },
    Target { triple: "aarch64-apple-darwin", debian_architecture: None },
    Target { triple: "x86_64-apple-darwin", debian_architecture: None },
];

/// Lint group that is denied on other targets: code that only the host's configuration uses is unused there. Other warnings
/// are not denied, because another compiler release may have new ones.
const DENIED: &str = "unused";

/// The source of a target's standard library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A target installed by rustup for the active toolchain.
    Rustup,
    /// Debian's packages.
    Debian,
}

impl Source {
    /// Parses the value of `--from`.
    pub(crate) fn parse(text: &str) -> Result<Self, Usage> {
        match text {
            "rustup" => Ok(Self::Rustup),
            "debian" => Ok(Self::Debian),
            other => Err(Usage(format!("--from wants rustup or debian, got `{other}`"))),
        }
    }
}

/// The host triple of `rustc`.
pub(crate) fn host_triple() -> anyhow::Result<String> {
    let text = steps::output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

/// The result of one target; only a compiled target is `Checked`.
#[derive(Debug)]
enum Outcome {
    Checked {
        source: Source,
        seconds: f64,
    },
    Failed(anyhow::Error),
    /// This machine has no standard library for it.
    Missing(String),
}

/// Arguments of `cargo xtask cross`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) targets: Vec<Target>,
    /// Only these crates; all if empty.
    pub(crate) packages: Vec<String>,
    /// Only this source; any if `None`.
    pub(crate) source: Option<Source>,
    /// Also compile tests, examples and benchmarks.
    pub(crate) with_tests: bool,
    /// A target that cannot be checked on this machine is reported and does not fail.
    pub(crate) allow_missing: bool,
}

/// Checks each target and prints a table; fails unless every target was compiled, or missing ones are allowed.
pub(crate) fn check(root: &Path, request: &Request) -> anyhow::Result<()> {
    let target_directory = cargo::target_directory(root)?;
    let mut outcomes = Vec::new();
    for target in &request.targets {
        eprintln!("== {}", target.triple);
        let start = Instant::now();
        let outcome = match toolchain(*target, request.source, &target_directory) {
            Err(missing) => Outcome::Missing(format!("{missing:#}")),
            Ok(toolchain) => {
                let mut command = toolchain.command(root, "check", *target, &target_directory);
                command.arg("--locked");
                match request.with_tests {
                    true => command.arg("--all-targets"),
                    false => command.args(["--lib", "--bins"]),
                };
                if request.packages.is_empty() {
                    command.arg("--workspace");
                }
                command.args(request.packages.iter().flat_map(|name| ["--package", name]));
                match steps::run(&mut command) {
                    Ok(()) => Outcome::Checked {
                        source: toolchain.source,
                        seconds: start.elapsed().as_secs_f64(),
                    },
                    Err(error) => Outcome::Failed(error),
                }
            }
        };
        outcomes.push((*target, outcome));
    }
    println!("{}", table(&outcomes));
    verdict(&outcomes, request.allow_missing)
}

/// A compiler that has a standard library for a target.
pub(crate) struct Toolchain {
    source: Source,
    /// The compiler to use instead of the active one.
    rustc: Option<PathBuf>,
    /// Runs the compiler with [`DENIED`] for the workspace's crates.
    wrapper: PathBuf,
    /// Whether the standard library is compiled from its sources.
    build_std: bool,
}

impl Toolchain {
    /// A cargo command for a target.
    fn command(&self, root: &Path, verb: &str, target: Target, target_directory: &Path) -> Command {
        self.command_of(root, &[verb, "--target", target.triple], target_directory).0
    }

    /// A cargo command with this compiler, and the folder of its outputs. The folder is separate from the host's, so that no
    /// other build is invalidated, and common to all targets, so that they share build scripts and macros.
    pub(crate) fn command_of(
        &self,
        root: &Path,
        arguments: &[&str],
        target_directory: &Path,
    ) -> (Command, PathBuf) {
        let mut command = cargo::command(root, arguments);
        let outputs = format!("cross-{:?}-outputs", self.source).to_lowercase();
        let outputs = target_directory.join(outputs);
        command.arg("--target-dir").arg(&outputs);
        // Flags for the host's processor or linker would be wrong for the target.
        command.env_remove("RUSTFLAGS");
        // Debug information would multiply the size of these outputs.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
        command.env("RUSTC_WORKSPACE_WRAPPER", &self.wrapper);
        if let Some(rustc) = &self.rustc {
            command.env("RUSTC", rustc);
        }
        if self.build_std {
            // Lets Debian's stable compiler accept the unstable flag `-Z build-std`.
            command.env("RUSTC_BOOTSTRAP", "1");
            command.args(["-Z", "build-std=std,panic_unwind,panic_abort,proc_macro,test"]);
        }
        (command, outputs)
    }
}

/// Finds or prepares a compiler for a target.
pub(crate) fn toolchain(
    target: Target,
    source: Option<Source>,
    target_directory: &Path,
) -> anyhow::Result<Toolchain> {
    // A wrapper instead of RUSTFLAGS, which would also apply to the standard library's sources.
    let wrapper = target_directory.join("cross-wrapper");
    write_program(&wrapper, &format!("exec \"$@\" -D {DENIED}"))?;
    let wants = |wanted| source.is_none_or(|source| source == wanted);
    if wants(Source::Rustup) {
        match rustup::has_target(target.triple) {
            Ok(()) => {
                let source = Source::Rustup;
                return Ok(Toolchain { source, rustc: None, wrapper, build_std: false });
            }
            Err(reason) if source.is_some() => return Err(reason),
            Err(reason) => eprintln!("{reason:#}; trying Debian's packages"),
        }
    }
    let installation = debian::prepare(target_directory)?;
    Ok(Toolchain {
        source: Source::Debian,
        rustc: Some(installation.rustc),
        wrapper,
        build_std: target.debian_architecture.is_none(),
    })
}

/// Writes an executable shell script with this line.
pub(crate) fn write_program(path: &Path, line: &str) -> anyhow::Result<()> {
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        std::fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
        make_executable(path)
    };
    write().with_context(|| format!("could not write {}", path.display()))
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// Other systems have no executable permission.
#[cfg(not(unix))]
fn make_executable(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn table(outcomes: &[(Target, Outcome)]) -> String {
    let lines = outcomes.iter().map(|(target, outcome)| {
        let words = match outcome {
            Outcome::Checked { source, seconds } => {
                format!("checked  {seconds:.0} s, standard library from {source:?}")
            }
            Outcome::Failed(error) => format!("FAILED   {error:#}"),
            Outcome::Missing(reason) => format!("MISSING  {reason}"),
        };
        format!("{:<28}{words}", target.triple)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn verdict(outcomes: &[(Target, Outcome)], allow_missing: bool) -> anyhow::Result<()> {
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, o)| wanted(o)).count();
    let checked = count(|outcome| matches!(outcome, Outcome::Checked { .. }));
    let missing = count(|outcome| matches!(outcome, Outcome::Missing(_)));
    let failed = outcomes.len() - checked - missing;
    if failed > 0 || (missing > 0 && !allow_missing) {
        anyhow::bail!(
            "{checked} of {} targets checked, {failed} failed, {missing} could not be checked here",
            outcomes.len()
        );
    }
    if missing > 0 {
        println!("{missing} targets were NOT checked (--allow-missing)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str) -> Outcome {
        match name {
            "checked" => Outcome::Checked { source: Source::Debian, seconds: 12.0 },
            "failed" => Outcome::Failed(anyhow::anyhow!("exit status 101")),
            _ => Outcome::Missing("no apt-get here".to_owned()),
        }
    }

    #[test]
    fn only_a_compiled_target_passes() {
        for (names, allow_missing, expect) in [
            (&["checked", "checked"][..], false, None),
            (
                &["checked", "missing"],
                false,
                Some("1 of 2 targets checked, 0 failed, 1 could not be checked here"),
            ),
            (&["checked", "missing"], true, None),
            (
                &["checked", "failed"],
                true,
                Some("1 of 2 targets checked, 1 failed, 0 could not be checked here"),
            ),
        ] {
            let outcomes: Vec<_> = names.iter().map(|name| (TARGETS[0], outcome(name))).collect();
            let error = verdict(&outcomes, allow_missing).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expect, "{names:?} {allow_missing}");
        }
    }

    #[test]
    fn table_lists_a_missing_target_as_missing() {
        let outcomes = [(TARGETS[0], outcome("missing")), (TARGETS[1], outcome("checked"))];
        let table = table(&outcomes);
        assert_eq!(
            table,
            "aarch64-unknown-linux-gnu   MISSING  no apt-get here\n\
             aarch64-apple-darwin        checked  12 s, standard library from Debian"
        );
    }
}
