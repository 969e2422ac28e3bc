//! The CPU device, in this process and in its forked children.
//!
//! A forked child has none of its parent's threads, so the parent's thread pools would block forever. A child runs grids on one
//! thread, and everything else in a separate pool.

use device::Device;
use facts::BackendKind;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The process that used the CPU device first, and its device.
static FIRST: OnceLock<(u32, Device)> = OnceLock::new();
/// The device of this process if it is a forked child.
static FORKED: Mutex<Option<&'static ForkedDevice>> = Mutex::new(None);

struct ForkedDevice {
    process: u32,
    device: Device,
    pool: ThreadPool,
}

fn first() -> &'static (u32, Device) {
    FIRST.get_or_init(|| match backends::open(BackendKind::Cpu) {
        Ok(device) => (std::process::id(), device),
        Err(absent) => unreachable!("{absent}"),
    })
}

/// The device and pool of a forked child; `None` in the process that used the CPU device first.
fn forked() -> Result<Option<&'static ForkedDevice>, String> {
    let (process, device) = first();
    let this = std::process::id();
    if this == *process {
        return Ok(None);
    }
    // A child has only the thread that forked, which did not hold this lock.
    let mut last = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(forked) = last.filter(|forked| forked.process == this) {
        return Ok(Some(forked));
    }
    let pool = ThreadPoolBuilder::new().num_threads(device.capabilities().threads).build();
    let pool = pool.map_err(|error| format!("no threads after a fork: {error}"))?;
    let forked = ForkedDevice { process: this, device: device.with_threads(1), pool };
    *last = Some(Box::leak(Box::new(forked)));
    Ok(*last)
}

/// The CPU device of this process.
pub(crate) fn device() -> Result<&'static Device, String> {
    Ok(forked()?.map_or(&first().1, |forked| &forked.device))
}

/// Runs work of the CPU device in this process's thread pool.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    Ok(match forked()? {
        None => work(),
        Some(forked) => forked.pool.install(work),
    })
}
