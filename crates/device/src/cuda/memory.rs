//! Buffers in GPU memory.
#![allow(unsafe_code)] // Calls of the driver, and plain data viewed as bytes.

use super::context::Context;
use super::driver::DevicePointer;
use super::{CudaError, Event, PinnedBuffer, Stream};
use crate::cuda::driver::OUT_OF_MEMORY;
use crate::cuda::pool::block_bytes;
use std::sync::Arc;

/// A buffer in GPU memory: from a stream's pool, aligned to 512 bytes, of undefined content, to which it goes back when the last
/// buffer over it is dropped; another library's, aligned as it comes; or a part of one, aligned as its start is.
#[derive(Debug)]
pub struct Buffer {
    block: Arc<Block>,
    pointer: DevicePointer,
    bytes: usize,
    /// Which operand of a plan it is, while one is made.
    operand: Option<u8>,
}

/// What the pool gave, and takes back.
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
    /// [`CudaError::OutOfMemory`], or another error of the driver.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, CudaError> {
        self.buffer(bytes, false)
    }

    /// A buffer whose content passes from one piece of this stream's work to the next ones, and is not read after other work was given:
    /// of what was reserved ([`Stream::reserve_transient`]), else as [`Stream::allocate`]. A graph that was recorded over the same memory
    /// writes to it whenever it runs.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn allocate_transient(&self, bytes: usize) -> Result<Buffer, CudaError> {
        self.buffer(bytes, true)
    }

    fn buffer(&self, bytes: usize, transient: bool) -> Result<Buffer, CudaError> {
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
        let block = Block { stream: self.clone(), pointer, bytes, owned: true };
        Ok(Buffer { block: Arc::new(block), pointer, bytes, operand: None })
    }

    /// Takes so much memory for this stream's transient buffers from now on, of small ones (below 2 MiB) and of large ones. It serves any
    /// mix of sizes that fits and stays until the context ends; where it is too short, more is taken.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn reserve_transient(&self, [small, large]: [usize; 2]) -> Result<(), CudaError> {
        let context = self.context();
        let driver = context.enter()?;
        let mut pool = context.pool();
        for (bytes, is_large) in [(small, false), (large, true)] {
            pool.reserve(&driver, self.id(), bytes.max(1), is_large)
                .map_err(|code| no_memory(context, pool.usage().live, (code, bytes)))?;
        }
        Ok(())
    }

    /// A buffer with these bytes. The source may be reused at once.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer, CudaError> {
        let buffer = self.allocate(bytes.len())?;
        self.write(&buffer, bytes)?;
        Ok(buffer)
    }

    /// The same for a transient buffer.
    ///
    /// # Errors
    /// As [`Stream::allocate`].
    pub fn upload_transient(&self, bytes: &[u8]) -> Result<Buffer, CudaError> {
        let buffer = self.allocate_transient(bytes.len())?;
        self.write(&buffer, bytes)?;
        Ok(buffer)
    }

    /// Copies bytes to the start of a buffer; returns when the source may be reused.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when they do not fit, or an error of the driver.
    pub fn write(&self, buffer: &Buffer, bytes: &[u8]) -> Result<(), CudaError> {
        self.fits(buffer, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the call below waits before the borrow of `bytes` ends.
        unsafe { self.start_write(buffer, bytes)? };
        self.synchronize()
    }

    /// Starts copying pinned bytes to the start of a buffer, and returns at once.
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
    ) -> Result<(), CudaError> {
        self.fits(buffer, from.len())?;
        // SAFETY: the caller keeps the source until the stream is synchronised.
        unsafe { self.start_write(buffer, from) }
    }

    /// Starts copying the first bytes of a pinned buffer to the start of a buffer; they are there at the event.
    ///
    /// # Safety
    /// The pinned buffer must not be changed or dropped before the event or a synchronisation of the stream.
    pub(super) unsafe fn send_pinned(
        &self,
        buffer: &Buffer,
        from: &PinnedBuffer,
        bytes: usize,
    ) -> Result<Event, CudaError> {
        let from = &from[..bytes];
        self.fits(buffer, bytes)?;
        // SAFETY: the caller keeps the source as it is until the event.
        unsafe { self.start_write(buffer, from)? };
        self.record()
    }

    /// # Safety
    /// The buffer holds as many bytes, and the source must stay as it is until the stream is synchronised.
    pub(super) unsafe fn start_write(
        &self,
        buffer: &Buffer,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        let driver = self.context().enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe {
            (driver.copy_to_device)(buffer.pointer, bytes.as_ptr().cast(), bytes.len(), self.raw())
        };
        self.context().check("cuMemcpyHtoDAsync", code)
    }

    /// Copies the start of a buffer to the host and waits for it.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when the buffer is shorter, or an error of the driver.
    pub fn read(&self, buffer: &Buffer, into: &mut [u8]) -> Result<(), CudaError> {
        self.fits(buffer, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let driver = self.context().enter()?;
        // SAFETY: both sides hold that many bytes, and the call below waits before `into` is seen.
        let code = unsafe {
            (driver.copy_to_host)(into.as_mut_ptr().cast(), buffer.pointer, into.len(), self.raw())
        };
        self.context().check("cuMemcpyDtoHAsync", code)?;
        self.synchronize()
    }

    /// Starts copying a buffer to the start of a pinned one, and returns at once.
    ///
    /// # Safety
    /// The pinned buffer is as long or longer, must not be dropped before the copy is done, and is read by nobody but the GPU until then.
    pub(super) unsafe fn start_read(
        &self,
        buffer: &Buffer,
        into: &mut PinnedBuffer,
    ) -> Result<(), CudaError> {
        let driver = self.context().enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe {
            (driver.copy_to_host)(
                into.as_mut_ptr().cast(),
                buffer.pointer,
                buffer.bytes,
                self.raw(),
            )
        };
        self.context().check("cuMemcpyDtoHAsync", code)
    }

    /// Copies the first `bytes` of one buffer to another.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when one of them is shorter, or an error of the driver.
    pub fn copy(&self, from: &Buffer, to: &Buffer, bytes: usize) -> Result<(), CudaError> {
        self.fits(from, bytes)?;
        self.fits(to, bytes)?;
        let driver = self.context().enter()?;
        // SAFETY: both buffers hold that many bytes.
        let code = unsafe { (driver.copy_on_device)(to.pointer, from.pointer, bytes, self.raw()) };
        self.context().check("cuMemcpyDtoDAsync", code)
    }

    /// Fills a buffer with one 16-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fill16(&self, buffer: &Buffer, pattern: u16) -> Result<(), CudaError> {
        self.fits(buffer, 0)?;
        let driver = self.context().enter()?;
        // SAFETY: the buffer holds that many 16-bit words.
        let code =
            unsafe { (driver.fill16)(buffer.pointer, pattern, buffer.bytes / 2, self.raw()) };
        self.context().check("cuMemsetD16Async", code)
    }

    /// Fills a buffer with one 32-bit pattern.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fill32(&self, buffer: &Buffer, pattern: u32) -> Result<(), CudaError> {
        self.fits(buffer, 0)?;
        let driver = self.context().enter()?;
        // SAFETY: the buffer holds that many 32-bit words.
        let code =
            unsafe { (driver.fill32)(buffer.pointer, pattern, buffer.bytes / 4, self.raw()) };
        self.context().check("cuMemsetD32Async", code)
    }

    fn fits(&self, buffer: &Buffer, bytes: usize) -> Result<(), CudaError> {
        buffer.is_of(self.context())?;
        if bytes > buffer.bytes {
            let what = format!("{bytes} bytes do not fit a buffer of {} bytes", buffer.bytes);
            return Err(CudaError::refused(what));
        }
        Ok(())
    }
}

