//! Stops one process through a pidfd, which cannot refer to another process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::time::{Duration, Instant};

/// A process with its pidfd: signals to a process that has ended have no effect, even if its PID is reused.
pub(super) struct PidHandle(OwnedFd);

impl PidHandle {
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, Signal::TERM)?)
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, Signal::KILL)?)
    }

    /// Waits at most this long for the process to end; returns whether it has.
    pub(super) fn ended_within(&self, limit: Duration) -> io::Result<bool> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut waited = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut waited, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn child(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn a_willing_process_ends_on_term_and_no_other_does() {
        let (mut one, mut other) = (child("sleep 60"), child("sleep 60"));
        let held = PidHandle::open(one.id()).unwrap();
        assert!(!held.ended_within(Duration::from_millis(50)).unwrap());
        held.terminate().unwrap();
        assert!(held.ended_within(Duration::from_secs(5)).unwrap());
        assert!(other.try_wait().unwrap().is_none());
        one.wait().unwrap();
        // The pidfd of an ended process reaches no process.
        assert!(held.terminate().is_err());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_deaf_process_needs_kill() {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let script = format!("trap '' TERM; : > {}; while :; do sleep 0.1; done", ready.display());
        let mut unresponsive = child(&script);
        while !ready.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let held = PidHandle::open(unresponsive.id()).unwrap();
        held.terminate().unwrap();
        assert!(!held.ended_within(Duration::from_millis(300)).unwrap());
        held.kill().unwrap();
        assert!(held.ended_within(Duration::from_secs(5)).unwrap());
        unresponsive.wait().unwrap();
    }

    #[test]
    fn no_process_no_handle() {
        assert!(PidHandle::open(0).is_err());
        assert!(PidHandle::open(u32::MAX).is_err());
    }
}
