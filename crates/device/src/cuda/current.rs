//! Which context a thread has while it calls the driver, and that it has its own one again afterwards: in a process that is not
//! ours the thread belongs to another library.
#![allow(unsafe_code)] // Calls of the driver.

use super::driver::{Driver, Handle};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Deref;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: a capture of this thread, or of another one, forbids nothing.
const RELAXED: c_int = 2;

/// The driver, while a context is current on this thread. A thread that had none keeps this one, as CUDA's own libraries leave it;
/// one that had another gets that back.
pub(in crate::cuda) struct Entered {
    driver: &'static Driver,
    pushed: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Entered {
    /// Makes a context current, or gives the driver's code.
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
        // SAFETY: whoever asks holds the context.
        let code = unsafe { change(context) };
        if code == 0 { Ok(entered(!current.is_null())) } else { Err(code) }
    }

    /// What is called meanwhile is not forbidden by a capture, and is no part of one: loading a module and asking for memory, of
    /// which the driver says that they may disturb a capture, and which change nothing that one records.
    pub(super) fn relaxed(&self) -> Relaxed<'_> {
        Relaxed { driver: self.driver, before: exchange(self.driver, RELAXED) }
    }
}

impl Deref for Entered {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut ours = std::ptr::null_mut();
            // SAFETY: pushed in `new`, by this thread, and popped once.
            unsafe { (self.driver.context_pop)(&raw mut ours) };
        }
    }
}

/// While it lives, captures forbid this thread nothing.
pub(super) struct Relaxed<'a> {
    driver: &'a Driver,
    before: c_int,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        exchange(self.driver, self.before);
    }
}

/// Sets how captures limit this thread, and gives how they did before.
fn exchange(driver: &Driver, mut mode: c_int) -> c_int {
    // SAFETY: the pointer is to a local that outlives the call. An error leaves the mode as it was, which is then given back.
    unsafe { (driver.exchange_capture_mode)(&raw mut mode) };
    mode
}
