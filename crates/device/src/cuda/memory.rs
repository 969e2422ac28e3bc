//! Buffers in GPU memory.
#![allow(unsafe_code)] // Calls of the driver, and plain data viewed as bytes.

use super::context::Context;
use super::driver::DevicePointer;
use super::{DeviceError, Event, PinnedBuffer, Stream};
use crate::cuda::driver::OUT_OF_MEMORY;
use crate::cuda::pool::block_bytes;
use crate::{Buffer, Memory, Queue};
use std::any::Any;
use std::sync::Arc;

/// A block of the pool, or memory of another library.
#[derive(Debug)]
struct Block {
    stream: Stream,
    pointer: DevicePointer,
    bytes: usize,
    owned: bool,
}

impl Stream {
    /// A buffer of this many bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or another error of the driver.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.buffer(bytes, false)
    }

    /// A transient buffer: its content passes between consecutive operations of this stream, and is not read after
    /// later work was enqueued. It comes from the reserve ([`Stream::reserve_transient`]), or else from
    /// [`Stream::allocate`]. A graph captured with the same memory writes to it whenever it runs.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn allocate_transient(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.buffer(bytes, true)
    }

    fn buffer(&self, bytes: usize, transient: bool) -> Result<Buffer, DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        let _also_while_recording = driver.relaxed();
        let block = block_bytes(bytes);
        let mut pool = context.pool();
        let pointer = match pool.take(self.id(), block, transient) {
            Some(pointer) => pointer,
            None => pool
                .allocate(&driver, self.id(), block, transient)
                .map_err(|code| no_memory(context, pool.usage().live, (code, bytes)))?,
        };
        drop(pool);
        Ok(buffer_of(self, pointer, bytes, true))
    }

    /// Reserves memory for this stream's transient buffers: bytes for small ones (below 2 MiB) and for large ones. The
    /// reserve serves any mix of sizes that fits and stays until the context ends; it grows if it is too small.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn reserve_transient(&self, [small, large]: [usize; 2]) -> Result<(), DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        let mut pool = context.pool();
        for (bytes, is_large) in [(small, false), (large, true)] {
            pool.reserve(&driver, self.id(), bytes.max(1), is_large)
                .map_err(|code| no_memory(context, pool.usage().live, (code, bytes)))?;
        }
        Ok(())
    }

    /// A buffer with these bytes. The source may be reused immediately.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.allocate(bytes.len())?;
        self.write(&buffer, bytes)?;
        Ok(buffer)
    }

    /// As [`Stream::upload`], for a transient buffer.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn upload_transient(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.allocate_transient(bytes.len())?;
        self.write(&buffer, bytes)?;
        Ok(buffer)
    }

    /// Copies bytes to the start of a buffer; returns when the source may be reused.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if they do not fit, or an error of the driver.
    pub fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        self.fits(buffer, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the call below waits before the borrow of `bytes` ends.
        unsafe { self.start_write(buffer, bytes)? };
        self.synchronize()
    }

    /// Starts copying pinned bytes to the start of a buffer, without waiting.
    ///
    /// # Safety
    /// The pinned buffer must not be changed or dropped before the stream is synchronised.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub unsafe fn write_pinned(
        &self,
        buffer: &Buffer,
        from: &PinnedBuffer,
    ) -> Result<(), DeviceError> {
        self.fits(buffer, from.len())?;
        // SAFETY: the caller keeps the source until the stream is synchronised.
        unsafe { self.start_write(buffer, from) }
    }

    /// Starts copying the first bytes of a pinned buffer to the start of a buffer; the copy is done at the event.
    ///
    /// # Safety
    /// The pinned buffer must not be changed or dropped before the event or a synchronisation of the stream.
    pub(super) unsafe fn send_pinned(
        &self,
        buffer: &Buffer,
        from: &PinnedBuffer,
        bytes: usize,
    ) -> Result<Event, DeviceError> {
        let from = &from[..bytes];
        self.fits(buffer, bytes)?;
        // SAFETY: the caller keeps the source unchanged until the event.
        unsafe { self.start_write(buffer, from)? };
        self.record()
    }

    /// # Safety
    /// The buffer has as many bytes, and the source must stay unchanged until the stream is synchronised.
    pub(super) unsafe fn start_write(
        &self,
        buffer: &Buffer,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let driver = self.context().enter()?;
        // SAFETY: guaranteed by the caller.
        let code = unsafe {
            (driver.copy_to_device)(
                buffer.address(),
                bytes.as_ptr().cast(),
                bytes.len(),
                self.raw(),
            )
        };
        self.context().check("cuMemcpyHtoDAsync", code)
    }

    /// Copies the start of a buffer to the host and waits for it.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the buffer is shorter, or an error of the driver.
    pub fn read(&self, buffer: &Buffer, into: &mut [u8]) -> Result<(), DeviceError> {
        self.fits(buffer, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let driver = self.context().enter()?;
        // SAFETY: both sides have that many bytes, and the call below waits before `into` is read.
        let code = unsafe {
            (driver.copy_to_host)(
                into.as_mut_ptr().cast(),
                buffer.address(),
                into.len(),
                self.raw(),
            )
        };
        self.context().check("cuMemcpyDtoHAsync", code)?;
        self.synchronize()
    }

    /// Starts copying a buffer to the start of a pinned one, without waiting.
    ///
    /// # Safety
    /// The pinned buffer is at least as long, must not be dropped before the copy is done, and is not read by the host
    /// until then.
    pub(super) unsafe fn start_read(
        &self,
        buffer: &Buffer,
        into: &mut PinnedBuffer,
    ) -> Result<(), DeviceError> {
        let driver = self.context().enter()?;
        // SAFETY: guaranteed by the caller.
        let code = unsafe {
            (driver.copy_to_host)(
                into.as_mut_ptr().cast(),
                buffer.address(),
                buffer.bytes(),
                self.raw(),
            )
        };
        self.context().check("cuMemcpyDtoHAsync", code)
    }

    /// Copies the first `bytes` of one buffer to another.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if one of them is shorter, or an error of the driver.
    pub fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), DeviceError> {
        self.fits(from, bytes)?;
        self.fits(to, bytes)?;
        let driver = self.context().enter()?;
        // SAFETY: both buffers have that many bytes.
        let code =
            unsafe { (driver.copy_on_device)(to.address(), from.address(), bytes, self.raw()) };
        self.context().check("cuMemcpyDtoDAsync", code)
    }

    /// Fills a buffer with one 16-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fill16(&self, buffer: &Buffer, pattern: u16) -> Result<(), DeviceError> {
        self.fits(buffer, 0)?;
        let driver = self.context().enter()?;
        // SAFETY: the buffer holds that many 16-bit words.
        let code =
            unsafe { (driver.fill16)(buffer.address(), pattern, buffer.bytes() / 2, self.raw()) };
        self.context().check("cuMemsetD16Async", code)
    }

    /// Fills a buffer with one 32-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fill32(&self, buffer: &Buffer, pattern: u32) -> Result<(), DeviceError> {
        self.fits(buffer, 0)?;
        let driver = self.context().enter()?;
        // SAFETY: the buffer holds that many 32-bit words.
        let code =
            unsafe { (driver.fill32)(buffer.address(), pattern, buffer.bytes() / 4, self.raw()) };
        self.context().check("cuMemsetD32Async", code)
    }

    fn fits(&self, buffer: &Buffer, bytes: usize) -> Result<(), DeviceError> {
        is_of(buffer, self.context())?;
        if bytes > buffer.bytes() {
            let what = format!("{bytes} bytes do not fit a buffer of {} bytes", buffer.bytes());
            return Err(DeviceError::refused(what));
        }
        Ok(())
    }
}

