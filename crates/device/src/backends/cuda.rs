use super::{Backend, Device, Unavailable};
use crate::cuda::Tenure;
use crate::{Capabilities, Launches, cuda};
use facts::BackendKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// NVIDIA GPUs, by the driver's library.
pub(super) struct Cuda;

impl Backend for Cuda {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn open(&self) -> Result<Device, Unavailable> {
        open(0, Tenure::Owned)
    }
}

/// The GPU of this number among those that this process sees, for work that several of them do together.
///
/// # Errors
/// [`Unavailable`] when there is no such GPU, or it cannot be used.
pub fn open_gpu(ordinal: u32) -> Result<Device, Unavailable> {
    open(ordinal, Tenure::Owned)
}

/// The GPU of this number in a process where another library uses it too: its primary context is held and not released, threads
/// keep the context they have, and every call for the same number gives the same device.
///
/// # Errors
/// [`Unavailable`] when there is no such GPU, or it cannot be used.
pub fn borrow_gpu(ordinal: u32) -> Result<&'static Device, Unavailable> {
    static BORROWED: Mutex<BTreeMap<u32, &'static Device>> = Mutex::new(BTreeMap::new());
    let mut borrowed = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = borrowed.get(&ordinal) {
        return Ok(device);
    }
    let device: &'static Device = Box::leak(Box::new(open(ordinal, Tenure::Borrowed)?));
    borrowed.insert(ordinal, device);
    Ok(device)
}

fn open(ordinal: u32, tenure: Tenure) -> Result<Device, Unavailable> {
    let launches = Arc::new(Launches::default());
    let (gpu, found) = cuda::open(ordinal, tenure, &launches)
        .map_err(|error| Unavailable { backend: BackendKind::Cuda, reason: error.to_string() })?;
    let capabilities = Capabilities {
        backend: BackendKind::Cuda,
        isas: Vec::new(),
        threads: 0,
        cuda: Some(found),
    };
    Ok(Device::with_cuda(capabilities, launches, gpu))
}
