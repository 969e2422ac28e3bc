//! Copies GPU memory to the host and restores it, concurrently with the work of a stream.
//!
//! Saved data is copied to staging memory on the GPU first, in stream order, so that later work may overwrite the
//! original; a second stream copies it from there to pinned memory. Restored data is copied to its destination by a
//! third stream, because the link is full-duplex. The host waits for neither. A restore starts when its own save has
//! ended, and a save, which may reuse the pinned memory of a dropped copy, starts when the restores before it have
//! ended.
#![allow(unsafe_code)] // Copies that run asynchronously.

use super::{Buffer, Cuda, DeviceError, Event, PinnedBuffer, Stream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Copies occupy multiples of this many bytes of host memory. Waiting for another copy takes at most one chunk: 0.2 ms
/// on a link of 50 GB/s.
pub const SWAP_CHUNK_BYTES: usize = 8 << 20;

/// Number of chunks of staging memory: enough for the states and some thousand tokens of a sequence of a large model.
const STAGING_CHUNKS: usize = 16;

/// Maximum staging memory on the GPU, in bytes.
pub const SWAP_STAGING_BYTES: u64 = (STAGING_CHUNKS * SWAP_CHUNK_BYTES) as u64;

/// Number of pinned chunks kept free, while more can be pinned: four copies as large as the staging memory.
const FREE_CHUNKS: usize = 4 * STAGING_CHUNKS;

/// Pause between pinning two chunks while the GPU may be in use. Pinning one takes 3 ms of a core, and blocks the
/// driver calls of every other thread for 0.8 ms of that (measured on an H200).
const PAUSE: Duration = Duration::from_millis(100);

/// Host memory for copies of a stream's data.
#[derive(Debug)]
pub struct Swap {
    work: Stream,
    /// Copies from staging memory to the host.
    to_host: Stream,
    /// Copies from the host.
    from_host: Stream,
    /// End of the last restore, and of all before it; `None` if a save waits for it already.
    last_restore: Option<Arc<Event>>,
    /// Bytes per second of the fastest restore so far.
    rate: Option<f64>,
    host: Arc<PinnedPool>,
    /// Chunks of staging memory, used in turn, and the end of the copy from each.
    staged: Vec<(Buffer, Option<Event>)>,
    next: usize,
    pinning: Option<JoinHandle<()>>,
}

/// The free chunks of pinned memory, shared with the thread that pins more.
#[derive(Debug)]
struct PinnedPool {
    cuda: Cuda,
    free: Mutex<FreeChunks>,
    /// A chunk has been pinned, or cannot be.
    pinned: Condvar,
    /// A copy has taken chunks, or no more will be pinned.
    taken: Condvar,
}

#[derive(Debug)]
struct FreeChunks {
    chunks: Vec<PinnedBuffer>,
    /// Chunks that are being pinned.
    being_pinned: usize,
    /// Chunks that can still be pinned.
    unpinned: usize,
}

/// Parts of GPU memory, copied to the host. Dropping it returns its chunks to the pool.
#[derive(Debug)]
pub struct HostCopy {
    chunks: Vec<PinnedBuffer>,
    host: Arc<PinnedPool>,
    /// End of the save.
    saved: Option<Event>,
}

/// A restore in flight. Its destination must not be used before [`PendingRestore::join`].
#[derive(Debug)]
#[must_use]
pub struct PendingRestore {
    work: Stream,
    began: Event,
    done: Arc<Event>,
    _parts: Vec<Arc<Buffer>>,
}

impl Cuda {
    /// Host memory for copies of this GPU's stream, at most this many bytes. A thread pins as much as the next copies
    /// need, and [`Swap::pin_more`] pins the rest while the GPU is idle: pinning several gigabytes takes seconds.
    ///
    /// # Errors
    /// [`DeviceError`] if there is no staging memory on the GPU, or no stream.
    pub fn swap(&self, bytes: u64) -> Result<Swap, DeviceError> {
        let unpinned = usize::try_from(bytes).unwrap_or(usize::MAX) / SWAP_CHUNK_BYTES;
        let free = Mutex::new(FreeChunks { chunks: Vec::new(), being_pinned: 0, unpinned });
        let (pinned, taken) = (Condvar::new(), Condvar::new());
        let host = Arc::new(PinnedPool { cuda: self.clone(), free, pinned, taken });
        let staged = (0..STAGING_CHUNKS.min(unpinned)).map(|_| {
            let buffer = self.stream().allocate(SWAP_CHUNK_BYTES)?;
            Ok((buffer, None))
        });
        let staged = staged.collect::<Result<_, DeviceError>>()?;
        let [to_host, from_host] = [self.new_stream()?, self.new_stream()?];
        let pool = Arc::clone(&host);
        // Without the thread, memory is pinned on demand.
        let pinning = std::thread::Builder::new().name("pinning".to_owned());
        let pinning = pinning.spawn(move || pool.pin_ahead()).ok();
        let work = self.stream().clone();
        Ok(Swap {
            work,
            to_host,
            from_host,
            last_restore: None,
            rate: None,
            host,
            staged,
            next: 0,
            pinning,
        })
    }
}

impl PinnedPool {
    fn free(&self) -> MutexGuard<'_, FreeChunks> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins chunks as copies use them, to keep the reserve full.
    fn pin_ahead(&self) {
        loop {
            let mut free = self.free();
            while free.unpinned > 0 && free.chunks.len() >= FREE_CHUNKS {
                free = self.taken.wait(free).unwrap_or_else(PoisonError::into_inner);
            }
            let (free, more) = self.pin(free);
            drop(free);
            if !more {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Pins one more chunk; returns whether there was one to pin. The lock is released meanwhile.
    fn pin<'a>(
        &'a self,
        mut free: MutexGuard<'a, FreeChunks>,
    ) -> (MutexGuard<'a, FreeChunks>, bool) {
        let Some(unpinned) = free.unpinned.checked_sub(1) else { return (free, false) };
        (free.unpinned, free.being_pinned) = (unpinned, free.being_pinned + 1);
        drop(free);
        let pinned = self.cuda.pinned(SWAP_CHUNK_BYTES);
        let mut free = self.free();
        free.being_pinned -= 1;
        match pinned {
            Ok(chunk) => free.chunks.push(chunk),
            // The system has no more.
            Err(_) => free.unpinned = 0,
        }
        self.pinned.notify_all();
        (free, true)
    }

    /// Takes this many chunks, or none if there are fewer.
    fn take(self: &Arc<Self>, count: usize) -> Option<HostCopy> {
        let mut free = self.free();
        while free.chunks.len() < count {
            if free.chunks.len() + free.being_pinned + free.unpinned < count {
                return None;
            }
            free = match free.unpinned {
                0 => self.pinned.wait(free).unwrap_or_else(PoisonError::into_inner),
                _ => self.pin(free).0,
            };
        }
        let first = free.chunks.len() - count;
        let chunks = free.chunks.split_off(first);
        self.taken.notify_all();
        Some(HostCopy { chunks, host: Arc::clone(self), saved: None })
    }
}

impl Swap {
    /// Bytes of host memory for a copy of this many bytes.
    pub fn bytes_for(bytes: u64) -> u64 {
        bytes.next_multiple_of(SWAP_CHUNK_BYTES as u64)
    }

    /// Whether this many bytes can be saved without waiting: neither the stream for staging memory with copies in
    /// flight, nor the host for memory that is not pinned yet.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn is_ready_for(&self, bytes: u64) -> Result<bool, DeviceError> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(SWAP_CHUNK_BYTES);
        if wanted > self.staged.len() || wanted > self.host.free().chunks.len() {
            return Ok(false);
        }
        let next = (0..wanted).map(|at| &self.staged[(self.next + at) % self.staged.len()]);
        for copied in next.filter_map(|(_, copied)| copied.as_ref()) {
            if !copied.is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pins one more chunk, which blocks GPU work and other threads' driver calls; returns whether there may be more to
    /// pin.
    pub fn pin_more(&self) -> bool {
        self.host.pin(self.host.free()).1
    }

    /// Bytes per second of the fastest restore so far.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.rate
    }

    /// Records the speed of a restore of this many bytes, once it has ended.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn time(&mut self, restore: &PendingRestore, bytes: u64) -> Result<(), DeviceError> {
        let seconds = restore.began.millis_until(&restore.done)? / 1e3;
        if seconds > 0.0 {
            self.rate = Some(self.rate.unwrap_or(0.0).max(bytes as f64 / seconds));
        }
        Ok(())
    }

    /// Copies parts of memory to the host after the stream's work enqueued so far; `None` if there is no space. Later
    /// work may change them.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn save(&mut self, parts: &[Arc<Buffer>]) -> Result<Option<HostCopy>, DeviceError> {
        let pieces = split_into_chunks(parts)?;
        let Some(mut saved) = self.host.take(pieces.len()) else { return Ok(None) };
        if let Some(last_restore) = self.last_restore.take() {
            self.to_host.wait(&last_restore)?;
        }
        for (pieces, chunk) in pieces.iter().zip(&mut saved.chunks) {
            let at = self.next % self.staged.len();
            self.next = at + 1;
            let (staged, copied) = &mut self.staged[at];
            if let Some(copied) = copied.take() {
                self.work.wait(&copied)?;
            }
            let mut bytes = 0;
            for piece in pieces {
                self.work.copy(piece, &staged.part(bytes, piece.bytes())?, piece.bytes())?;
                bytes += piece.bytes();
            }
            self.to_host.wait(&self.work.record()?)?;
            // SAFETY: a chunk has as many bytes as a staged one. Once it is free, other saves write to it in the order
            // of this stream, and restores read it after the event below. Chunks are unpinned only after the end of
            // both streams.
            unsafe { self.to_host.start_read(&staged.part(0, bytes)?, chunk)? };
            *copied = Some(self.to_host.record()?);
        }
        saved.saved = Some(self.to_host.record()?);
        Ok(Some(saved))
    }

    /// Restores saved data to other parts of the same lengths, after the stream's work enqueued so far.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the parts have other lengths, or an error of the driver.
    pub fn restore(
        &mut self,
        saved: &HostCopy,
        parts: &[Arc<Buffer>],
    ) -> Result<PendingRestore, DeviceError> {
        let pieces = split_into_chunks(parts)?;
        if pieces.len() != saved.chunks.len() {
            let (wanted, given) = (pieces.len(), saved.chunks.len());
            let what = format!("the copy has {given} chunks, the memory to restore {wanted}");
            return Err(DeviceError::refused(what));
        }
        self.from_host.wait(&self.work.record()?)?;
        if let Some(saved) = &saved.saved {
            self.from_host.wait(saved)?;
        }
        let from_host = &self.from_host;
        let begin = || {
            let began = from_host.record()?;
            for (pieces, chunk) in pieces.iter().zip(&saved.chunks) {
                let mut rest = &chunk[..];
                for piece in pieces {
                    let (source, after) = rest.split_at(piece.bytes());
                    // SAFETY: as in `save`: a save that reuses the chunk waits for the event that is stored below. The
                    // result holds the parts.
                    unsafe { from_host.start_write(piece, source)? };
                    rest = after;
                }
            }
            Ok((began, from_host.record()?))
        };
        // A restore in flight must not write to memory of another sequence.
        let (began, done) = begin().inspect_err(|_| drop(self.from_host.synchronize()))?;
        let done = Arc::new(done);
        self.last_restore = Some(Arc::clone(&done));
        Ok(PendingRestore { work: self.work.clone(), began, done, _parts: parts.to_vec() })
    }
}

impl PendingRestore {
    /// Whether it is complete, so that waiting for it costs nothing.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        self.done.is_done()
    }

    /// Makes the stream's later work wait for it, as does dropping it.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn join(self) -> Result<(), DeviceError> {
        self.work.wait(&self.done)
    }
}

impl Drop for PendingRestore {
    fn drop(&mut self) {
        // Fails only if the context is lost, which ends all copies.
        let _ = self.work.wait(&self.done);
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        self.host.free().chunks.append(&mut self.chunks);
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.host.free().unpinned = 0;
        self.host.taken.notify_all();
        if let Some(pinning) = self.pinning.take() {
            let _ = pinning.join();
        }
        // The memory must outlive the copies. Fails only if the context is lost, which ends them.
        let _ = self.to_host.synchronize();
        let _ = self.from_host.synchronize();
    }
}

/// The parts in order, divided into chunks: the pieces of each.
fn split_into_chunks(parts: &[Arc<Buffer>]) -> Result<Vec<Vec<Buffer>>, DeviceError> {
    let (mut chunks, mut free) = (Vec::new(), 0);
    for part in parts {
        let mut start = 0;
        while start < part.bytes() {
            if free == 0 {
                chunks.push(Vec::new());
                free = SWAP_CHUNK_BYTES;
            }
            let bytes = free.min(part.bytes() - start);
            if let Some(chunk) = chunks.last_mut() {
                chunk.push(part.part(start, bytes)?);
            }
            (start, free) = (start + bytes, free - bytes);
        }
    }
    Ok(chunks)
}
