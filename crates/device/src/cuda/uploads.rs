//! Bulk uploads: several threads produce bytes in pinned memory while others' copies are in flight.
#![allow(unsafe_code)] // Copies that run asynchronously.

use super::{Buffer, Cuda, DeviceError, PinnedBuffer, Stream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum bytes of one upload: they stay in the producing thread's caches until they are sent.
pub const UPLOAD_BYTES: usize = 2 << 20;
/// Uploads from this size on are divided among threads. The driver's own copy from pageable memory uses one thread.
const SHARED: usize = 32 * UPLOAD_BYTES;
/// Threads that produce bytes: a link of 50 GB/s keeps up with eight that read files, and generating values takes
/// longer.
const THREADS: usize = 16;

/// Produces the bytes of an upload.
type FillBuffer<'a, E> = Box<dyn FnOnce(&mut [u8]) -> Result<(), E> + Send + 'a>;

struct Upload<'a, E> {
    nth: usize,
    to: Buffer,
    make: FillBuffer<'a, E>,
}

/// Queues uploads. They complete in any order, and all before [`Cuda::uploading`] returns.
pub struct Uploader<'a, E> {
    queue: Mutex<(usize, Sender<Upload<'a, E>>)>,
}

impl<E> std::fmt::Debug for Uploader<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uploader({} queued)", lock(&self.queue).0)
    }
}

impl<'a, E> Uploader<'a, E> {
    /// Fills a buffer, or a part of one, with the bytes that `make` writes.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the buffer is longer than [`UPLOAD_BYTES`].
    pub fn submit(
        &self,
        to: Buffer,
        make: impl FnOnce(&mut [u8]) -> Result<(), E> + Send + 'a,
    ) -> Result<(), DeviceError> {
        if to.bytes() > UPLOAD_BYTES {
            let what = format!("an upload of {} bytes, of {UPLOAD_BYTES} at the most", to.bytes());
            return Err(DeviceError::refused(what));
        }
        let (nth, send) = &mut *lock(&self.queue);
        *nth += 1;
        // Sending fails after every thread has failed, and their error is returned.
        let _ = send.send(Upload { nth: *nth, to, make: Box::new(make) });
        Ok(())
    }
}

impl Cuda {
    /// A buffer with these bytes; many bytes are copied by several threads.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        if bytes.len() < SHARED {
            return self.stream().upload(bytes);
        }
        let buffer = self.stream().allocate(bytes.len())?;
        self.uploading(|uploads| {
            for (nth, part) in bytes.chunks(UPLOAD_BYTES).enumerate() {
                let to = buffer.part(nth * UPLOAD_BYTES, part.len())?;
                uploads.submit(to, |into| {
                    into.copy_from_slice(part);
                    Ok::<_, DeviceError>(())
                })?;
            }
            Ok(())
        })?;
        Ok(buffer)
    }

    /// Runs `enqueue`, which queues uploads, on this thread, while other threads copy. Returns when all data is on
    /// the GPU. Until then, no launch may read it.
    ///
    /// # Errors
    /// The error of `enqueue`, or else of the first failed upload in queue order.
    pub fn uploading<'a, R, E: From<DeviceError> + Send>(
        &self,
        enqueue: impl FnOnce(&Uploader<'a, E>) -> Result<R, E>,
    ) -> Result<R, E> {
        // Earlier launches may still read reused memory.
        self.stream().synchronize()?;
        let (send, receive) = channel();
        let (receive, failed) = (Mutex::new(receive), Mutex::new(None));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let result = std::thread::scope(|scope| {
            for _ in 0..cores.min(THREADS) {
                scope.spawn(|| self.upload_from(&receive, &failed));
            }
            // The threads end when the sender is dropped.
            enqueue(&Uploader { queue: Mutex::new((0, send)) })
        })?;
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(result),
        }
    }

    /// Processes uploads until the queue closes.
    fn upload_from<'a, E: From<DeviceError>>(
        &self,
        receive: &Mutex<Receiver<Upload<'a, E>>>,
        failed: &Mutex<Option<(usize, E)>>,
    ) {
        let mut buffer = None;
        let mut last = 0;
        let fail = |nth: usize, error: E| {
            let mut failed = lock(failed);
            if failed.as_ref().is_none_or(|(first, _)| nth < *first) {
                *failed = Some((nth, error));
            }
        };
        loop {
            // A separate statement: the lock must not be held while the bytes are produced.
            let next = lock(receive).recv();
            let Ok(Upload { nth, to, make }) = next else { break };
            last = nth;
            if lock(failed).is_some() {
                continue;
            }
            let sent = match &mut buffer {
                Some(buffer) => Ok(buffer),
                // An idle thread pins no memory.
                empty => DoubleBuffer::new(self).map(|new| empty.insert(new)),
            };
            if let Err(error) =
                sent.map_err(E::from).and_then(|buffer: &mut DoubleBuffer| buffer.send(to, make))
            {
                fail(nth, error);
            }
        }
        if let Some(Err(error)) = buffer.as_ref().map(DoubleBuffer::finish) {
            fail(last, error.into());
        }
    }
}

/// Double buffering of a thread: one buffer is filled while the other is in flight.
struct DoubleBuffer {
    stream: Stream,
    slots: [Slot; 2],
    next: usize,
}

struct Slot {
    pinned: PinnedBuffer,
    /// Destination of its bytes, with the event of the copy.
    sent: Option<(super::Event, Buffer)>,
}

impl DoubleBuffer {
    fn new(cuda: &Cuda) -> Result<Self, DeviceError> {
        let slot = || Ok::<_, DeviceError>(Slot { pinned: cuda.pinned(UPLOAD_BYTES)?, sent: None });
        Ok(Self { stream: cuda.new_stream()?, slots: [slot()?, slot()?], next: 0 })
    }

    fn send<E: From<DeviceError>>(&mut self, to: Buffer, make: FillBuffer<'_, E>) -> Result<(), E> {
        let slot = &mut self.slots[self.next];
        self.next = 1 - self.next;
        if let Some((event, _)) = slot.sent.take() {
            event.synchronize()?;
        }
        let bytes = to.bytes();
        make(&mut slot.pinned[..bytes])?;
        // SAFETY: the slot is reused only after its event, and dropped only after the stream's end.
        let event = unsafe { self.stream.send_pinned(&to, &slot.pinned, bytes)? };
        slot.sent = Some((event, to));
        Ok(())
    }

    /// Waits for all copies.
    fn finish(&self) -> Result<(), DeviceError> {
        self.stream.synchronize()
    }
}

impl Drop for DoubleBuffer {
    fn drop(&mut self) {
        // Also after a panic or a failed copy: the pinned memory must outlive the copies. A lost context has none.
        let _ = self.stream.synchronize();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
