//! Starts the programs of an apply.

use super::ApplyError;
use super::lock::Lock;
use crate::uv::Uv;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Number of last lines of a failed program's output that are shown.
const LAST_LINES: usize = 12;

/// Starts programs that hold the lock of their apply.
#[derive(Debug)]
pub(crate) struct Programs<'a> {
    uv: &'a Uv,
    lock: &'a Lock,
}

impl<'a> Programs<'a> {
    pub(super) fn new(uv: &'a Uv, lock: &'a Lock) -> Self {
        Self { uv, lock }
    }

    /// The path of uv.
    pub(super) fn uv_path(&self) -> &Path {
        &self.uv.program
    }

    /// uv with exactly these arguments, without the user's configuration.
    pub(crate) fn uv(&self, arguments: &[&str]) -> Result<Command, ApplyError> {
        let mut command = self.uv.command();
        // The environment activated in the shell is not the one to change.
        command.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX").args(arguments);
        self.locked(command)
    }

    /// A Python, isolated from the user's settings and folders.
    pub(crate) fn python(&self, python: &Path) -> Result<Command, ApplyError> {
        let mut command = Command::new(python);
        command.args(["-I", "-B"]);
        self.locked(command)
    }

    fn locked(&self, mut command: Command) -> Result<Command, ApplyError> {
        command.stdin(self.lock.stdin().map_err(ApplyError::io(command.get_program()))?);
        Ok(command)
    }
}

/// Runs a program to completion and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, ApplyError> {
    Running::start(command)?.output()
}

/// A running program. Dropping it kills the program.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    line: String,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Result<Self, ApplyError> {
        let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = started.map_err(ApplyError::io(command.get_program()))?;
        Ok(Self { child: Some(child), line: line(command) })
    }

    /// Waits for its end and returns its standard output.
    pub(super) fn output(mut self) -> Result<String, ApplyError> {
        let program = std::mem::take(&mut self.line);
        let output = self.child.take().map(Child::wait_with_output).transpose();
        let output = output.map_err(ApplyError::io(&program))?;
        let Some(Output { status, stdout, stderr }) = output else { return Ok(String::new()) };
        if status.success() {
            return Ok(String::from_utf8_lossy(&stdout).into_owned());
        }
        let said = String::from_utf8_lossy(if stderr.is_empty() { &stdout } else { &stderr });
        let lines: Vec<&str> = said.trim().lines().collect();
        Err(ApplyError::Program {
            program,
            status: status.to_string(),
            said: lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its output is not needed any more. It may have ended already.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command line in readable form.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
