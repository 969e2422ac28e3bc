//! Embedding lookup. The contract is in `embed.cu`.

use super::{THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const PARTS: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("embed.cu")];

pub(super) fn source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_embed", PARTS, arch).define("DTYPE", dtype)
}

arguments! {
    DecoderEmbed: decoder_embed {
        table: Pointer, tokens: Pointer, x: Pointer, hidden: i32, multiplier: f32,
    }
}

/// An embedding lookup.
#[derive(Debug)]
pub struct Embed<'a> {
    /// `[vocabulary, hidden]`, in 16-bit storage.
    pub table: &'a Arc<Buffer>,
    /// Its storage type.
    pub dtype: DType,
    /// `[count]` i32, each below the vocabulary.
    pub tokens: &'a Arc<Buffer>,
    /// `[count, hidden]` f32, written.
    pub x: &'a Arc<Buffer>,
    /// Number of tokens.
    pub count: usize,
    /// Width of a row, a multiple of 8.
    pub hidden: usize,
    /// Factor on the rows.
    pub multiplier: f64,
}

/// Plans `x[t] = multiplier * table[tokens[t]]`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be loaded or compiled.
pub fn embed(device: &Device, call: &Embed<'_>) -> Result<PlannedLaunches, OpError> {
    holds("tokens", call.tokens, 4 * call.count)?;
    holds("x", call.x, 4 * call.count * call.hidden)?;
    let args = DecoderEmbed {
        table: call.table,
        tokens: call.tokens,
        x: call.x,
        hidden: int(call.hidden)?,
        multiplier: call.multiplier as f32,
    };
    let shape = Launch::new([call.count as u32, 1, 1], THREADS, 0);
    let held = [call.table, call.tokens, call.x];
    launch(device, |arch| source(call.dtype, arch), (shape, args.into()), &held)
}
