//! Host memory that the GPU can read and write directly.
#![allow(unsafe_code)] // Memory of the driver viewed as a slice.

use super::context::Context;
use super::{Cuda, CudaError};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Page-locked bytes in host memory, zeroed: copies to and from the GPU run at the link's speed and beside the host.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is owned, as a `Vec` owns its own.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for PinnedBuffer {}

impl Cuda {
    /// A pinned buffer of this many bytes, at least one.
    ///
    /// # Errors
    /// [`CudaError`] of the driver: pinned memory is scarcer than memory.
    pub fn pinned(&self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        let context = self.context();
        let driver = context.enter()?;
        let mut start = std::ptr::null_mut();
        let bytes = bytes.max(1);
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (driver.host_allocate)(&raw mut start, bytes, 0) };
        context.check("cuMemHostAlloc", code)?;
        let start = start.cast::<u8>();
        // SAFETY: the driver gave that many bytes.
        unsafe { start.write_bytes(0, bytes) };
        Ok(PinnedBuffer { context: Arc::clone(context), start, bytes })
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: that many bytes, initialised, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: the memory came from cuMemHostAlloc and nobody else frees it.
            unsafe { (driver.host_free)(self.start.cast()) };
        }
    }
}
