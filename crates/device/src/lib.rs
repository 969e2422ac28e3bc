//! Devices that run kernels, their capabilities, and the launch counters that are the evidence of a run.
//!
//! A device is opened at run time; its absence is a normal result with a message, not a build option. [`Device`],
//! [`Buffer`], [`Queue`] and [`DeviceError`] are independent of the backend; [`cuda`] is the driver layer of NVIDIA
//! GPUs.

mod allocator;
mod buffer;
mod caches;
mod capabilities;
pub mod cuda;
mod device;
mod error;
mod grid;
mod host;
mod launches;
mod mapped;
mod queue;
mod team;
mod walk;

pub use allocator::return_large_blocks;
pub use buffer::{Buffer, Memory};
pub use caches::CacheSizes;
pub use capabilities::{Capabilities, Isa};
pub use device::{Device, DeviceOwnership, Unavailable};
pub use error::DeviceError;
pub use grid::SharedMut;
pub use host::HostBuffer;
pub use launches::{LaunchRecord, Launches};
pub use mapped::MappedFile;
pub use queue::Queue;
pub use team::limit_threads;
pub use walk::WeightReads;
