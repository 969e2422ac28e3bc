//! Logit biases. The contract is in `bias.cu`.

use super::{THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, GpuArch, KernelSource, Launch, SourcePart};
use ops::OpError;
use std::sync::Arc;

const PARTS: &[SourcePart] = &[source!("../include/order.cuh"), source!("bias.cu")];

pub(super) fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_bias", PARTS, arch)
}

arguments! {
    DecoderBias: decoder_bias {
        logits: Pointer, places: Pointer, values: Pointer, count: i32,
    }
}

/// Plans `logits[places[i]] += values[i]` for `count` distinct places (i32) of float32 values.
///
/// # Errors
/// [`OpError::Device`] when a list is too short, or the kernel cannot be loaded or compiled.
pub fn bias(
    device: &Device,
    [logits, places, values]: [&Arc<Buffer>; 3],
    count: usize,
) -> Result<PlannedLaunches, OpError> {
    holds("places", places, 4 * count)?;
    holds("values", values, 4 * count)?;
    let args = DecoderBias { logits, places, values, count: int(count)? };
    let shape = Launch::new([count.div_ceil(THREADS as usize) as u32, 1, 1], THREADS, 0);
    launch(device, source, (shape, args.into()), &[logits, places, values])
}
