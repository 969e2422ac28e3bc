//! GPU memory shared between processes (CUDA IPC): kernels of one process write to memory of another.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::IpcHandle;
use super::{Buffer, Cuda, DeviceError};
use std::sync::Arc;

/// Size of an IPC handle (`CUipcMemHandle`) in bytes.
pub const IPC_HANDLE_BYTES: usize = 64;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: u32 = 1;

/// Memory that another process allocated on its GPU, opened in this process.
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
    /// The IPC handle by which other processes open a buffer. The buffer must be the start of an allocation and outlive
    /// their use of it.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver, also if the system does not support IPC.
    pub fn ipc_handle(&self, buffer: &Buffer) -> Result<[u8; IPC_HANDLE_BYTES], DeviceError> {
        let context = self.stream().context();
        let driver = context.enter()?;
        let ipc = driver.ipc.ok_or_else(unsupported)?;
        let mut handle = IpcHandle([0; IPC_HANDLE_BYTES]);
        // SAFETY: the pointer is to a local that outlives the call, and the buffer lives.
        let code = unsafe { (ipc.handle)(&raw mut handle, buffer.address()) };
        context.check("cuIpcGetMemHandle", code)?;
        Ok(handle.0)
    }

    /// Opens another process's buffer of this many bytes by its IPC handle.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver: the GPUs have no peer access, or the process has ended.
    pub fn open_ipc_handle(
        &self,
        handle: [u8; IPC_HANDLE_BYTES],
        bytes: usize,
    ) -> Result<PeerBuffer, DeviceError> {
        let context = self.stream().context();
        let driver = context.enter()?;
        let ipc = driver.ipc.ok_or_else(unsupported)?;
        let mut address = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (ipc.open)(&raw mut address, IpcHandle(handle), LAZY_PEER_ACCESS) };
        context.check("cuIpcOpenMemHandle", code)?;
        // SAFETY: the driver has mapped the other process's whole allocation until it is closed.
        let buffer = Arc::new(unsafe { self.borrow_buffer(address, bytes) });
        Ok(PeerBuffer { buffer, context: Arc::clone(context) })
    }
}

fn unsupported() -> DeviceError {
    DeviceError::refused("the driver does not support CUDA IPC")
}

impl Drop for PeerBuffer {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter()
            && let Some(ipc) = driver.ipc
        {
            // SAFETY: opened in `open_ipc_handle`, closed once; launches that use it are done before.
            unsafe { (ipc.close)(self.buffer.address()) };
        }
    }
}
