//! From a step of one token a sequence to the next. The contract stands in `next.cu`.

use super::{holds, int, launch};
use crate::{Planned, arguments, source};
use device::Device;
use device::cuda::{Buffer, GpuArch, KernelSource, Launch, Part};
use ops::OpError;
use std::sync::Arc;

const PARTS: &[Part] = &[source!("../include/order.cuh"), source!("next.cu")];

pub(super) fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_next", PARTS, arch)
}

arguments! {
    DecoderNext: decoder_next {
        chosen: Pointer, ids: Pointer, positions: Pointer, rows: Pointer, lengths: Pointer, table: Pointer, counts: Nullable,
        slots: Pointer, stops: Pointer, count: i32, table_width: i32, block: i32, vocabulary: i32, most: i32,
    }
}

/// The integers of a step of one token a sequence, all i32.
#[derive(Debug)]
pub struct Next<'a> {
    /// `[count]`: the token that follows, -1 for none.
    pub chosen: &'a Arc<Buffer>,
    /// `[count]`: token ids, written.
    pub ids: &'a Arc<Buffer>,
    /// `[count]`: where the token stands in its sequence, raised.
    pub positions: &'a Arc<Buffer>,
    /// `[count]`: the row of the key/value pools that it has, written.
    pub rows: &'a Arc<Buffer>,
    /// `[count]`: tokens of the sequence with this one, raised.
    pub lengths: &'a Arc<Buffer>,
    /// `[count, table_width]`: blocks of each sequence.
    pub table: &'a Arc<Buffer>,
    /// `[slots, vocabulary]`: how often each token was added, raised.
    pub counts: Option<&'a Arc<Buffer>>,
    /// `[count]`: the slot of each sequence, -1 for padding; taken away from one that ends.
    pub slots: &'a Arc<Buffer>,
    /// `[count, most]`: tokens that end each sequence, filled up with -1.
    pub stops: &'a Arc<Buffer>,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Sequences.
    pub count: usize,
    /// Blocks that a row of the table has place for.
    pub table_width: usize,
    /// Tokens of a block.
    pub block: usize,
    /// Tokens that end a sequence, at most.
    pub most: usize,
}

/// Plans the step to the token that was chosen.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be had.
pub fn next(device: &Device, call: &Next<'_>) -> Result<Planned, OpError> {
    let Next { chosen, ids, positions, rows, lengths, table, counts, slots, stops, .. } = *call;
    let Next { count, table_width, block, vocabulary, most, .. } = *call;
    for (name, buffer) in [
        ("chosen", chosen),
        ("ids", ids),
        ("positions", positions),
        ("rows", rows),
        ("lengths", lengths),
        ("slots", slots),
    ] {
        holds(name, buffer, 4 * count)?;
    }
    holds("table", table, 4 * count * table_width)?;
    holds("stops", stops, 4 * count * most)?;
    let args = DecoderNext {
        chosen,
        ids,
        positions,
        rows,
        lengths,
        table,
        counts: counts.map(Arc::as_ref),
        slots,
        stops,
        count: int(count)?,
        table_width: int(table_width)?,
        block: int(block)?,
        vocabulary: int(vocabulary)?,
        most: int(most)?,
    };
    let mut held = vec![chosen, ids, positions, rows, lengths, table, slots, stops];
    held.extend(counts);
    let shape = Launch::new([count.div_ceil(32) as u32, 1, 1], 32, 0);
    launch(device, source, (shape, args.into()), &held)
}
