//! CUDA variants: how an op declares them, and executions over tensors that stay on the GPU.
//!
//! A variant plans its launches once: [`Planner`] uploads inputs, allocates outputs and scratch memory, and finds the
//! kernels. [`CudaExecution`] then replays the plan without touching the host's tensors. [`Plans`] caches plans over
//! the caller's tensors ([`Plan`]) and launches them for calls of the same layout with tensors at other addresses.

mod arguments;
mod backend;
mod bundle;
mod ceilings;
#[cfg(test)]
mod comments;
mod execution;
mod expand;
mod fabric;
mod gpu;
mod gradient_sums;
mod memory_test;
mod plan;
mod planner;
mod plans;
mod slots;
mod sources;
mod stage;
mod table;
mod variant;

pub mod attention;
mod conv1d;
mod gated_delta;
mod kda;
mod linear;
pub mod moe;
mod nsa;
mod rmsnorm;
mod sampling;
mod selective_scan;
mod ssd;

pub mod decoder;
pub mod persistent;

pub(crate) use arguments::arguments;
pub use backend::NvidiaGpus;
pub(crate) use backend::op;
pub use bundle::BUNDLE;
pub use ceilings::{Sampler, ceilings};
pub(crate) use execution::CudaExecution;
pub(crate) use expand::Expand;
pub use fabric::{FabricPlan, fabric};
pub(crate) use gpu::gpu;
pub use gpu::{
    NCCL_SETTING, SWAP_STAGING_BYTES, VisibleGpu, borrow_buffer, borrow_stream, compile_by,
    compile_for_another, compute_capability, free_bytes, has_compiler, is_partition,
    loaded_kernels, nccl, peak_bytes, stream, visible_gpus,
};
pub use memory_test::test_memory;
pub use plan::{
    BoundPlan, Plan, PlannedLaunches, Workspace, WorkspaceAllocator, WorkspaceBuffers,
    WorkspaceSize,
};
pub use planner::Planner;
pub(crate) use planner::{int, map_element};
pub use plans::{CallTarget, Plans, WordHasher, enqueue};
pub(crate) use sources::source;
pub use stage::plan_stage;
pub(crate) use table::CudaTable;
pub use variant::CudaVariant;

use device::cuda::KernelSource;

/// The sources of the bundle: the common shapes of every op, each for the architectures it runs on.
pub fn bundled() -> Vec<KernelSource> {
    let mut sources: Vec<_> = backend::bundled().collect();
    sources.extend(slots::bundled());
    sources.extend(memory_test::bundled());
    sources.extend(crate::decoder::bundled());
    sources.extend(crate::persistent::bundled());
    // Several shapes share a kernel (the combine step has no D).
    let mut visible_gpus = std::collections::BTreeSet::new();
    sources.retain(|source| visible_gpus.insert(source.key()));
    sources
}
