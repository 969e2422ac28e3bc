//! Much that goes to the GPU at once: several threads make the bytes in pinned memory, while others' are under way.
#![allow(unsafe_code)] // Copies that are under way while the host goes on.

use super::{Buffer, Cuda, CudaError, PinnedBuffer, Stream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of one upload: what a thread makes stays in its caches until it is sent.
pub const UPLOAD_BYTES: usize = 2 << 20;
/// Threads that make bytes: a link of 50 GB/s takes what eight read from files, and drawing values takes longer.
const THREADS: usize = 16;

/// What makes the bytes of an upload.
type Make<'a, E> = Box<dyn FnOnce(&mut [u8]) -> Result<(), E> + Send + 'a>;

struct Upload<'a, E> {
    nth: usize,
    to: Buffer,
    make: Make<'a, E>,
}

/// Takes uploads. They are done in no order, and all of them by the time that [`Cuda::uploading`] returns.
pub struct Uploads<'a, E> {
    given: Mutex<(usize, Sender<Upload<'a, E>>)>,
}

impl<E> std::fmt::Debug for Uploads<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uploads({} given)", lock(&self.given).0)
    }
}

impl<'a, E> Uploads<'a, E> {
    /// Fills a buffer, or a part of one, with what `make` writes into as many bytes.
    ///
    /// # Errors
    /// [`CudaError::Refused`] when the buffer is longer than [`UPLOAD_BYTES`].
    pub fn give(
        &self,
        to: Buffer,
        make: impl FnOnce(&mut [u8]) -> Result<(), E> + Send + 'a,
    ) -> Result<(), CudaError> {
        if to.bytes() > UPLOAD_BYTES {
            let what = format!("an upload of {} bytes, of {UPLOAD_BYTES} at the most", to.bytes());
            return Err(CudaError::refused(what));
        }
        let (nth, send) = &mut *lock(&self.given);
        *nth += 1;
        // Nobody takes it any more once every thread has failed, which is then what is told.
        let _ = send.send(Upload { nth: *nth, to, make: Box::new(make) });
        Ok(())
    }
}

impl Cuda {
    /// Runs `give`, which hands over uploads, on this thread, and copies on others meanwhile. Returns once everything is on
    /// the GPU. Until then, nothing may be launched that reads what is uploaded.
    ///
    /// # Errors
    /// The error of `give`, else of the first upload that failed, in the order in which they were given.
    pub fn uploading<'a, R, E: From<CudaError> + Send>(
        &self,
        give: impl FnOnce(&Uploads<'a, E>) -> Result<R, E>,
    ) -> Result<R, E> {
        // Memory that is used again may still be read by what was launched before.
        self.stream().synchronize()?;
        let (send, receive) = channel();
        let (receive, failed) = (Mutex::new(receive), Mutex::new(None));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let given = std::thread::scope(|scope| {
            for _ in 0..cores.min(THREADS) {
                scope.spawn(|| self.upload_from(&receive, &failed));
            }
            // The threads end when nobody can give any more.
            give(&Uploads { given: Mutex::new((0, send)) })
        })?;
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(given),
        }
    }

    /// Takes uploads until there are no more.
    fn upload_from<'a, E: From<CudaError>>(
        &self,
        receive: &Mutex<Receiver<Upload<'a, E>>>,
        failed: &Mutex<Option<(usize, E)>>,
    ) {
        let mut lane = None;
        let mut last = 0;
        let fail = |nth: usize, error: E| {
            let mut failed = lock(failed);
            if failed.as_ref().is_none_or(|(first, _)| nth < *first) {
                *failed = Some((nth, error));
            }
        };
        loop {
            // A statement of its own: the lock must not be held while the bytes are made.
            let next = lock(receive).recv();
            let Ok(Upload { nth, to, make }) = next else { break };
            last = nth;
            if lock(failed).is_some() {
                continue;
            }
            let sent = match &mut lane {
                Some(lane) => Ok(lane),
                // A thread that has nothing to do pins nothing.
                empty => Lane::new(self).map(|new| empty.insert(new)),
            };
            if let Err(error) =
                sent.map_err(E::from).and_then(|lane: &mut Lane| lane.send(to, make))
            {
                fail(nth, error);
            }
        }
        if let Some(Err(error)) = lane.as_ref().map(Lane::finish) {
            fail(last, error.into());
        }
    }
}

/// What a thread uploads through: while one buffer is under way, the other is filled.
struct Lane {
    stream: Stream,
    slots: [Slot; 2],
    next: usize,
}

struct Slot {
    pinned: PinnedBuffer,
    /// Where its bytes are on their way to, with the point in the stream at which they are there.
    sent: Option<(super::Event, Buffer)>,
}

impl Lane {
    fn new(cuda: &Cuda) -> Result<Self, CudaError> {
        let slot = || Ok::<_, CudaError>(Slot { pinned: cuda.pinned(UPLOAD_BYTES)?, sent: None });
        Ok(Self { stream: cuda.new_stream()?, slots: [slot()?, slot()?], next: 0 })
    }

    fn send<E: From<CudaError>>(&mut self, to: Buffer, make: Make<'_, E>) -> Result<(), E> {
        let slot = &mut self.slots[self.next];
        self.next = 1 - self.next;
        if let Some((event, _)) = slot.sent.take() {
            event.synchronize()?;
        }
        let bytes = to.bytes();
        make(&mut slot.pinned[..bytes])?;
        // SAFETY: the slot is written again only behind its event, and dropped only behind the stream's end.
        let event = unsafe { self.stream.send_pinned(&to, &slot.pinned, bytes)? };
        slot.sent = Some((event, to));
        Ok(())
    }

    /// Waits until everything is there.
    fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Also after a panic, or a copy that failed: the pinned memory must outlive what reads it. A lost context reads nothing.
        let _ = self.stream.synchronize();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
