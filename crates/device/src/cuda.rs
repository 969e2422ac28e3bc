//! NVIDIA GPUs through the driver library, which is loaded at run time: nothing of CUDA is needed to build, and a
//! machine without a driver gets a sentence, not a failure to start.
//!
//! [`Cuda`] is one open GPU. Memory comes from its [`Stream`]s, work goes to them, and every launch is counted in the
//! device's [`crate::Launches`] where the driver accepted it.

mod arena;
mod args;
mod bundle;
mod cache;
mod capabilities;
mod compiler_process;
mod context;
mod courier;
mod cublas;
mod current;
mod driver;
mod error;
mod event;
mod graph;
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
mod shared;
mod source;
mod stream;
mod swap;
mod tensor_map;
mod uploads;

pub use args::{Args, Argument, Layout, Map, Moves, Number, Parameter};
pub use bundle::{Bundle, unpack};
pub use cache::Cache;
pub use capabilities::{ComputeCapability, CudaCapabilities};
pub use compiler_process::{compile_by, compile_for_another};
pub use context::{Cuda, Seen, is_partition, seen};
pub use courier::{Courier, Fetched};
pub use cublas::Cublas;
pub use error::CudaError;
pub use event::Event;
pub use graph::Graph;
pub use kernel::{Kernel, Resources};
pub use launch::Launch;
pub use memory::Buffer;
pub use nccl::{Communicator, NCCL_ID_BYTES, NCCL_SETTING, Nccl};
pub use nvrtc::Nvrtc;
pub use peers::Reached;
pub use pinned::PinnedBuffer;
pub use pool::MemoryUse;
pub use resolve::Origin;
pub use shared::{PeerBuffer, SHARED_HANDLE_BYTES};
pub use source::{BundledArch, GpuArch, KernelSource, Part};
pub use stream::Stream;
pub use swap::{Arrival, OnHost, SWAP_CHUNK_BYTES, SWAP_STAGING_BYTES, Swap};
pub use tensor_map::{MapElement, Swizzle, TensorMap, TiledLayout};
pub use uploads::{UPLOAD_BYTES, Uploads};

pub(crate) use context::{Tenure, open};
