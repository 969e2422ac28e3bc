//! NVIDIA GPUs through the driver library, which is loaded at run time: a build needs no CUDA, and a machine without a
//! driver gets an error message instead of a failure to start.
//!
//! [`Cuda`] is one open GPU. Memory comes from its [`Stream`]s, work is enqueued on them, and every launch that the
//! driver accepts is counted in the device's [`Launches`].

mod arena;
mod args;
mod bundle;
mod cache;
mod capabilities;
mod compiler_process;
mod context;
mod cublas;
mod current;
mod driver;
mod event;
mod graph;
mod ipc;
mod kernel;
mod launch;
mod memory;
mod modules;
mod nccl;
mod nvrtc;
mod peers;
mod pinned;
mod pool;
mod resolve;
mod search;
mod source;
mod staging;
mod stream;
mod swap;
mod tensor_map;
mod uploads;

pub use args::{Args, Argument, Map, Number, OperandAddresses, Parameter, ParameterLayout};
pub use bundle::{Bundle, Stream as BundleStream, unpack};
pub use cache::Cache;
pub use capabilities::{ComputeCapability, CudaCapabilities};
pub use compiler_process::{compile_by, compile_for_another};
pub use context::{Cuda, VisibleGpu, is_partition, visible_gpus};
pub use cublas::Cublas;
pub use event::Event;
pub use graph::Graph;
pub use ipc::{IPC_HANDLE_BYTES, PeerBuffer};
pub use kernel::{Kernel, Resources};
pub use launch::Launch;
pub use nccl::{Communicator, NCCL_ID_BYTES, NCCL_SETTING, Nccl};
pub use nvrtc::Nvrtc;
pub use peers::PeerAccess;
pub use pinned::PinnedBuffer;
pub use pool::MemoryUse;
pub use resolve::KernelOrigin;
pub use source::{BundledArch, GpuArch, KernelSource, SourcePart};
pub use staging::{PendingRead, StagingBuffer};
pub use stream::Stream;
pub use swap::{HostCopy, PendingRestore, SWAP_CHUNK_BYTES, SWAP_STAGING_BYTES, Swap};
pub use tensor_map::{Swizzle, TiledLayout, TmaDescriptor, TmaElement};
pub use uploads::{UPLOAD_BYTES, Uploader};

pub use crate::{Buffer, DeviceError};
use crate::{CacheSizes, Capabilities, Device, DeviceOwnership, Launches, Unavailable};
use facts::BackendKind;
use std::sync::Arc;

/// Opens the visible GPU with this index (`CUDA_VISIBLE_DEVICES` selects them). [`Cuda::of`] returns its driver layer.
///
/// # Errors
/// [`Unavailable`] if there is no such GPU, or it cannot be used.
pub fn open(ordinal: u32, ownership: DeviceOwnership) -> Result<Device, Unavailable> {
    let (backend, launches) = (BackendKind::Cuda, Arc::new(Launches::default()));
    let gpu = context::open(ordinal, ownership, &launches)
        .map_err(|error| Unavailable { backend, reason: error.to_string() })?;
    let name = Some(gpu.capabilities().name.clone());
    let capabilities = Capabilities { backend, name, isas: Vec::new(), threads: 0 };
    let inner_bytes = u64::from(gpu.capabilities().l2_bytes);
    let caches = CacheSizes { inner_bytes, outer_bytes: 0 };
    Ok(Device::new(capabilities, launches).with_extension(caches).with_extension(gpu))
}
