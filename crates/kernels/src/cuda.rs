//! CUDA variants: how an op declares them, and executions over tensors that stay on the GPU.
//!
//! A variant plans its launches once: [`Planner`] uploads inputs, allocates outputs and scratch memory, and finds the
//! kernels. [`CudaExecution`] then replays the plan without touching the host's tensors. [`Plans`] keeps what was planned
//! over tensors of the caller ([`Plan`]), and launches it again for like calls whose tensors lie elsewhere.

pub(crate) mod arguments;
mod execution;
pub(crate) mod expand;
mod host_bytes;
mod memory_test;
mod plan;
mod planner;
mod plans;
pub(crate) mod slots;
pub(crate) mod sources;
mod variant;

pub(crate) use arguments::arguments;
pub(crate) use execution::CudaExecution;
pub(crate) use expand::Expand;
pub use memory_test::test_memory;
pub use plan::{Lender, Lent, Memory, Placed, Plan, Planned, Wanted};
pub use planner::Planner;
pub(crate) use planner::{Pieces, int, map_element};
pub use plans::{Plans, Words};
pub(crate) use sources::source;
pub use variant::CudaVariant;

use crate::OPS;
use device::cuda::{Bundle, KernelSource};

/// Kernels compiled ahead by `cargo xtask bundle`. A kernel that was edited since has another key and misses it; it is
/// then compiled on the machine, and `cargo xtask bundle --check` fails. A static and not a constant, of which every use in
/// another unit of code is a copy: the program held its bytes twice.
pub static BUNDLE: Bundle = Bundle::new(include_bytes!("cuda/bundle.bin"));

/// What the bundle is made of: the common shapes of every op, each for the architectures it runs on.
pub fn bundled() -> Vec<KernelSource> {
    let mut sources: Vec<_> = OPS.iter().flat_map(|op| op.bundled()).collect();
    sources.extend(slots::bundled());
    sources.extend(memory_test::bundled());
    sources.extend(crate::decoder::bundled());
    sources.extend(crate::persistent::bundled());
    // Several shapes share a kernel (the combine step has no D).
    let mut seen = std::collections::BTreeSet::new();
    sources.retain(|source| seen.insert(source.key()));
    sources
}