fn no_memory(context: &Context, held: u64, (code, asked): (i32, usize)) -> DeviceError {
    if code != OUT_OF_MEMORY {
        let failed = context.check("cuMemAlloc", code).err();
        return failed.unwrap_or_else(|| DeviceError::refused("no memory"));
    }
    let (free, total) = context.free_and_total();
    DeviceError::OutOfMemory { asked: asked as u64, free, total, held }
}

/// A buffer in a block of the pool, or in another library's memory.
fn buffer_of(stream: &Stream, pointer: DevicePointer, bytes: usize, owned: bool) -> Buffer {
    let block = Block { stream: stream.clone(), pointer, bytes, owned };
    Buffer::new(Arc::new(block), pointer, bytes)
}

/// Memory of another library on a stream's GPU.
pub(super) fn borrowed(stream: &Stream, pointer: DevicePointer, bytes: usize) -> Buffer {
    buffer_of(stream, pointer, bytes, false)
}

/// The context of a buffer's GPU.
///
/// # Errors
/// [`DeviceError::Refused`] if it is not in the memory of an NVIDIA GPU.
pub(super) fn context_of(buffer: &Buffer) -> Result<&Arc<Context>, DeviceError> {
    match (buffer.memory() as &dyn Any).downcast_ref::<Block>() {
        Some(block) => Ok(block.stream.context()),
        None => Err(of_another()),
    }
}

/// Refuses a buffer of another device.
pub(super) fn is_of(buffer: &Buffer, context: &Arc<Context>) -> Result<(), DeviceError> {
    if Arc::ptr_eq(context_of(buffer)?, context) { Ok(()) } else { Err(of_another()) }
}

fn of_another() -> DeviceError {
    DeviceError::refused("a buffer of one device was given to another")
}

impl Memory for Block {
    fn is_transient(&self) -> bool {
        self.owned && self.stream.context().pool().is_reserved(self.pointer)
    }
}

impl Queue for Stream {
    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.allocate(bytes)
    }

    fn allocate_transient(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.allocate_transient(bytes)
    }

    fn fill16(&self, buffer: &Buffer, pattern: u16) -> Result<(), DeviceError> {
        self.fill16(buffer, pattern)
    }

    fn fill32(&self, buffer: &Buffer, pattern: u32) -> Result<(), DeviceError> {
        self.fill32(buffer, pattern)
    }

    fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), DeviceError> {
        self.copy(from, to, bytes)
    }

    fn read(&self, buffer: &Buffer, into: &mut [u8]) -> Result<(), DeviceError> {
        self.read(buffer, into)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let context = self.stream.context();
        // A lost context cannot free memory.
        if self.owned && !context.is_lost() {
            context.pool().give_back(self.stream.id(), block_bytes(self.bytes), self.pointer);
        }
    }
}

/// The bytes of a slice of numbers.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and every byte of them is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
