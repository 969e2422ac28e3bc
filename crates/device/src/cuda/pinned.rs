//! Pinned host memory, which the GPU accesses directly.
#![allow(unsafe_code)] // Memory of the driver viewed as a slice.

use super::context::Context;
use super::{Cuda, DeviceError};
#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Page-locked (pinned), zeroed bytes in host memory: copies to and from the GPU are asynchronous and as fast as the link.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Mapped memory, registered with the driver.
    Registered(MmapMut),
    /// Allocated by the driver.
    Allocated { start: *mut u8, bytes: usize },
}

// SAFETY: the memory is owned, as by a `Vec`.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl Cuda {
    /// A pinned buffer of this many bytes, at least one.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver, for example when the system's pinned memory is exhausted.
    pub fn pinned(&self, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        let bytes = bytes.max(1);
        let context = Arc::clone(self.context());
        // While the driver pins memory, it blocks the driver calls of all other threads: for 8 MiB 4 ms if it allocates them,
        // 0.8 ms if the pages already exist (measured on an H200).
        if let Some(mut mapped) = mapped(bytes) {
            let driver = context.enter()?;
            // SAFETY: the mapping is at least as long, and is unregistered before it is unmapped.
            let code = unsafe { (driver.host_register)(mapped.as_mut_ptr().cast(), bytes, 0) };
            if code == 0 {
                return Ok(PinnedBuffer { context, memory: Memory::Registered(mapped) });
            }
        }
        // Some integrated GPUs cannot register memory.
        let driver = context.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (driver.host_allocate)(&raw mut start, bytes, 0) };
        context.check("cuMemHostAlloc", code)?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave that many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedBuffer { context, memory: Memory::Allocated { start, bytes } })
    }
}

/// Anonymous memory with all pages present (prefaulted), as huge pages if the system provides them.
fn mapped(bytes: usize) -> Option<MmapMut> {
    let mapped = MmapMut::map_anon(bytes).ok()?;
    #[cfg(target_os = "linux")]
    for advice in [Advice::HugePage, Advice::PopulateWrite] {
        // If the system ignores the advice, registering faults the pages in.
        let _ = mapped.advise(advice);
    }
    Some(mapped)
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Registered(mapped) => mapped,
            // SAFETY: that many bytes, initialised, for as long as `self` lives.
            Memory::Allocated { start, bytes } => unsafe {
                std::slice::from_raw_parts(*start, *bytes)
            },
        }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Registered(mapped) => mapped,
            // SAFETY: as above, and borrowed exclusively.
            Memory::Allocated { start, bytes } => unsafe {
                std::slice::from_raw_parts_mut(*start, *bytes)
            },
        }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let Ok(driver) = self.context.enter() else { return };
        match &mut self.memory {
            // SAFETY: it was registered with this address, and is unmapped only after this.
            Memory::Registered(mapped) => unsafe {
                (driver.host_unregister)(mapped.as_mut_ptr().cast());
            },
            // SAFETY: the memory came from cuMemHostAlloc and is freed only here.
            Memory::Allocated { start, .. } => unsafe {
                (driver.host_free)(start.cast());
            },
        }
    }
}
