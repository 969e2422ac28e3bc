//! Events: points in a stream's work, with times.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::Handle;
use super::{DeviceError, Stream};
use std::sync::Arc;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Stream {
    /// Records an event after the work enqueued so far.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn record(&self) -> Result<Event, DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        context.check("cuEventCreate", unsafe { (driver.event_create)(&raw mut raw, 0) })?;
        let event = Event { context: Arc::clone(context), raw };
        // SAFETY: both handles live.
        context.check("cuEventRecord", unsafe { (driver.event_record)(raw, self.raw()) })?;
        Ok(event)
    }
}

impl Event {
    pub(super) fn raw(&self) -> Handle {
        self.raw
    }

    /// Waits until the work before it is done.
    ///
    /// # Errors
    /// An error of that work.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let driver = self.context.enter()?;
        // SAFETY: the event lives.
        let code = unsafe { (driver.event_synchronize)(self.raw) };
        self.context.check("cuEventSynchronize", code)
    }

    /// Whether the work before it is done, without waiting.
    ///
    /// # Errors
    /// An error of that work.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        let driver = self.context.enter()?;
        // SAFETY: the event lives.
        match unsafe { (driver.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.context.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Milliseconds of GPU time from this event to a later one; waits for both.
    ///
    /// # Errors
    /// An error of the work between them.
    pub fn millis_until(&self, later: &Self) -> Result<f64, DeviceError> {
        later.synchronize()?;
        let driver = self.context.enter()?;
        let mut millis = 0.0;
        // SAFETY: both events live, and the pointer is to a local.
        let code = unsafe { (driver.event_elapsed)(&raw mut millis, self.raw, later.raw) };
        self.context.check("cuEventElapsedTime", code)?;
        Ok(f64::from(millis))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.enter() {
            // SAFETY: created in `record`, destroyed once.
            unsafe { (driver.event_destroy)(self.raw) };
        }
    }
}
