//! Copies of GPU memory on the host, which are made and brought back beside the work of a stream.
//!
//! What is saved goes to staging memory on the GPU first, in the order of the work, which may then change it; from there a second
//! stream copies it to pinned memory. What is brought back goes straight to its place by a third stream, since the link carries both
//! directions at once. The host waits for neither. A copy back begins when its own save has ended, and a save, which may use the pinned
//! memory of a dropped copy, begins when the copies back before it have ended.
#![allow(unsafe_code)] // Copies that are under way while the host goes on.

use super::{Buffer, Cuda, CudaError, Event, PinnedBuffer, Stream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of host memory that copies take a multiple of. Whoever waits for another copy waits for one of this size: 0.2 ms on a
/// link of 50 GB/s.
pub const SWAP_CHUNK_BYTES: usize = 8 << 20;

/// Chunks of staging memory: the state of a large model and some thousand tokens.
const STAGED: usize = 16;

/// Bytes that this takes on the GPU at most.
pub const SWAP_STAGING_BYTES: u64 = (STAGED * SWAP_CHUNK_BYTES) as u64;

/// Chunks that are pinned and unused at any time, as long as there are chunks to pin: four copies as large as the staging memory.
const RESERVE: usize = 4 * STAGED;

/// Pause between two chunks that are pinned while the GPU may be in use. Pinning one takes 3 ms of a core, and blocks the driver calls
/// of every other thread for 0.8 ms of that (measured on an H200).
const PAUSE: Duration = Duration::from_millis(100);

/// A stream's memory on the host.
#[derive(Debug)]
pub struct Swap {
    work: Stream,
    /// To the host.
    out: Stream,
    /// From the host.
    back: Stream,
    /// Where the copies back end that were begun so far, in the order of their stream.
    brought: Option<Arc<Event>>,
    /// Bytes per second of the fastest copy back so far.
    rate: Option<f64>,
    host: Arc<Host>,
    /// Staging memory, and where the copy from it is done.
    staged: Vec<(Buffer, Option<Event>)>,
    next: usize,
    pinning: Option<JoinHandle<()>>,
}

/// Pinned memory that no copy uses.
#[derive(Debug)]
struct Host {
    cuda: Cuda,
    free: Mutex<Free>,
    /// A chunk has been pinned, or cannot be.
    pinned: Condvar,
    /// A copy has taken chunks, or no more are to be pinned.
    taken: Condvar,
}

#[derive(Debug)]
struct Free {
    chunks: Vec<PinnedBuffer>,
    /// Chunks that are being pinned.
    coming: usize,
    /// Chunks that are still to be pinned.
    unpinned: usize,
}

/// Parts of GPU memory, copied to the host. Its memory is free again when it is dropped.
#[derive(Debug)]
pub struct OnHost {
    chunks: Vec<PinnedBuffer>,
    host: Arc<Host>,
    /// Where the save has ended.
    saved: Option<Event>,
}

/// Memory that copies from the host are on their way to. Nobody may use it before [`Arrival::join`].
#[derive(Debug)]
#[must_use]
pub struct Arrival {
    work: Stream,
    began: Event,
    there: Arc<Event>,
    _parts: Vec<Arc<Buffer>>,
}

impl Cuda {
    /// Host memory for copies of what this GPU's stream works on, at most so many bytes. A thread pins as much of it as the next copies
    /// take, and [`Swap::pin_more`] pins the rest while the GPU is idle: the driver takes seconds for some gigabytes.
    ///
    /// # Errors
    /// [`CudaError`] when there is no staging memory on the GPU, or no stream.
    pub fn swap(&self, bytes: u64) -> Result<Swap, CudaError> {
        let unpinned = usize::try_from(bytes).unwrap_or(usize::MAX) / SWAP_CHUNK_BYTES;
        let free = Mutex::new(Free { chunks: Vec::new(), coming: 0, unpinned });
        let (pinned, taken) = (Condvar::new(), Condvar::new());
        let host = Arc::new(Host { cuda: self.clone(), free, pinned, taken });
        let staged = (0..STAGED.min(unpinned)).map(|_| {
            let buffer = self.stream().allocate(SWAP_CHUNK_BYTES)?;
            Ok((buffer, None))
        });
        let staged = staged.collect::<Result<_, CudaError>>()?;
        let [out, back] = [self.new_stream()?, self.new_stream()?];
        let own = Arc::clone(&host);
        // Without the thread, memory is pinned where it is wanted.
        let pinning = std::thread::Builder::new().name("pinning".to_owned());
        let pinning = pinning.spawn(move || own.pin_ahead()).ok();
        let work = self.stream().clone();
        Ok(Swap { work, out, back, brought: None, rate: None, host, staged, next: 0, pinning })
    }
}

impl Host {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins chunks as copies take them, so that the reserve stays full.
    fn pin_ahead(&self) {
        loop {
            let mut free = self.free();
            while free.unpinned > 0 && free.chunks.len() >= RESERVE {
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

    /// Pins one more chunk; whether there was one to pin. The lock is released meanwhile.
    fn pin<'a>(&'a self, mut free: MutexGuard<'a, Free>) -> (MutexGuard<'a, Free>, bool) {
        let Some(unpinned) = free.unpinned.checked_sub(1) else { return (free, false) };
        (free.unpinned, free.coming) = (unpinned, free.coming + 1);
        drop(free);
        let pinned = self.cuda.pinned(SWAP_CHUNK_BYTES);
        let mut free = self.free();
        free.coming -= 1;
        match pinned {
            Ok(chunk) => free.chunks.push(chunk),
            // The system has no more.
            Err(_) => free.unpinned = 0,
        }
        self.pinned.notify_all();
        (free, true)
    }

    /// So many chunks, or none where there are fewer.
    fn take(self: &Arc<Self>, count: usize) -> Option<OnHost> {
        let mut free = self.free();
        while free.chunks.len() < count {
            if free.chunks.len() + free.coming + free.unpinned < count {
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
        Some(OnHost { chunks, host: Arc::clone(self), saved: None })
    }
}

impl Swap {
    /// Bytes of host memory that a copy of so many bytes takes.
    pub fn bytes_for(bytes: u64) -> u64 {
        bytes.next_multiple_of(SWAP_CHUNK_BYTES as u64)
    }

    /// Whether so many bytes can be saved without a wait: neither of the work for staging memory whose copies have not ended, nor of the
    /// host for memory that is not pinned yet.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn is_ready_for(&self, bytes: u64) -> Result<bool, CudaError> {
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

    /// Pins one more chunk, for which work on the GPU and other threads' calls of the driver wait; whether there may be more to pin.
    pub fn pin_more(&self) -> bool {
        self.host.pin(self.host.free()).1
    }

    /// Bytes per second of the fastest copy back so far.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.rate
    }

    /// Takes note of how fast a copy back of so many bytes was, once it has ended.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn time(&mut self, arrival: &Arrival, bytes: u64) -> Result<(), CudaError> {
        let seconds = arrival.began.millis_until(&arrival.there)? / 1e3;
        if seconds > 0.0 {
            self.rate = Some(self.rate.unwrap_or(0.0).max(bytes as f64 / seconds));
        }
        Ok(())
    }

    /// Copies parts of memory to the host, as the stream's work given so far leaves them; `None` where there is no room. Work that
    /// is given from now on may change them.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn save(&mut self, parts: &[Arc<Buffer>]) -> Result<Option<OnHost>, CudaError> {
        let pieces = cut(parts)?;
        let Some(mut saved) = self.host.take(pieces.len()) else { return Ok(None) };
        if let Some(brought) = self.brought.take() {
            self.out.wait(&brought)?;
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
            self.out.wait(&self.work.record()?)?;
            // SAFETY: a chunk holds as many bytes as a staged one. Once it is free again, other saves write to it in the order of this
            // stream, and copies back read it behind the event below. Chunks are unpinned only after the end of both streams.
            unsafe { self.out.start_read(&staged.part(0, bytes)?, chunk)? };
            *copied = Some(self.out.record()?);
        }
        saved.saved = Some(self.out.record()?);
        Ok(Some(saved))
    }

    /// Brings back what was saved, to other parts of as many bytes each. What the stream was given so far for them is done before.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when the parts are not as long, or an error of the driver.
    pub fn restore(&mut self, saved: &OnHost, parts: &[Arc<Buffer>]) -> Result<Arrival, CudaError> {
        let pieces = cut(parts)?;
        if pieces.len() != saved.chunks.len() {
            let (wanted, given) = (pieces.len(), saved.chunks.len());
            let what = format!("{given} saved chunks are no copy of memory of {wanted}");
            return Err(CudaError::refused(what));
        }
        self.back.wait(&self.work.record()?)?;
        if let Some(saved) = &saved.saved {
            self.back.wait(saved)?;
        }
        let back = &self.back;
        let begin = || {
            let began = back.record()?;
            for (pieces, chunk) in pieces.iter().zip(&saved.chunks) {
                let mut rest = &chunk[..];
                for piece in pieces {
                    let (own, behind) = rest.split_at(piece.bytes());
                    // SAFETY: as in `save`: a save that uses the chunk again waits for the event that is kept below. The parts are held
                    // by what is given back.
                    unsafe { back.start_write(piece, own)? };
                    rest = behind;
                }
            }
            Ok((began, back.record()?))
        };
        // What has begun must not write to memory that another sequence has.
        let (began, there) = begin().inspect_err(|_| drop(self.back.synchronize()))?;
        let there = Arc::new(there);
        self.brought = Some(Arc::clone(&there));
        Ok(Arrival { work: self.work.clone(), began, there, _parts: parts.to_vec() })
    }
}

impl Arrival {
    /// Whether it is there: work that waits for it from now on waits for nothing.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.there.is_done()
    }

    /// Lets the work given from now on wait for it. So does dropping it.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn join(self) -> Result<(), CudaError> {
        self.work.wait(&self.there)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // A lost context copies nothing.
        let _ = self.work.wait(&self.there);
    }
}

impl Drop for OnHost {
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
        // The memory must outlive what reads and writes it. A lost context does neither.
        let _ = self.out.synchronize();
        let _ = self.back.synchronize();
    }
}

/// The parts, one behind the other, for each chunk those that fill it.
fn cut(parts: &[Arc<Buffer>]) -> Result<Vec<Vec<Buffer>>, CudaError> {
    let (mut chunks, mut room) = (Vec::new(), 0);
    for part in parts {
        let mut start = 0;
        while start < part.bytes() {
            if room == 0 {
                chunks.push(Vec::new());
                room = SWAP_CHUNK_BYTES;
            }
            let bytes = room.min(part.bytes() - start);
            if let Some(chunk) = chunks.last_mut() {
                chunk.push(part.part(start, bytes)?);
            }
            (start, room) = (start + bytes, room - bytes);
        }
    }
    Ok(chunks)
}
