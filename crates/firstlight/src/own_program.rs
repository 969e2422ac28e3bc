//! This very program, to be started again for what wants a process of its own.

use std::path::PathBuf;
#[cfg(unix)]
use std::process::Command;

/// Where it lies; `None` where the system does not tell.
pub(crate) fn own_program() -> Option<PathBuf> {
    // Linux's link leads to the program that runs, also when its file has been replaced since.
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}

/// Starts this command again in this process's place, with a setting that libraries read when they are loaded.
#[cfg(unix)]
pub(crate) fn again(name: &str, value: &str) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let own = own_program().ok_or_else(|| anyhow::anyhow!("this program cannot be found again"))?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(own);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    Err(anyhow::Error::from(command.args(arguments).env(name, value).exec())
        .context("cannot start firstlight again"))
}

#[cfg(not(unix))]
pub(crate) fn again(_: &str, _: &str) -> anyhow::Result<()> {
    anyhow::bail!("this needs a system on which NVIDIA GPUs are supported here: Linux")
}
