//! Appends keys and values to the paged KV cache. The contract is in `cache.cu`.

use super::{THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const PARTS: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("cache.cu")];

/// `LARGEST_DIM` of the kernel.
const LARGEST_DIM: usize = 512;

pub(super) fn source(dtype: DType, rotate: bool, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_append", PARTS, arch)
        .define("DTYPE", dtype)
        .define("ROTATE", u8::from(rotate))
}

arguments! {
    DecoderAppend: decoder_append {
        q: Nullable, k: Pointer, more: Nullable, v: Nullable, k_pool: Pointer, v_pool: Nullable, rows: Pointer,
        positions: Pointer, q_heads: i32, kv_heads: i32, dim: i32, more_width: i32, value_width: i32,
        frequencies: Nullable, turned: i32, factor: f32,
    }
}

/// Keys and values of new tokens, and the cache they are appended to.
#[derive(Debug)]
pub struct Append<'a> {
    /// Storage type of all tensors except the i32 ones and the frequencies: 16 bits.
    pub dtype: DType,
    /// `[count, heads, dim]`, rotated in place; none without rotation.
    pub q: Option<&'a Arc<Buffer>>,
    /// `[count, kv_heads, dim]`, rotated in place.
    pub k: &'a Arc<Buffer>,
    /// `[count, width]` and the width: stored after the keys of each token.
    pub more: Option<(&'a Arc<Buffer>, usize)>,
    /// Values `[count, width]`, their pool `[rows, width]`, written, and the width; none if the values are part of the keys.
    pub v: Option<(&'a Arc<Buffer>, &'a Arc<Buffer>, usize)>,
    /// Keys of all tokens `[rows, kv_heads * dim + width of more]`, written.
    pub k_pool: &'a Arc<Buffer>,
    /// `[count]` i32: the pool row of each token.
    pub rows: &'a Arc<Buffer>,
    /// `[count]` i32: the position of each token in its sequence.
    pub positions: &'a Arc<Buffer>,
    /// Number of tokens.
    pub count: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Channels of a head, at most 512.
    pub dim: usize,
    /// The rotary position embedding; none if the model has none.
    pub rotation: Option<Turns<'a>>,
}

/// A rotary position embedding of a head's first channels.
#[derive(Debug, Clone, Copy)]
pub struct Turns<'a> {
    /// Radians per position, `[2, width / 2]` f32: each frequency is the sum of a high and a low part.
    pub frequencies: &'a Arc<Buffer>,
    /// Number of rotated channels, even, up to `dim`.
    pub width: usize,
    /// Factor on cosines and sines.
    pub factor: f64,
}

/// Plans the copy of keys and values to their pool rows, after the rotation of queries and keys if there is one.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, a width or the rotation is not supported, or the kernel cannot be loaded or compiled.
pub fn append(device: &Device, call: &Append<'_>) -> Result<PlannedLaunches, OpError> {
    let (count, bytes) = (call.count, call.dtype.bytes());
    let key_width = call.kv_heads * call.dim;
    let more_width = call.more.map_or(0, |(_, width)| width);
    let (v, v_pool, value_width) = match call.v {
        Some((v, pool, width)) => (Some(v), Some(pool), width),
        None => (None, None, 0),
    };
    let widths = [key_width, more_width, value_width];
    if widths.iter().any(|width| !width.is_multiple_of(8))
        || bytes != 2
        || call.dim > LARGEST_DIM
        || call.rotation.is_some_and(|turns| {
            call.q.is_none() || turns.width > call.dim || !turns.width.is_multiple_of(2)
        })
    {
        let what = format!(
            "append needs 16-bit storage, widths in multiples of 8, heads up to {LARGEST_DIM} and queries for a rotation, got {widths:?}"
        );
        return Err(OpError::Device { op: super::NAME, error: DeviceError::Refused { what } });
    }
    if let Some(q) = call.q {
        holds("q", q, bytes * count * call.heads * call.dim)?;
    }
    if let Some((more, width)) = call.more {
        holds("more", more, bytes * count * width)?;
    }
    holds("k", call.k, bytes * count * key_width)?;
    if let Some(v) = v {
        holds("v", v, bytes * count * value_width)?;
    }
    holds("rows", call.rows, 4 * count)?;
    holds("positions", call.positions, 4 * count)?;
    let turned = call.rotation.map_or(0, |turns| turns.width);
    if let Some(turns) = call.rotation {
        holds("frequencies", turns.frequencies, 4 * turned)?;
    }
    let more = call.more.map(|(more, _)| more);
    let held = [
        call.q,
        Some(call.k),
        more,
        v,
        Some(call.k_pool),
        v_pool,
        Some(call.rows),
        Some(call.positions),
    ];
    let frequencies = call.rotation.map(|turns| turns.frequencies);
    let held: Vec<_> = held.into_iter().chain([frequencies]).flatten().collect();
    let [q, more, v, v_pool, frequencies] =
        [call.q, more, v, v_pool, frequencies].map(|buffer| buffer.map(|buffer| &**buffer));
    let args = DecoderAppend {
        q,
        k: call.k,
        more,
        v,
        k_pool: call.k_pool,
        v_pool,
        rows: call.rows,
        positions: call.positions,
        q_heads: int(call.heads)?,
        kv_heads: int(call.kv_heads)?,
        dim: int(call.dim)?,
        more_width: int(more_width)?,
        value_width: int(value_width)?,
        frequencies,
        turned: int(turned)?,
        factor: call.rotation.map_or(1.0, |turns| turns.factor) as f32,
    };
    let shape = Launch::new([count as u32, 1, 1], THREADS, 0);
    let rotate = call.rotation.is_some();
    launch(device, |arch| source(call.dtype, rotate, arch), (shape, args.into()), &held)
}
