//! Memory of one GPU that kernels of other processes write to (CUDA IPC).
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::SharedHandle;
use super::{Buffer, Cuda, DeviceError};
use std::sync::Arc;

/// Size of an IPC handle.
pub const SHARED_HANDLE_BYTES: usize = 64;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const ENABLE_PEERS: u32 = 1;

/// Memory of another process, on its GPU.
#[derive(Debug)]
pub struct PeerBuffer {
    buffer: Arc<Buffer>,
    context: Arc<Context>,
}

impl PeerBuffer {
    /// The memory, mapped for kernels of this GPU.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }
}

impl Cuda {
    /// An IPC handle by which other processes open a buffer; the buffer is the start of an allocation, and must outlive
    /// them.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver, also if the system does not support IPC.
    pub fn share(&self, buffer: &Buffer) -> Result<[u8; SHARED_HANDLE_BYTES], DeviceError> {
        let context = self.stream().context();
        let driver = context.enter()?;
        let shared = driver.shared.ok_or_else(none)?;
        let mut handle = SharedHandle([0; SHARED_HANDLE_BYTES]);
        // SAFETY: the pointer is to a local that outlives the call, and the buffer lives.
        let code = unsafe { (shared.handle)(&raw mut handle, buffer.address()) };
        context.check("cuIpcGetMemHandle", code)?;
        Ok(handle.0)
    }

    /// Opens another process's buffer of this many bytes by its IPC handle.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver: the GPUs have no peer access, or the process has ended.
    pub fn open_shared(
        &self,
        handle: [u8; SHARED_HANDLE_BYTES],
        bytes: usize,
    ) -> Result<PeerBuffer, DeviceError> {
        let context = self.stream().context();
        let driver = context.enter()?;
        let shared = driver.shared.ok_or_else(none)?;
        let mut address = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (shared.open)(&raw mut address, SharedHandle(handle), ENABLE_PEERS) };
        context.check("cuIpcOpenMemHandle", code)?;
        // SAFETY: the driver has mapped the other process's whole allocation until it is closed.
        let buffer = Arc::new(unsafe { self.borrow_buffer(address, bytes) });
        Ok(PeerBuffer { buffer, context: Arc::clone(context) })
    }
}

fn none() -> DeviceError {
    DeviceError::refused("the driver shares no memory between processes")
}

impl Drop for PeerBuffer {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter()
            && let Some(shared) = driver.shared
        {
            // SAFETY: opened in `open_shared`, closed once; launches that use it are done before.
            unsafe { (shared.close)(self.buffer.address()) };
        }
    }
}
