//! CUDA graphs: a stream's launches captured once and replayed by one call.
#![allow(unsafe_code)] // Calls of the driver.

use super::context::Context;
use super::driver::Handle;
use super::stream::Captured;
use super::{DeviceError, Stream};
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads may continue to call the driver.
const THREAD_LOCAL: i32 = 1;

/// Captured launches. The buffers and kernels they use must outlive it.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    graph: Handle,
    exec: Handle,
    launches: Captured,
}

// SAFETY: the driver's handles may be used from every thread.
unsafe impl Send for Graph {}

impl Stream {
    /// Captures the work that `work` enqueues on this stream, without running it.
    ///
    /// # Errors
    /// The error of `work`, or of the driver for work that cannot be captured (a synchronisation, an allocation).
    pub fn capture(
        &self,
        work: impl FnOnce(&Stream) -> Result<(), DeviceError>,
    ) -> Result<Graph, DeviceError> {
        let context = self.context();
        let driver = context.enter()?;
        // SAFETY: the stream lives.
        let code = unsafe { (driver.capture_begin)(self.raw(), THREAD_LOCAL) };
        context.check("cuStreamBeginCapture", code)?;
        *self.captured() = Some(Vec::new());
        let result = work(self);
        let launches = self.captured().take().unwrap_or_default();
        let mut graph = std::ptr::null_mut();
        // The capture ends also if `work` failed, so that the stream stays usable. SAFETY: the pointer is to a local
        // that outlives the call.
        let ended = unsafe { (driver.capture_end)(self.raw(), &raw mut graph) };
        result?;
        context.check("cuStreamEndCapture", ended)?;
        let mut captured =
            Graph { context: Arc::clone(context), graph, exec: std::ptr::null_mut(), launches };
        // SAFETY: the graph was just made.
        let code = unsafe { (driver.graph_instantiate)(&raw mut captured.exec, graph, 0) };
        context.check("cuGraphInstantiate", code)?;
        Ok(captured)
    }
}

impl Graph {
    /// Uploads the graph to the device, which the first launch does otherwise.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn upload(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.is_for(stream)?;
        let driver = self.context.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (driver.graph_upload)(self.exec, stream.raw()) };
        self.context.check("cuGraphUpload", code)
    }

    /// Launches the graph; each kernel in it is counted.
    ///
    /// # Errors
    /// [`DeviceError`] of the driver.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        self.is_for(stream)?;
        let driver = self.context.enter()?;
        // SAFETY: both handles live.
        let code = unsafe { (driver.graph_launch)(self.exec, stream.raw()) };
        self.context.check("cuGraphLaunch", code)?;
        for (kernel, grid) in &self.launches {
            self.context.suspect(kernel);
            self.context.launches.record_grid(kernel, *grid);
        }
        Ok(())
    }

    fn is_for(&self, stream: &Stream) -> Result<(), DeviceError> {
        if Arc::ptr_eq(&self.context, stream.context()) {
            return Ok(());
        }
        Err(DeviceError::refused("a graph of one device was given to another"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(driver) = self.context.enter() else { return };
        // SAFETY: made in `capture`, destroyed once; the driver accepts that a replay is still running.
        unsafe {
            if !self.exec.is_null() {
                (driver.graph_exec_destroy)(self.exec);
            }
            if !self.graph.is_null() {
                (driver.graph_destroy)(self.graph);
            }
        }
    }
}
