//! Row gather. The contract is in `take.cu`.

use super::{THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, GpuArch, KernelSource, Launch, SourcePart};
use ops::OpError;
use std::sync::Arc;

const PARTS: &[SourcePart] = &[source!("../include/order.cuh"), source!("take.cu")];

pub(super) fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_take", PARTS, arch)
}

arguments! {
    DecoderTake: decoder_take {
        from: Pointer, rows: Pointer, to: Pointer, width: i32,
    }
}

/// Plans `to[i] = from[rows[i]]` for `count` rows of `width` float32 values, a multiple of 4; `rows` `[count]` i32.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be loaded or compiled.
pub fn take(
    device: &Device,
    [from, rows, to]: [&Arc<Buffer>; 3],
    count: usize,
    width: usize,
) -> Result<PlannedLaunches, OpError> {
    holds("rows", rows, 4 * count)?;
    holds("to", to, 4 * count * width)?;
    let args = DecoderTake { from, rows, to, width: int(width)? };
    let shape = Launch::new([count as u32, 1, 1], THREADS, 0);
    launch(device, source, (shape, args.into()), &[from, rows, to])
}
