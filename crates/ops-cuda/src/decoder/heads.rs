//! Batched matrix product with a separate matrix per head. The contract is in `heads.cu`.

use super::{NAME, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const PARTS: &[SourcePart] = &[source!("../include/ampere.cuh"), source!("heads.cu")];

/// Tokens, and output channels, per block.
const TILE: usize = 64;

pub(super) fn source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_heads", PARTS, arch).define("DTYPE", dtype)
}

arguments! {
    DecoderHeads: decoder_heads {
        x: Pointer, w: Pointer, o: Pointer, tokens: i32, heads: i32, inputs: i32, outputs: i32, tail: i32,
    }
}

/// A matrix product per head, with a tail of channels that is copied.
#[derive(Debug)]
pub struct Heads<'a> {
    /// Storage type, of 16 bits.
    pub dtype: DType,
    /// `[count, heads, inputs + tail]`.
    pub x: &'a Arc<Buffer>,
    /// `[heads, outputs, inputs]`.
    pub w: &'a Arc<Buffer>,
    /// `[count, heads, outputs + tail]`, written.
    pub o: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// Heads.
    pub heads: usize,
    /// Input channels of a head's product, a multiple of 16.
    pub inputs: usize,
    /// Output channels of a head's product, a multiple of 16.
    pub outputs: usize,
    /// Channels after them that are copied unchanged, an even number.
    pub tail: usize,
}

/// Plans `o[t, h] = [w[h] x[t, h] | tail of x[t, h]]`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, a width is not a required multiple, or the kernel cannot be loaded or compiled.
pub fn heads(device: &Device, call: &Heads<'_>) -> Result<PlannedLaunches, OpError> {
    let Heads { dtype, x, w, o, count, heads, inputs, outputs, tail } = *call;
    if !inputs.is_multiple_of(16) || !outputs.is_multiple_of(16) || !tail.is_multiple_of(2) {
        let what = format!(
            "heads need multiples of 16 inputs and outputs and an even tail, got {inputs}, {outputs} and {tail}"
        );
        return Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } });
    }
    holds("x", x, 2 * count * heads * (inputs + tail))?;
    holds("w", w, 2 * heads * outputs * inputs)?;
    holds("o", o, 2 * count * heads * (outputs + tail))?;
    let args = DecoderHeads {
        x,
        w,
        o,
        tokens: int(count)?,
        heads: int(heads)?,
        inputs: int(inputs)?,
        outputs: int(outputs)?,
        tail: int(tail)?,
    };
    let blocks = [outputs.div_ceil(TILE), heads, count.div_ceil(TILE)];
    let shape = Launch::new(blocks.map(|count| count as u32), 128, 0);
    launch(device, |arch| source(dtype, arch), (shape, args.into()), &[x, w, o])
}
