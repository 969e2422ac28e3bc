//! Decoder kernels between the ops: embedding lookup, paged KV cache append, row gather, gates, sums over ranks, and the update of
//! a decode step's integers. Each has one implementation. The tests that compare models' logits and tokens cover them.

mod bias;
mod cache;
mod embed;
mod gate;
mod heads;
mod next;
mod ranks;
mod sequence_parallel;
mod sinks;
mod states;
mod take;

pub use bias::bias;
pub use cache::{Append, Turns, append};
pub use embed::{Embed, embed};
pub use gate::{GateRows, gate, gate_rows, multiply};
pub use heads::{Heads, heads};
pub use next::{DecodeIndices, next};
pub use ranks::{
    Inboxes, PEERS, ResidualSum, Rows, ShardedNorm, gather, join, join_many, join_peers, spread,
};
pub use sequence_parallel::{
    Mark, OwnedRowReduction, PartialResults, join_own, narrow, wait_for_mark,
};
pub use sinks::{Sinks, sinks};
pub use states::StatePools;
pub use take::take;

use crate::{Plan, PlannedLaunches};
use device::Device;
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, Cuda, DeviceError, GpuArch, KernelSource, Launch,
};
use ops::{DType, OpError};
use std::sync::Arc;

/// The op name in errors and launch counts.
const NAME: &str = "decoder";

/// Threads per block of kernels that copy rows.
const THREADS: u32 = 256;

/// Every decoder kernel of models with bfloat16 weights, for the bundle.
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
            sequence_parallel::join_source(arch.clone()),
            sequence_parallel::wait_source(arch.clone()),
            sequence_parallel::narrow_source(arch.clone()),
            states::source(arch.clone()),
            ranks::gather_source(arch),
        ]
    };
    BundledArch::ALL.iter().flat_map(of).collect()
}

/// The GPU of a device, the architecture its kernels are compiled for, and whether it supports programmatic dependent launch (PDL).
fn gpu(device: &Device) -> Result<(&Cuda, GpuArch, bool), DeviceError> {
    let cuda = crate::gpu(device)?;
    let compute = cuda.capabilities().compute;
    Ok((cuda, GpuArch::of(compute), compute >= ComputeCapability::new(9, 0)))
}

/// Plans one launch, which may overlap the end of the preceding kernel (PDL) and holds references to `held`.
fn launch(
    device: &Device,
    source: impl FnOnce(GpuArch) -> KernelSource,
    (shape, args): (Launch, Args),
    held: &[&Arc<Buffer>],
) -> Result<PlannedLaunches, OpError> {
    // Each of these kernels waits for the preceding one (`wait_for_previous`).
    let overlaps = matches!(gpu(device), Ok((.., true)));
    launch_without_pdl(device, source, (Launch { overlaps, ..shape }, args), held)
}

/// Plans one launch without PDL, for use after kernels of another library, which do not trigger dependent launches.
fn launch_without_pdl(
    device: &Device,
    source: impl FnOnce(GpuArch) -> KernelSource,
    (shape, args): (Launch, Args),
    held: &[&Arc<Buffer>],
) -> Result<PlannedLaunches, OpError> {
    let planned = gpu(device).and_then(|(cuda, arch, _)| {
        let plan = Plan::single(cuda, NAME, &source(arch), shape, args)?;
        Ok(PlannedLaunches::fixed(plan, held.iter().copied().cloned()))
    });
    planned.map_err(|error| OpError::Device { op: NAME, error })
}

/// Rejects a buffer of fewer than `wanted` bytes.
fn holds(what: &str, buffer: &Buffer, wanted: usize) -> Result<(), OpError> {
    if buffer.bytes() >= wanted {
        return Ok(());
    }
    let what = format!("{what} wants {wanted} bytes, its buffer has {}", buffer.bytes());
    Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } })
}

/// Converts a size to the kernels' i32.
fn int(value: usize) -> Result<i32, OpError> {
    crate::int(value).map_err(|error| OpError::Device { op: NAME, error })
}
