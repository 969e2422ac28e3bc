//! Small asynchronous copies to and from the GPU, in stream order.
#![allow(unsafe_code)] // Copies that run asynchronously.

use super::{Buffer, Cuda, DeviceError, Event, PinnedBuffer, Stream};
use std::collections::VecDeque;

/// Minimum size of a pinned block: few sizes, so that blocks are reused.
const LEAST_BYTES: usize = 4 << 10;

/// Pinned memory for a stream's copies, which is reused.
#[derive(Debug)]
pub struct StagingBuffer {
    cuda: Cuda,
    stream: Stream,
    free: Vec<PinnedBuffer>,
    /// Copies in flight; the memory is in use until the event.
    sent: VecDeque<(PinnedBuffer, Event)>,
}

/// A read in flight.
#[derive(Debug)]
#[must_use]
pub struct PendingRead {
    /// None once it is taken.
    into: Option<PinnedBuffer>,
    bytes: usize,
    there: Event,
}

impl Cuda {
    /// A staging buffer for this GPU's stream.
    pub fn staging_buffer(&self) -> StagingBuffer {
        let (cuda, stream) = (self.clone(), self.stream().clone());
        StagingBuffer { cuda, stream, free: Vec::new(), sent: VecDeque::new() }
    }
}

impl StagingBuffer {
    /// Copies bytes to the start of a buffer, after the work enqueued so far. They may be reused immediately.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if they do not fit, or an error of the driver.
    pub fn send(&mut self, bytes: &[u8], to: &Buffer) -> Result<(), DeviceError> {
        // Only a few are in flight; the oldest completes before any later work.
        while self.sent.len() >= 4
            && let Some((pinned, read)) = self.sent.pop_front()
        {
            read.synchronize()?;
            self.free.push(pinned);
        }
        let mut pinned = self.pinned(bytes.len())?;
        pinned[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: the memory is neither changed nor dropped before the event: `sent` owns it.
        let read = unsafe { self.stream.send_pinned(to, &pinned, bytes.len()) };
        match read {
            Ok(read) => self.sent.push_back((pinned, read)),
            Err(error) => {
                // The copy may have started.
                self.stream.synchronize()?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Copies a buffer to the host, after the work enqueued so far. Later work may change it.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn start_read(&mut self, from: &Buffer) -> Result<PendingRead, DeviceError> {
        let mut into = self.pinned(from.bytes())?;
        // SAFETY: it is as long, and is read and dropped only after the event.
        let there = unsafe { self.stream.start_read(from, &mut into) };
        match there.and_then(|()| self.stream.record()) {
            Ok(there) => Ok(PendingRead { into: Some(into), bytes: from.bytes(), there }),
            Err(error) => {
                self.stream.synchronize()?;
                Err(error)
            }
        }
    }

    /// Waits for a read and returns its bytes.
    ///
    /// # Errors
    /// An error of the work before it.
    pub fn finish_read(&mut self, mut fetched: PendingRead) -> Result<Vec<u8>, DeviceError> {
        fetched.there.synchronize()?;
        let Some(into) = fetched.into.take() else { return Ok(Vec::new()) };
        let bytes = into[..fetched.bytes].to_vec();
        self.free.push(into);
        Ok(bytes)
    }

    /// Unused pinned memory of at least this many bytes.
    fn pinned(&mut self, bytes: usize) -> Result<PinnedBuffer, DeviceError> {
        match self.free.iter().position(|pinned| pinned.len() >= bytes) {
            Some(at) => Ok(self.free.swap_remove(at)),
            None => self.cuda.pinned(bytes.next_power_of_two().max(LEAST_BYTES)),
        }
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        // A failed device reads nothing.
        let _ = self.stream.synchronize();
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if self.into.is_some() {
            // As above.
            let _ = self.there.synchronize();
        }
    }
}
