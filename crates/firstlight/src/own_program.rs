//! This very program, to be started again for what wants a process of its own.

use std::path::PathBuf;

/// Where it lies; `None` where the system does not tell.
pub(crate) fn own_program() -> Option<PathBuf> {
    // Linux's link leads to the program that runs, also when its file has been replaced since.
    if cfg!(target_os = "linux") {
        Some(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe().ok()
    }
}
