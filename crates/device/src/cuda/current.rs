//! Makes a context current on a thread and restores the previous one: in a process of another library, the thread
//! belongs to that library.
#![allow(unsafe_code)] // Calls of the driver.

use super::driver::{Driver, Handle};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Deref;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: captures on any thread forbid no call.
const RELAXED: c_int = 2;

/// The driver, with a context current on this thread. A thread without a context keeps this one, as with CUDA's own
/// libraries; a thread with another context gets it back.
pub(in crate::cuda) struct ContextGuard {
    driver: &'static Driver,
    pushed: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl ContextGuard {
    /// Makes a context current, or returns the driver's error code.
    pub(super) fn new(driver: &'static Driver, context: Handle) -> Result<Self, c_int> {
        let entered = |pushed| Self { driver, pushed, _of_this_thread: PhantomData };
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that outlives the call.
        let code = unsafe { (driver.context_current)(&raw mut current) };
        if code != 0 || current == context {
            return if code == 0 { Ok(entered(false)) } else { Err(code) };
        }
        let change =
            if current.is_null() { driver.context_set_current } else { driver.context_push };
        // SAFETY: the caller holds the context.
        let code = unsafe { change(context) };
        if code == 0 { Ok(entered(!current.is_null())) } else { Err(code) }
    }

    /// Allows calls during a capture that do not become part of it: module loads and allocations, which according to
    /// the driver may disturb a capture, but change nothing that it records.
    pub(super) fn relaxed(&self) -> RelaxedCapture<'_> {
        RelaxedCapture { driver: self.driver, before: exchange(self.driver, RELAXED) }
    }
}

impl Deref for ContextGuard {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if self.pushed {
            let mut ours = std::ptr::null_mut();
            // SAFETY: pushed in `new`, by this thread, and popped once.
            unsafe { (self.driver.context_pop)(&raw mut ours) };
        }
    }
}

/// Relaxes captures on this thread while it exists.
pub(super) struct RelaxedCapture<'a> {
    driver: &'a Driver,
    before: c_int,
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        exchange(self.driver, self.before);
    }
}

/// Sets the capture mode of this thread, and returns the previous one.
fn exchange(driver: &Driver, mut mode: c_int) -> c_int {
    // SAFETY: the pointer is to a local that outlives the call. An error leaves the mode unchanged, and it is then
    // restored.
    unsafe { (driver.exchange_capture_mode)(&raw mut mode) };
    mode
}
