//! Processes of this machine, found in /proc.

use std::path::PathBuf;
use std::time::{Duration, Instant};

fn proc(id: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{id}")).join(name)
}

/// Threads of a process.
pub fn threads(id: u32) -> usize {
    std::fs::read_dir(proc(id, "task")).map_or(0, Iterator::count)
}

/// The processes that a process has started.
pub fn children(id: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(proc(id, &format!("task/{id}/children")));
    list.unwrap_or_default().split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Kills a process.
pub fn kill(id: u32) {
    let id = rustix::process::Pid::from_raw(id.cast_signed()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
}

/// Waits until processes are gone or wait to be collected.
pub fn gone(ids: &[u32]) -> Duration {
    let start = Instant::now();
    let there = |id: &u32| {
        let stat = std::fs::read_to_string(proc(*id, "stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
    };
    while ids.iter().any(there) && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}
