//! Gates per element, with or without a sigmoid, and per token. The contracts are in `gate.cu` and `gate_rows.cu`.

use super::{NAME, THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const ELEMENTS: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("sigmoid.cuh"),
    source!("gate.cu"),
];
const ROWS: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("sigmoid.cuh"),
    source!("gate_rows.cu"),
];

/// Elements per thread.
const VECTOR: usize = 8;

pub(super) fn source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_gate", ELEMENTS, arch).define("DTYPE", dtype)
}

pub(super) fn plain_source(dtype: DType, arch: GpuArch) -> KernelSource {
    source(dtype, arch).define("PLAIN", 1)
}

pub(super) fn rows_source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_gate_rows", ROWS, arch).define("DTYPE", dtype)
}

arguments! { Gated: decoder_gate { x: Pointer, gate: Pointer, o: Pointer, length: i64 } }

arguments! {
    GatedRows: decoder_gate_rows { x: Pointer, h: Pointer, w: Pointer, width: i32, hidden: i32 }
}

fn refused(widths: &[usize]) -> OpError {
    let what = format!("gates need 16-bit storage and multiples of {VECTOR}, got {widths:?}");
    OpError::Device { op: NAME, error: DeviceError::Refused { what } }
}

/// Plans `o = x * sigmoid(gate)` over `length` elements of 16 bits, a multiple of 8; `o` may be `x`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the length is no multiple of 8, or the kernel cannot be loaded or compiled.
pub fn gate(
    device: &Device,
    dtype: DType,
    buffers: [&Arc<Buffer>; 3],
    length: usize,
) -> Result<PlannedLaunches, OpError> {
    elements(device, (dtype, source), buffers, length)
}

/// Plans `o = x * y`, with the same conditions as [`gate`].
///
/// # Errors
/// As [`gate`].
pub fn multiply(
    device: &Device,
    dtype: DType,
    buffers: [&Arc<Buffer>; 3],
    length: usize,
) -> Result<PlannedLaunches, OpError> {
    elements(device, (dtype, plain_source), buffers, length)
}

fn elements(
    device: &Device,
    (dtype, source): (DType, fn(DType, GpuArch) -> KernelSource),
    [x, gate, o]: [&Arc<Buffer>; 3],
    length: usize,
) -> Result<PlannedLaunches, OpError> {
    if !length.is_multiple_of(VECTOR) || dtype.bytes() != 2 {
        return Err(refused(&[length]));
    }
    for (name, buffer) in [("x", x), ("gate", gate), ("o", o)] {
        holds(name, buffer, 2 * length)?;
    }
    let blocks = length.div_ceil(VECTOR * THREADS as usize) as u32;
    let args = Gated { x, gate, o, length: length as i64 };
    let shape = Launch::new([blocks, 1, 1], THREADS, 0);
    launch(device, |arch| source(dtype, arch), (shape, args.into()), &[x, gate, o])
}

/// One gate per token.
#[derive(Debug)]
pub struct GateRows<'a> {
    /// Storage type of x and h, of 16 bits.
    pub dtype: DType,
    /// `[count, width]`, multiplied in place.
    pub x: &'a Arc<Buffer>,
    /// `[count, hidden]`.
    pub h: &'a Arc<Buffer>,
    /// `[hidden]` f32.
    pub w: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// A multiple of 8.
    pub width: usize,
    /// A multiple of 8.
    pub hidden: usize,
}

/// Plans `x[t] *= sigmoid(w . h[t])`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, a width is no multiple of 8, or the kernel cannot be loaded or compiled.
pub fn gate_rows(device: &Device, call: &GateRows<'_>) -> Result<PlannedLaunches, OpError> {
    let GateRows { dtype, x, h, w, count, width, hidden } = *call;
    let widths = [width, hidden];
    if widths.iter().any(|width| !width.is_multiple_of(VECTOR)) || dtype.bytes() != 2 {
        return Err(refused(&widths));
    }
    holds("x", x, 2 * count * width)?;
    holds("h", h, 2 * count * hidden)?;
    holds("w", w, 4 * hidden)?;
    let args = GatedRows { x, h, w, width: int(width)?, hidden: int(hidden)? };
    let shape = Launch::new([count as u32, 1, 1], THREADS, 0);
    launch(device, |arch| rows_source(dtype, arch), (shape, args.into()), &[x, h, w])
}
