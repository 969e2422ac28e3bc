//! What a decoder does on a GPU between its ops: rows of the embedding, keys and values into the paged cache, rows that
//! go on, and the way from a token to the next. None has variants to choose from; what they compute is held by the logits and tokens
//! of the models that run them.

mod bias;
mod cache;
mod embed;
mod gate;
mod heads;
mod next;
mod own;
mod ranks;
mod sinks;
mod states;
mod take;

pub use bias::bias;
pub use cache::{Append, Turns, append};
pub use embed::{Embed, embed};
pub use gate::{GateRows, gate, gate_rows, multiply};
pub use heads::{Heads, heads};
pub use next::{Next, next};
pub use own::{JoinOwn, Made, Mark, join_own, meet, narrow};
pub use ranks::{Inboxes, Join, PEERS, Rows, Spread, gather, join, join_many, join_peers, spread};
pub use sinks::{Sinks, sinks};
pub use states::StatePools;
pub use take::take;

use crate::{Plan, Planned};
use device::Device;
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, Cuda, DeviceError, GpuArch, KernelSource, Launch,
};
use ops::{DType, OpError};
use std::sync::Arc;

/// The name errors and launch counts go under.
const NAME: &str = "decoder";

/// Threads of a block that moves rows.
const THREADS: u32 = 256;

/// For the bundle: every kernel of models whose weights are bfloat16.
pub fn bundled() -> Vec<KernelSource> {
    let of = |arch: &BundledArch| {
        let arch = arch.arch();
        [
            embed::source(DType::Bf16, arch.clone()),
            cache::source(DType::Bf16, false, arch.clone()),
            cache::source(DType::Bf16, true, arch.clone()),
            take::source(arch.clone()),
            bias::source(arch.clone()),
            next::source(arch.clone()),
            gate::source(DType::Bf16, arch.clone()),
            gate::plain_source(DType::Bf16, arch.clone()),
            gate::rows_source(DType::Bf16, arch.clone()),
            heads::source(DType::Bf16, arch.clone()),
            sinks::source(DType::Bf16, false, arch.clone()),
            sinks::source(DType::Bf16, true, arch.clone()),
            ranks::spread_source(DType::Bf16, arch.clone()),
            ranks::join_source(arch.clone()),
            ranks::join_peers_source(arch.clone()),
            ranks::join_many_source(DType::F32, arch.clone()),
            ranks::join_many_source(DType::Bf16, arch.clone()),
            own::join_source(arch.clone()),
            own::meet_source(arch.clone()),
            own::narrow_source(arch.clone()),
            states::source(arch.clone()),
            ranks::gather_source(arch),
        ]
    };
    BundledArch::ALL.iter().flat_map(of).collect()
}

/// The GPU of a device, the architecture its kernels are compiled for, and whether the start of one may overlap the end of
/// another.
fn gpu(device: &Device) -> Result<(&Cuda, GpuArch, bool), DeviceError> {
    let cuda = crate::gpu(device)?;
    let compute = cuda.capabilities().compute;
    Ok((cuda, GpuArch::of(compute), compute >= ComputeCapability::new(9, 0)))
}

/// One launch over buffers that it keeps.
fn launch(
    device: &Device,
    source: impl FnOnce(GpuArch) -> KernelSource,
    (shape, args): (Launch, Args),
    held: &[&Arc<Buffer>],
) -> Result<Planned, OpError> {
    // Each waits for the kernel ahead of it by itself.
    let overlaps = matches!(gpu(device), Ok((.., true)));
    launch_apart(device, source, (Launch { overlaps, ..shape }, args), held)
}

/// One launch that begins when what stands ahead has ended: another library's kernels let none start before.
fn launch_apart(
    device: &Device,
    source: impl FnOnce(GpuArch) -> KernelSource,
    (shape, args): (Launch, Args),
    held: &[&Arc<Buffer>],
) -> Result<Planned, OpError> {
    let planned = gpu(device).and_then(|(cuda, arch, _)| {
        let plan = Plan::single(cuda, NAME, &source(arch), shape, args)?;
        Ok(Planned::fixed(plan, held.iter().copied().cloned()))
    });
    planned.map_err(|error| OpError::Device { op: NAME, error })
}

/// Refuses a buffer that holds fewer bytes than are wanted of it.
fn holds(what: &str, buffer: &Buffer, wanted: usize) -> Result<(), OpError> {
    if buffer.bytes() >= wanted {
        return Ok(());
    }
    let what = format!("{what} wants {wanted} bytes, its buffer has {}", buffer.bytes());
    Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } })
}

/// A size as kernels take it.
fn int(value: usize) -> Result<i32, OpError> {
    crate::int(value).map_err(|error| OpError::Device { op: NAME, error })
}
