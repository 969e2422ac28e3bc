//! CUDA variants: how an op declares them, and executions over tensors that stay on the GPU.
//!
//! A variant plans its launches once: [`Planner`] uploads inputs, allocates outputs and scratch memory, and finds the
//! kernels. [`CudaExecution`] then replays the plan without touching the host's tensors.

mod execution;
mod host_bytes;
mod planner;
mod variant;

pub(crate) use execution::CudaExecution;
pub use planner::Planner;
pub use variant::CudaVariant;

use device::cuda::Bundle;

/// Kernels compiled ahead by `cargo xtask bundle`.
pub const BUNDLE: Bundle = Bundle::EMPTY;
