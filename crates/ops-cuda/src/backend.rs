//! The backend of NVIDIA GPUs.

use super::table::CudaImplementations;
use device::cuda::KernelSource;
use device::{Device, DeviceOwnership, Unavailable};
use facts::BackendKind;
use ops::{Backend, Implementations};

/// NVIDIA GPUs, through the CUDA driver API.
pub struct NvidiaGpus;

/// The implementations of each op, in the order of the bundle.
static TABLES: [(&str, &dyn CudaImplementations); 17] = [
    ("attention", &crate::attention::CUDA),
    ("kda", &crate::kda::CUDA),
    ("gated_delta", &crate::gated_delta::CUDA),
    ("ssd", &crate::ssd::CUDA),
    ("selective_scan", &crate::selective_scan::CUDA),
    ("conv1d", &crate::conv1d::CUDA),
    ("nsa", &crate::nsa::CUDA),
    ("rmsnorm", &crate::rmsnorm::CUDA),
    ("linear", &crate::linear::CUDA),
    ("moe", &crate::moe::CUDA),
    ("sampling", &crate::sampling::CUDA),
    ("attention_backward", &crate::attention::backward::CUDA),
    ("kda_backward", &crate::kda::BACKWARD),
    ("gated_delta_backward", &crate::gated_delta::BACKWARD),
    ("ssd_backward", &crate::ssd::backward::CUDA),
    ("conv1d_backward", &crate::conv1d::BACKWARD),
    ("rmsnorm_backward", &crate::rmsnorm::BACKWARD),
];

/// The implementations of an op; `None` for an unknown name.
pub(crate) fn op(name: &str) -> Option<&'static dyn CudaImplementations> {
    TABLES.iter().find(|(op, _)| *op == name).map(|(_, table)| *table)
}

/// The kernels of every op that the bundle contains.
pub(super) fn bundled() -> impl Iterator<Item = KernelSource> {
    TABLES.iter().flat_map(|(_, table)| table.bundled())
}

impl Backend for NvidiaGpus {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn open(&self, ordinal: u32, ownership: DeviceOwnership) -> Result<Device, Unavailable> {
        device::cuda::open(ordinal, ownership)
    }

    fn op(&self, op_name: &str) -> Option<&'static dyn Implementations> {
        op(op_name).map(|table| table as &dyn Implementations)
    }
}
