//! One backend, one file; [`BACKENDS`] is the list.

mod cpu;
mod cuda;

pub use cuda::{borrow_gpu, open_gpu};

use crate::cuda::Cuda;
use crate::{Capabilities, Isa, Launches};
use facts::BackendKind;
use std::sync::Arc;

/// A way to run kernels.
pub trait Backend: Sync {
    /// Its name.
    fn kind(&self) -> BackendKind;
    /// Opens it, or says in one sentence why it cannot be used here.
    ///
    /// # Errors
    /// [`Unavailable`] when the machine lacks what the backend needs.
    fn open(&self) -> Result<Device, Unavailable>;
}

/// Every backend firstlight was built with, preferred first.
pub const BACKENDS: &[&dyn Backend] = &[&cuda::Cuda, &cpu::Cpu];

/// Opens the backend of this kind.
///
/// # Errors
/// [`Unavailable`] when this build has no such backend or the machine lacks what it needs.
pub fn open(kind: BackendKind) -> Result<Device, Unavailable> {
    match BACKENDS.iter().find(|backend| backend.kind() == kind) {
        Some(backend) => backend.open(),
        None => {
            let built: Vec<&str> = BACKENDS.iter().map(|backend| backend.kind().as_str()).collect();
            Err(Unavailable {
                backend: kind,
                reason: format!("this build has only {}", built.join(", ")),
            })
        }
    }
}

/// A backend that cannot be used here: a fact with a sentence, not a failure of firstlight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("backend {backend} is not available: {reason}")]
pub struct Unavailable {
    /// The backend.
    pub backend: BackendKind,
    /// Why, in one sentence.
    pub reason: String,
}

/// An open backend: what it can do and what has run on it.
#[derive(Debug)]
pub struct Device {
    capabilities: Capabilities,
    launches: Arc<Launches>,
    cuda: Option<Cuda>,
}

impl Device {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self { capabilities, launches: Arc::default(), cuda: None }
    }

    /// A GPU; its launches are counted in `launches`, which it holds too.
    pub(crate) fn with_cuda(
        capabilities: Capabilities,
        launches: Arc<Launches>,
        cuda: Cuda,
    ) -> Self {
        Self { capabilities, launches, cuda: Some(cuda) }
    }

    /// The GPU, on the CUDA backend.
    pub fn cuda(&self) -> Option<&Cuda> {
        self.cuda.as_ref()
    }

    /// The same device limited to narrower instruction sets, so that one machine can check every variant it can run.
    pub fn limited_to(&self, widest: Isa) -> Self {
        let mut capabilities = self.capabilities.clone();
        capabilities.isas.retain(|isa| *isa <= widest);
        Self::new(capabilities)
    }

    /// The same device running grids on at most this many threads (at least one).
    pub fn with_threads(&self, threads: usize) -> Self {
        let mut capabilities = self.capabilities.clone();
        capabilities.threads = threads.max(1);
        Self::new(capabilities)
    }

    /// What it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What has run on it.
    pub fn launches(&self) -> &Launches {
        &self.launches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedMut;

    #[test]
    fn the_list_is_the_folder() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backends");
        let files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files.len(), BACKENDS.len(), "{files:?}");
        for backend in BACKENDS {
            assert!(files.contains(&format!("{}.rs", backend.kind()).into()), "{}", backend.kind());
        }
    }

    #[test]
    fn a_missing_backend_is_a_sentence() {
        let error = open(BackendKind::Metal).unwrap_err();
        assert_eq!(
            error.to_string(),
            "backend metal is not available: this build has only cuda, cpu"
        );
    }

    #[test]
    #[allow(unsafe_code)] // Each block owns one element.
    fn every_block_runs_once_and_is_counted() {
        let device = open(BackendKind::Cpu).unwrap();
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
