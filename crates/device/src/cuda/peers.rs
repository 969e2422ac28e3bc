//! Peer access between GPUs of one process.
#![allow(unsafe_code)] // Calls of the driver.

use super::memory::{context_of, is_of};
use super::{Buffer, Cuda, DeviceError, Stream};
use std::sync::Arc;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY: i32 = 704;

/// Another GPU's memory, mapped for kernels of this one.
#[derive(Debug)]
pub struct PeerAccess {
    view: Arc<Buffer>,
    /// The buffer that owns the memory.
    _owner: Arc<Buffer>,
}

impl PeerAccess {
    /// The memory as a buffer of this GPU.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.view
    }
}

impl Cuda {
    /// Whether this GPU can access another one's memory directly.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn can_access_peer(&self, other: &Self) -> Result<bool, DeviceError> {
        let context = self.context();
        let (own, other) = (context.handles().0, other.context().handles().0);
        let mut can = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (context.driver.can_access_peer)(&raw mut can, own, other) };
        context.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Enables peer access to another GPU's memory, also for copies; repeated calls have no effect.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver, for example if it is not possible ([`Cuda::can_access_peer`]).
    pub fn enable_peer_access(&self, other: &Self) -> Result<(), DeviceError> {
        let driver = self.context().enter()?;
        // SAFETY: both contexts live; no flag is defined.
        let code = unsafe { (driver.reach)(other.context().handles().1, 0) };
        if code == ALREADY { Ok(()) } else { self.context().check("cuCtxEnablePeerAccess", code) }
    }

    /// A buffer of another GPU of this process, for kernels of this one.
    ///
    /// # Errors
    /// As [`Cuda::enable_peer_access`].
    pub fn map_peer_buffer(
        &self,
        other: &Self,
        buffer: &Arc<Buffer>,
    ) -> Result<PeerAccess, DeviceError> {
        is_of(buffer, other.context())?;
        self.enable_peer_access(other)?;
        // SAFETY: addresses are the same for all GPUs of a process, and the owner is held as long.
        let view = unsafe { self.borrow_buffer(buffer.address(), buffer.bytes()) };
        Ok(PeerAccess { view: Arc::new(view), _owner: Arc::clone(buffer) })
    }
}

impl Stream {
    /// Copies the first `bytes` of a buffer of this GPU to another GPU of this process, in stream order: directly after
    /// [`Cuda::enable_peer_access`], and otherwise through the host.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if one of them is shorter or the first belongs to another GPU, or an error of the
    /// driver.
    pub fn copy_to_peer(
        &self,
        from: &Buffer,
        to: &Buffer,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        is_of(from, self.context())?;
        let has = from.bytes().min(to.bytes());
        if bytes > has {
            let what = format!("{bytes} bytes do not fit a buffer of {has} bytes");
            return Err(DeviceError::refused(what));
        }
        let driver = self.context().enter()?;
        let (here, there) = (self.context().handles().1, context_of(to)?.handles().1);
        // SAFETY: both buffers have that many bytes, and their contexts live.
        let code = unsafe {
            (driver.copy_to_peer)(to.address(), there, from.address(), here, bytes, self.raw())
        };
        self.context().check("cuMemcpyPeerAsync", code)
    }
}
