//! Small copies to the GPU and back in the order of a stream's work, for which the host does not wait.
#![allow(unsafe_code)] // Copies that are under way while the host goes on.

use super::{Buffer, Cuda, CudaError, Event, PinnedBuffer, Stream};
use std::collections::VecDeque;

/// The least that is pinned for a copy: few sizes, so that memory serves again.
const LEAST_BYTES: usize = 4 << 10;

/// Pinned memory for copies of a stream, which is used again.
#[derive(Debug)]
pub struct Courier {
    cuda: Cuda,
    stream: Stream,
    free: Vec<PinnedBuffer>,
    /// What is read until the event.
    sent: VecDeque<(PinnedBuffer, Event)>,
}

/// Bytes that are on their way to the host.
#[derive(Debug)]
#[must_use]
pub struct Fetched {
    /// None once they are taken.
    into: Option<PinnedBuffer>,
    bytes: usize,
    there: Event,
}

impl Cuda {
    /// A courier of this GPU's stream.
    pub fn courier(&self) -> Courier {
        let (cuda, stream) = (self.clone(), self.stream().clone());
        Courier { cuda, stream, free: Vec::new(), sent: VecDeque::new() }
    }
}

impl Courier {
    /// Copies bytes to the start of a buffer, behind the work given so far. They may be reused at once.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when they do not fit, or an error of the driver.
    pub fn send(&mut self, bytes: &[u8], to: &Buffer) -> Result<(), CudaError> {
        // Few are under way; the oldest has arrived, or will before anything that is asked of the GPU from now on.
        while self.sent.len() >= 4
            && let Some((pinned, read)) = self.sent.pop_front()
        {
            read.synchronize()?;
            self.free.push(pinned);
        }
        let mut pinned = self.pinned(bytes.len())?;
        pinned[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: the memory is neither changed nor dropped before the event: in `sent` nobody has it.
        let read = unsafe { self.stream.send_pinned(to, &pinned, bytes.len()) };
        match read {
            Ok(read) => self.sent.push_back((pinned, read)),
            Err(error) => {
                // The copy may have begun.
                self.stream.synchronize()?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Copies a buffer to the host, as the work given so far leaves it. Work that is given from now on may change it.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn fetch(&mut self, from: &Buffer) -> Result<Fetched, CudaError> {
        let mut into = self.pinned(from.bytes())?;
        // SAFETY: it is as long, and is read and dropped behind the event alone.
        let there = unsafe { self.stream.start_read(from, &mut into) };
        match there.and_then(|()| self.stream.record()) {
            Ok(there) => Ok(Fetched { into: Some(into), bytes: from.bytes(), there }),
            Err(error) => {
                self.stream.synchronize()?;
                Err(error)
            }
        }
    }

    /// Waits for bytes, and takes them.
    ///
    /// # Errors
    /// What went wrong in the work before them.
    pub fn take(&mut self, mut fetched: Fetched) -> Result<Vec<u8>, CudaError> {
        fetched.there.synchronize()?;
        let Some(into) = fetched.into.take() else { return Ok(Vec::new()) };
        let bytes = into[..fetched.bytes].to_vec();
        self.free.push(into);
        Ok(bytes)
    }

    /// Memory that nobody uses, of at least so many bytes.
    fn pinned(&mut self, bytes: usize) -> Result<PinnedBuffer, CudaError> {
        match self.free.iter().position(|pinned| pinned.len() >= bytes) {
            Some(at) => Ok(self.free.swap_remove(at)),
            None => self.cuda.pinned(bytes.next_power_of_two().max(LEAST_BYTES)),
        }
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        // Of a device that fails nothing more is read.
        let _ = self.stream.synchronize();
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if self.into.is_some() {
            // As above.
            let _ = self.there.synchronize();
        }
    }
}
