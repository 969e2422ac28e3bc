//! An open device of any backend: a processor or a GPU.

use crate::{Capabilities, Isa, Launches};
use facts::BackendKind;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A backend that cannot be used here: a normal result with a message, not a failure of firstlight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("backend {backend} is not available: {reason}")]
pub struct Unavailable {
    /// The backend.
    pub backend: BackendKind,
    /// Why, in one sentence.
    pub reason: String,
}

/// The owner of a device's CUDA context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOwnership {
    /// This program: driver resources are released with the device.
    Owned,
    /// Another library that uses the same device: its context is retained and never released, and threads keep their
    /// current context.
    Borrowed,
}

/// A backend's data of a device, such as an open GPU.
trait Extension: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Extension for T {}

/// An open device: its capabilities and launch counters.
#[derive(Debug)]
pub struct Device {
    capabilities: Capabilities,
    launches: Arc<Launches>,
    /// One per type.
    extensions: Vec<Arc<dyn Extension>>,
}

impl Device {
    /// A device that counts its launches in `launches`.
    pub fn new(capabilities: Capabilities, launches: Arc<Launches>) -> Self {
        Self { capabilities, launches, extensions: Vec::new() }
    }

    /// The processor, with all of its instruction sets and threads.
    pub fn processor() -> Self {
        let isas = Isa::ALL.into_iter().filter(|isa| isa.is_here()).collect();
        let threads = rayon::current_num_threads();
        let (backend, name) = (BackendKind::Cpu, None);
        Self::new(Capabilities { backend, name, isas, threads }, Arc::default())
    }

    /// Adds a backend's value, which [`Device::extension`] finds by its type.
    #[must_use]
    pub fn with_extension<T: Any + Debug + Send + Sync>(mut self, value: T) -> Self {
        self.extensions.push(Arc::new(value));
        self
    }

    /// The backend's value of this type.
    pub fn extension<T: Any>(&self) -> Option<&T> {
        self.extensions.iter().find_map(|one| (&**one as &dyn Any).downcast_ref())
    }

    /// The same device limited to narrower instruction sets, so that one machine can check every variant it can run.
    pub fn limited_to(&self, widest: Isa) -> Self {
        let mut device = self.uncounted();
        device.capabilities.isas.retain(|isa| *isa <= widest);
        device
    }

    /// The same device running grids on at most this many threads (at least one).
    pub fn with_threads(&self, threads: usize) -> Self {
        let mut device = self.uncounted();
        device.capabilities.threads = threads.max(1);
        device
    }

    /// The same device with separate counters.
    fn uncounted(&self) -> Self {
        let (capabilities, extensions) = (self.capabilities.clone(), self.extensions.clone());
        Self { capabilities, launches: Arc::default(), extensions }
    }

    /// Its capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Its launch counters.
    pub fn launches(&self) -> &Launches {
        &self.launches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMut;

    #[test]
    fn an_extension_is_found_by_its_type() {
        let device = Device::processor().with_extension(7u8).with_extension("seven");
        assert_eq!(device.extension::<u8>(), Some(&7));
        assert_eq!(device.extension::<u16>(), None);
        let limited = device.with_threads(1).limited_to(Isa::Portable);
        assert_eq!(limited.extension::<&str>(), Some(&"seven"));
        assert_eq!(limited.capabilities().isas, [Isa::Portable]);
    }

    #[test]
    #[allow(unsafe_code)] // Each block owns one element.
    fn every_block_runs_once_and_is_counted() {
        let device = Device::processor();
        for grid in [0, 1, 2, 7, 1000] {
            for threads in [1, 2, 5] {
                let device = device.with_threads(threads);
                for kernel in ["dealt", "streaming"] {
                    let mut hits = vec![0u32; grid];
                    let shared = SharedMut::new(&mut hits);
                    // SAFETY: block `i` takes only element `i`.
                    let count =
                        |(): &mut (), block| unsafe { shared.slice(block..block + 1)[0] += 1 };
                    match kernel {
                        "dealt" => device.launch(kernel, grid, || (), count),
                        _ => device.launch_streaming(kernel, grid, || (), count),
                    }
                    let case = format!("{kernel} grid {grid} threads {threads}");
                    assert!(hits.iter().all(|hits| *hits == 1), "{case}");
                    assert_eq!(device.launches().of(kernel).count, 1, "{case}");
                    assert_eq!(device.launches().of(kernel).blocks, grid as u64, "{case}");
                }
                assert_eq!(device.launches().of("other").count, 0);
            }
        }
    }
}
