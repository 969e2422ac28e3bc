use super::{Backend, Device, Unavailable};
use crate::{Capabilities, Launches, cuda};
use facts::BackendKind;
use std::sync::Arc;

/// NVIDIA GPUs, by the driver's library.
pub(super) struct Cuda;

impl Backend for Cuda {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn open(&self) -> Result<Device, Unavailable> {
        let launches = Arc::new(Launches::default());
        let (gpu, found) = cuda::open(&launches).map_err(|error| Unavailable {
            backend: BackendKind::Cuda,
            reason: error.to_string(),
        })?;
        let capabilities = Capabilities {
            backend: BackendKind::Cuda,
            isas: Vec::new(),
            threads: 0,
            cuda: Some(found),
        };
        Ok(Device::with_cuda(capabilities, launches, gpu))
    }
}