fn no_memory(context: &Context, held: u64, (code, asked): (i32, usize)) -> CudaError {
    if code != OUT_OF_MEMORY {
        let failed = context.check("cuMemAlloc", code).err();
        return failed.unwrap_or_else(|| CudaError::refused("no memory"));
    }
    let (free, total) = context.free_and_total();
    CudaError::OutOfMemory { asked: asked as u64, free, total, held }
}

impl Buffer {
    /// Whether its memory stays this context's when it is dropped, for other transient buffers of the same stream
    /// ([`Stream::reserve_transient`]). A recorded graph that writes to it before it reads needs not hold it: the graph runs in the
    /// order of the stream, as they do.
    pub fn is_transient(&self) -> bool {
        self.block.owned && self.context().pool().is_reserved(self.block.pointer)
    }

    /// Memory of another library on a stream's GPU.
    pub(super) fn borrowed(stream: &Stream, pointer: DevicePointer, bytes: usize) -> Self {
        let block = Block { stream: stream.clone(), pointer, bytes, owned: false };
        Self { block: Arc::new(block), pointer, bytes, operand: None }
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// The part from byte `start` on, `bytes` long, over the same memory.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when the buffer ends before.
    pub fn part(&self, start: usize, bytes: usize) -> Result<Self, CudaError> {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let what = format!("bytes {start} to {start} + {bytes} of a buffer of {}", self.bytes);
            return Err(CudaError::refused(what));
        }
        let (block, pointer) = (Arc::clone(&self.block), self.pointer + start as u64);
        Ok(Self { block, pointer, bytes, operand: self.operand })
    }

    /// The same memory as an operand of a plan: arguments that point into it remember this number, so that the plan can be
    /// launched again where the operand lies elsewhere ([`super::Moves`]).
    #[must_use]
    pub fn as_operand(&self, operand: u8) -> Self {
        let Self { pointer, bytes, .. } = *self;
        Self { block: Arc::clone(&self.block), pointer, bytes, operand: Some(operand) }
    }

    pub(super) fn operand(&self) -> Option<u8> {
        self.operand
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        self.block.stream.context()
    }

    /// Refuses a buffer of another device.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> Result<(), CudaError> {
        if Arc::ptr_eq(self.context(), context) {
            return Ok(());
        }
        Err(CudaError::refused("a buffer of one device was given to another"))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let context = self.stream.context();
        // A lost context has no memory to give back to.
        if self.owned && !context.is_lost() {
            context.pool().give_back(self.stream.id(), block_bytes(self.bytes), self.pointer);
        }
    }
}

/// The bytes of a slice of plain numbers.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and every byte of them is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
