//! Streams: work that runs in the order it was enqueued.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::Handle;
use super::{DeviceError, Event};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// Names and grids of captured launches, in order.
pub(super) type Captured = Vec<(String, [u32; 3])>;

/// A stream of one GPU, created here or by another library. Clones are the same stream.
#[derive(Debug, Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    raw: Handle,
    id: u64,
    owned: bool,
    /// Launches that a capture in progress recorded instead of running.
    captured: Mutex<Option<Captured>>,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({}, {:?})", self.id, self.context)
    }
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let driver = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (driver.stream_create)(&raw mut raw, NON_BLOCKING) };
        context.check("cuStreamCreate", code)?;
        Ok(Self::of(context, raw, true))
    }

    /// Another library's stream, which is not destroyed here.
    pub(super) fn borrowed(context: &Arc<Context>, raw: Handle) -> Self {
        Self::of(context, raw, false)
    }

    fn of(context: &Arc<Context>, raw: Handle, owned: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (context, id) = (Arc::clone(context), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { inner: Arc::new(Inner { context, raw, id, owned, captured: Mutex::default() }) }
    }

    /// Whether enqueued work is captured into a graph, or the state is not known: its memory then has to be the
    /// graph's.
    pub fn is_captured(&self) -> bool {
        let Ok(driver) = self.context().enter() else { return true };
        let mut status = 0;
        // SAFETY: the stream lives, and the local outlives the call.
        let code = unsafe { (driver.stream_capturing)(self.raw(), &raw mut status) };
        code != 0 || status != 0
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    pub(super) fn raw(&self) -> Handle {
        self.inner.raw
    }

    pub(super) fn id(&self) -> u64 {
        self.inner.id
    }

    pub(super) fn captured(&self) -> MutexGuard<'_, Option<Captured>> {
        self.inner.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all enqueued work is done.
    ///
    /// # Errors
    /// An error of that work: [`DeviceError::Lost`] for an error inside a kernel.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let driver = self.context().enter()?;
        // SAFETY: the stream lives as long as `self`.
        let code = unsafe { (driver.stream_synchronize)(self.raw()) };
        self.context().check("cuStreamSynchronize", code)?;
        self.context().is_good();
        Ok(())
    }

    /// Makes later work wait for an event of another stream.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        let driver = self.context().enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (driver.stream_wait_event)(self.raw(), event.raw(), 0) };
        self.context().check("cuStreamWaitEvent", code)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(driver) = self.context.enter() {
            // SAFETY: made in `new`, destroyed once; the driver lets pending work end first.
            unsafe { (driver.stream_destroy)(self.raw) };
        }
    }
}
