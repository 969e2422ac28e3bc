//! Test programs: compiled once by cargo, then run several at a time, each with a time limit.
//!
//! `cargo test` runs them one after the other, so that a processor is idle while the last test of a program runs.

use crate::cargo;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// A compiled test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The package that it belongs to.
    pub(crate) package: String,
    /// The flags of `cargo test` that select it in its package: `--lib`, `--test NAME` or `--bin NAME`.
    pub(crate) target: String,
    /// Whether `cargo test` runs it without being asked for it by name.
    pub(crate) by_default: bool,
    path: PathBuf,
    /// The package's folder, in which its tests run.
    folder: PathBuf,
}

/// Compiles the test programs that `targets` select in the workspace.
pub(crate) fn build(root: &Path, targets: &[&str]) -> anyhow::Result<Vec<TestProgram>> {
    let arguments = ["test", "--workspace", "--locked", "--no-run"];
    let mut command = cargo::command(root, &[&arguments[..], targets].concat());
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().context("could not start cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let text = String::from_utf8(output.stdout).context("cargo printed no UTF-8")?;
    text.lines().filter_map(|line| test_program(line).transpose()).collect()
}

/// The test program that a line of cargo's messages reports.
fn test_program(line: &str) -> anyhow::Result<Option<TestProgram>> {
    let message: Value = serde_json::from_str(line).context("cargo printed no JSON")?;
    let is_test = message["profile"]["test"] == Value::Bool(true);
    let (Some(path), true) = (message["executable"].as_str(), is_test) else { return Ok(None) };
    let manifest = Path::new(message["manifest_path"].as_str().context("no manifest_path")?);
    let folder = manifest.parent().context("a manifest without a folder")?;
    let name = message["target"]["name"].as_str().context("a target without a name")?;
    let kind = message["target"]["kind"][0].as_str().context("a target without a kind")?;
    // The package's ID ends with `/NAME#VERSION`, or with `#NAME@VERSION` where the folder has another name.
    let package = message["package_id"].as_str().context("no package_id")?;
    let (place, version) = package.rsplit_once('#').context("a package_id without a version")?;
    let package = match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    };
    Ok(Some(TestProgram {
        package: package.to_owned(),
        target: match kind {
            "test" | "bin" => format!("--{kind} {name}"),
            _ => "--lib".to_owned(),
        },
        by_default: message["target"]["test"] == Value::Bool(true),
        path: path.into(),
        folder: folder.into(),
    }))
}

/// One run of a test program.
#[derive(Debug)]
pub(crate) struct TestRun<'a> {
    pub(crate) program: &'a TestProgram,
    /// Filters and options of the test program.
    pub(crate) arguments: &'a [&'a str],
    pub(crate) variables: &'a [(&'static str, OsString)],
}

impl TestRun<'_> {
    /// The command that repeats it, without its variables.
    fn name(&self) -> String {
        let mut name = format!("cargo test -p {} {}", self.program.package, self.program.target);
        if !self.arguments.is_empty() {
            name += &format!(" -- {}", self.arguments.join(" "));
        }
        name
    }

    /// Runs the test program, with its output in `log`.
    fn run(&self, log: &File, limit: Duration) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program.path);
        command.args(self.arguments).envs(self.variables.iter().cloned());
        command.current_dir(&self.program.folder).stdin(Stdio::null());
        command.env("CARGO", cargo::program()).env("CARGO_MANIFEST_DIR", &self.program.folder);
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        let mut child = command.spawn().context("could not start it")?;
        match wait(&mut child, limit)? {
            None => bail!("stopped after {} s, its time limit", limit.as_secs()),
            Some(status) => {
                ensure!(status.success(), "{status}");
                Ok(())
            }
        }
    }
}

/// Waits for a process and kills it at the time limit; `None` if it was killed.
fn wait(child: &mut Child, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs test programs, `parallel` at a time, prints the output of each when it ends, and returns the failures.
pub(crate) fn run(runs: &[TestRun], parallel: usize, limit: Duration) -> Vec<String> {
    let (queue, failed) = (Mutex::new(runs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| {
                while let Some(run) = next(&queue) {
                    if let Err(error) = run_and_print(run, limit) {
                        let message = format!("`{}`: {error:#}", run.name());
                        failed.lock().unwrap_or_else(|error| error.into_inner()).push(message);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(|error| error.into_inner())
}

fn next<'a, T>(queue: &Mutex<std::slice::Iter<'a, T>>) -> Option<&'a T> {
    queue.lock().unwrap_or_else(|error| error.into_inner()).next()
}

fn run_and_print(run: &TestRun, limit: Duration) -> anyhow::Result<()> {
    let mut log = tempfile::tempfile().context("no file for the output")?;
    let start = Instant::now();
    let result = run.run(&log, limit);
    let seconds = start.elapsed().as_secs_f64();
    log.rewind()?;
    // One lock, so that no other output comes in between.
    let mut error_output = std::io::stderr().lock();
    writeln!(error_output, "-- {}: {seconds:.1} s", run.name())?;
    std::io::copy(&mut log, &mut error_output)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/x#0.2.0","manifest_path":"/w/crates/x/Cargo.toml","target":{"kind":["test"],"name":"plan","test":true},"profile":{"test":true},"executable":"/t/plan-1"}"#;

    fn program(path: &str, target: &str) -> TestProgram {
        TestProgram {
            package: "x".to_owned(),
            target: target.to_owned(),
            by_default: true,
            path: path.into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn messages_of_test_programs_are_read() {
        let read = |from: &str, to: &str| test_program(&MESSAGE.replace(from, to)).unwrap();
        let expected = |target: &str| {
            Some(TestProgram { folder: "/w/crates/x".into(), ..program("/t/plan-1", target) })
        };
        assert_eq!(read("", ""), expected("--test plan"));
        assert_eq!(read(r#"["test"]"#, r#"["lib"]"#), expected("--lib"));
        assert_eq!(read(r#"["test"]"#, r#"["bin"]"#), expected("--bin plan"));
        assert_eq!(read("crates/x#0.2.0", "crates/y#x@0.2.0"), expected("--test plan"));
        let by_name = TestProgram { by_default: false, ..expected("--test plan").unwrap() };
        assert_eq!(read(r#","test":true"#, r#","test":false"#), Some(by_name));
        // A library or program that is not a test.
        assert_eq!(read(r#"{"test":true"#, r#"{"test":false"#), None);
        assert_eq!(read(r#""/t/plan-1""#, "null"), None);
        assert!(test_program("warning").is_err());
    }

    #[test]
    fn failures_and_time_limits_are_reported() {
        let (good, bad, slow) =
            (program("true", "--lib"), program("false", "--bin x"), program("sleep", "--test s"));
        let run_of = |program, arguments| TestRun { program, arguments, variables: &[] };
        let runs = [run_of(&bad, &[]), run_of(&good, &[]), run_of(&slow, &["60"])];
        let mut failed = run(&runs, 2, Duration::from_millis(300));
        failed.sort();
        assert_eq!(
            failed,
            [
                "`cargo test -p x --bin x`: exit status: 1",
                "`cargo test -p x --test s -- 60`: stopped after 0 s, its time limit",
            ]
        );
    }
}
