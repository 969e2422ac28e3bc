//! A queue of device work, which runs in order.

use crate::{Buffer, DeviceError};

/// The operations of a device's stream that tensors need: memory, and copies in stream order.
pub trait Queue {
    /// A buffer of this many bytes, with undefined content.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or another error of the driver.
    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError>;
    /// A buffer whose content is not read after later work was enqueued.
    ///
    /// # Errors
    /// As [`Queue::allocate`].
    fn allocate_transient(&self, bytes: usize) -> Result<Buffer, DeviceError>;
    /// Fills a buffer with one 16-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    fn fill16(&self, buffer: &Buffer, pattern: u16) -> Result<(), DeviceError>;
    /// Fills a buffer with one 32-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    fn fill32(&self, buffer: &Buffer, pattern: u32) -> Result<(), DeviceError>;
    /// Copies the first `bytes` of one buffer to another.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if one of them is shorter, or an error of the driver.
    fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), DeviceError>;
    /// Copies the start of a buffer to the host and waits for it.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the buffer is shorter, or an error of the driver.
    fn read(&self, buffer: &Buffer, into: &mut [u8]) -> Result<(), DeviceError>;
}
