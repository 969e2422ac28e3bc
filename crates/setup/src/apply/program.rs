//! Programs that an apply starts.

use super::ApplyError;
use super::lock::Lock;
use crate::uv::Uv;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// How much of what a failed program printed is worth repeating, in lines from its end.
const LAST_LINES: usize = 12;

/// Starts programs that carry the lock of their apply.
#[derive(Debug)]
pub(crate) struct Programs<'a> {
    uv: &'a Uv,
    lock: &'a Lock,
}

impl<'a> Programs<'a> {
    pub(super) fn new(uv: &'a Uv, lock: &'a Lock) -> Self {
        Self { uv, lock }
    }

    /// uv, hearing only what it is told.
    pub(crate) fn uv(&self, arguments: &[&str]) -> Result<Command, ApplyError> {
        let mut command = self.uv.command();
        // The environment a shell has activated is not the one this is about.
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

/// Runs a program to its end and gives its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, ApplyError> {
    Running::start(command)?.output()
}

/// A program that was started, while others work. It ends with this.
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

    /// Waits for its end and gives its standard output.
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
        // Nobody asks for its answer any more. It may have ended by itself.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command line, as a person would read it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
