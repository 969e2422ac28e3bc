//! Finds this program's file, to start it again in a separate process.

use std::path::PathBuf;
#[cfg(unix)]
use std::process::Command;

/// Its path; `None` if the system does not report it.
pub(crate) fn own_program() -> Option<PathBuf> {
    // Linux's link refers to the running program, even after its file was replaced.
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}

/// Replaces this process by the same command with an additional variable, which libraries read when they are loaded.
#[cfg(unix)]
pub(crate) fn restart_with(name: &str, value: &str) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let own =
        own_program().ok_or_else(|| anyhow::anyhow!("the path of this program is not known"))?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(own);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    Err(anyhow::Error::from(command.args(arguments).env(name, value).exec())
        .context("cannot start firstlight again"))
}

#[cfg(not(unix))]
pub(crate) fn restart_with(_: &str, _: &str) -> anyhow::Result<()> {
    anyhow::bail!("this needs a system on which NVIDIA GPUs are supported here: Linux")
}
