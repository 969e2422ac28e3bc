//! The processor as a device, in this process and in children that were forked from one that used it.
//!
//! A forked child has none of its parent's threads, and the kernels' thread pools wait for theirs forever. A child runs grids on one
//! thread, and everything else in a pool of its own.

use device::Device;
use facts::BackendKind;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The process that used the processor first, and its device.
static FIRST: OnceLock<(u32, Device)> = OnceLock::new();
/// The latest child that used it.
static FORKED: Mutex<Option<&'static Forked>> = Mutex::new(None);

struct Forked {
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

/// What a forked child runs on; none in the process that used the processor first.
fn forked() -> Result<Option<&'static Forked>, String> {
    let (process, device) = first();
    let this = std::process::id();
    if this == *process {
        return Ok(None);
    }
    // Only the thread that forked exists in a child, and it does not fork while it holds this.
    let mut last = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(forked) = last.filter(|forked| forked.process == this) {
        return Ok(Some(forked));
    }
    let pool = ThreadPoolBuilder::new().num_threads(device.capabilities().threads).build();
    let pool = pool.map_err(|error| format!("no threads after a fork: {error}"))?;
    let forked = Forked { process: this, device: device.with_threads(1), pool };
    *last = Some(Box::leak(Box::new(forked)));
    Ok(*last)
}

/// The processor in this process.
pub(crate) fn device() -> Result<&'static Device, String> {
    Ok(forked()?.map_or(&first().1, |forked| &forked.device))
}

/// Runs work of the processor where its threads are.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    Ok(match forked()? {
        None => work(),
        Some(forked) => forked.pool.install(work),
    })
}
