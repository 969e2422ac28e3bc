//! A check in a separate process with a deadline.
//!
//! A broken driver blocks a thread in the kernel, where no signal reaches it. To end by a deadline, the check runs in a
//! child in a separate process group, and the parent exits in time in any case.

use super::cut_short;
use crate::Outcome;
use crate::cli::Check;
use crate::failure::Failure;
use crate::output::Output;
use crate::own_program::own_program;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use time::OffsetDateTime;

/// Polling interval for the child's exit.
const LOOK: Duration = Duration::from_millis(50);

/// Time reserved of a limit: for running work, and for the report.
pub(super) fn reserved_time(limit: Duration) -> Duration {
    (limit / 5).min(Duration::from_secs(15))
}

/// A running check.
pub(super) struct Part {
    child: Child,
    /// Its standard error; the last line says why it ended.
    said: Option<JoinHandle<String>>,
}

impl Part {
    /// Starts a check with this process's arguments. It starts no work after `until`. With a folder it is silent;
    /// otherwise it writes to this process's output.
    pub(super) fn start(
        until: Instant,
        folder: Option<&Path>,
        variables: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let own = own_program()
            .ok_or_else(|| anyhow::anyhow!("the path of this program is not known"))?;
        let left = until.saturating_duration_since(Instant::now());
        let until =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + left;
        let mut command = Command::new(own);
        command.args(std::env::args_os().skip(1)).args(["--until", &until.as_millis().to_string()]);
        command.envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::piped());
        if let Some(folder) = folder {
            command.arg("--part").arg(folder).stdout(Stdio::null()).stderr(Stdio::piped());
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let said = child.stderr.take().map(|mut errors| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = errors.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        Ok(Self { child, said })
    }

    /// Its exit status, once it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Why it did not finish, in one sentence; `None` if it did, with or without findings.
    pub(super) fn failure(&mut self, status: ExitStatus) -> Option<String> {
        if status.code().is_some_and(|code| code != 2) && status.code() != Some(101) {
            return None;
        }
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        let last = said.lines().rev().find(|line| line.starts_with("error: "));
        let last = last.or_else(|| said.lines().rev().find(|line| !line.trim().is_empty()));
        let why = last.map(|line| format!(": {}", line.trim_start_matches("error: ")));
        Some(format!("its check ended, {status}{}", why.unwrap_or_default()))
    }

    /// Kills it and its children. A process that cannot be killed is not waited for.
    fn kill(&mut self) {
        if self.ended().is_some() {
            return;
        }
        #[cfg(target_os = "linux")]
        if let Some(group) =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let until = Instant::now() + Duration::from_secs(1);
        while self.ended().is_none() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Part {
    /// Kills the check with its owner.
    fn drop(&mut self) {
        self.kill();
    }
}

/// Checks this machine within a time limit, whatever hangs.
pub(super) fn within(
    limit: Duration,
    arguments: &Check,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let began = OffsetDateTime::now_utc();
    let end = Instant::now() + limit;
    let mut part = Part::start(end - reserved_time(limit), None, &[])?;
    let status = loop {
        match part.ended() {
            Some(status) => break status,
            None if Instant::now() >= end => {
                drop(part);
                return cut_short::report(arguments, limit, began, output);
            }
            None => std::thread::sleep(LOOK),
        }
    };
    match status.code() {
        Some(0) => Ok(Outcome::Good),
        Some(1) => Ok(Outcome::Bad),
        Some(3) => Ok(Outcome::Unclear),
        // It has reported the reason itself.
        Some(code) => std::process::exit(code),
        None => {
            let hint = "run it again without --budget to see where it ends";
            Err(Failure::hinted(format!("the check ended, {status}"), hint))
        }
    }
}

/// Exits with its children when the parent is gone: the parent holds the other end of standard input.
pub(super) fn end_with_its_parent() {
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().lock().read_to_end(&mut nothing);
        let _ = std::io::stderr().flush();
        #[cfg(target_os = "linux")]
        let _ = rustix::process::kill_current_process_group(rustix::process::Signal::KILL);
        std::process::exit(2);
    });
}
