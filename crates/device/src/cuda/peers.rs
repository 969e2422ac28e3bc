//! GPUs of one process that reach one another's memory.
#![allow(unsafe_code)] // Calls of the driver.

use super::{Buffer, Cuda, CudaError, Stream};
use std::sync::Arc;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY: i32 = 704;

/// Another GPU's memory, where kernels of this one find it.
#[derive(Debug)]
pub struct Reached {
    view: Arc<Buffer>,
    /// Whose memory it is.
    _owner: Arc<Buffer>,
}

impl Reached {
    /// The memory as a buffer of this GPU.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.view
    }
}

impl Cuda {
    /// Whether this GPU reads and writes another one's memory without the host between.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn can_reach(&self, other: &Self) -> Result<bool, CudaError> {
        let context = self.context();
        let (own, other) = (context.handles().0, other.context().handles().0);
        let mut can = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (context.driver.can_reach)(&raw mut can, own, other) };
        context.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Lets this GPU use another one's memory directly, in copies too; once more changes nothing.
    ///
    /// # Errors
    /// [`CudaError`] of the driver: it cannot ([`Cuda::can_reach`]).
    pub fn reach(&self, other: &Self) -> Result<(), CudaError> {
        let driver = self.context().enter()?;
        // SAFETY: both contexts live; no flag is defined.
        let code = unsafe { (driver.reach)(other.context().handles().1, 0) };
        if code == ALREADY { Ok(()) } else { self.context().check("cuCtxEnablePeerAccess", code) }
    }

    /// A buffer of another GPU of this process, for kernels of this one.
    ///
    /// # Errors
    /// As [`Cuda::reach`].
    pub fn open_reached(&self, other: &Self, buffer: &Arc<Buffer>) -> Result<Reached, CudaError> {
        buffer.is_of(other.context())?;
        self.reach(other)?;
        // SAFETY: addresses are the same for all GPUs of a process, and the owner is held as long.
        let view = unsafe { self.borrow_buffer(buffer.address(), buffer.bytes()) };
        Ok(Reached { view: Arc::new(view), _owner: Arc::clone(buffer) })
    }
}

impl Stream {
    /// Copies the first `bytes` of a buffer of this GPU to another GPU of this process, in the order of this stream: directly where
    /// [`Cuda::reach`] was called, else through the host.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when one of them is shorter or the first is of another GPU, or an error of the driver.
    pub fn copy_to_peer(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), CudaError> {
        from.is_of(self.context())?;
        let has = from.bytes().min(to.bytes());
        if bytes > has {
            let what = format!("{bytes} bytes do not fit a buffer of {has} bytes");
            return Err(CudaError::refused(what));
        }
        let driver = self.context().enter()?;
        let (here, there) = (self.context().handles().1, to.context().handles().1);
        // SAFETY: both buffers hold that many bytes, and their contexts live.
        let code = unsafe {
            (driver.copy_to_peer)(to.address(), there, from.address(), here, bytes, self.raw())
        };
        self.context().check("cuMemcpyPeerAsync", code)
    }
}
