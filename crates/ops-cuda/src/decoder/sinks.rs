//! Attention sinks. The contract is in `sinks.cu`.

use super::{NAME, THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const PARTS: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("sigmoid.cuh"),
    source!("sinks.cu"),
];

/// Channels per thread.
const VECTOR: usize = 8;

pub(super) fn source(dtype: DType, tokens_first: bool, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_sinks", PARTS, arch)
        .define("DTYPE", dtype)
        .define("TOKENS_FIRST", u8::from(tokens_first))
}

arguments! {
    Sunk: decoder_sinks { o: Pointer, lse: Pointer, sinks: Pointer, count: i32, heads: i32, dim: i32 }
}

/// Attention outputs, and the sink logits that rescale them.
#[derive(Debug)]
pub struct Sinks<'a> {
    /// Storage type of o, of 16 bits.
    pub dtype: DType,
    /// `[count, heads, dim]`, scaled in place.
    pub o: &'a Arc<Buffer>,
    /// `[heads, count]` f32, or `[count, heads]` with `tokens_first`.
    pub lse: &'a Arc<Buffer>,
    /// `[heads]` f32.
    pub sinks: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// Heads.
    pub heads: usize,
    /// A multiple of 8.
    pub dim: usize,
    /// Whether lse has tokens first.
    pub tokens_first: bool,
}

/// Plans `o[t, h] *= sigmoid(lse[h, t] - sinks[h])`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, `dim` is no multiple of 8, or the kernel cannot be loaded or compiled.
pub fn sinks(device: &Device, call: &Sinks<'_>) -> Result<PlannedLaunches, OpError> {
    let Sinks { dtype, o, lse, sinks, count, heads, dim, tokens_first } = *call;
    if !dim.is_multiple_of(VECTOR) || dtype.bytes() != 2 {
        let what =
            format!("sinks need 16-bit storage and a multiple of {VECTOR} channels, got {dim}");
        return Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } });
    }
    holds("o", o, 2 * count * heads * dim)?;
    holds("lse", lse, 4 * count * heads)?;
    holds("sinks", sinks, 4 * heads)?;
    let args = Sunk { o, lse, sinks, count: int(count)?, heads: int(heads)?, dim: int(dim)? };
    let blocks = (count * heads * dim).div_ceil(VECTOR * THREADS as usize) as u32;
    let shape = Launch::new([blocks, 1, 1], THREADS, 0);
    launch(device, |arch| source(dtype, tokens_first, arch), (shape, args.into()), &[o, lse, sinks])
}
