//! Advances a decode step's integers by the sampled token. The contract is in `next.cu`.

use super::{holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
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

/// The integers of a decode step with one token per sequence, all i32.
#[derive(Debug)]
pub struct DecodeIndices<'a> {
    /// `[count]`: the sampled token, -1 for none.
    pub chosen: &'a Arc<Buffer>,
    /// `[count]`: token ids, written.
    pub ids: &'a Arc<Buffer>,
    /// `[count]`: the token's position in its sequence, incremented.
    pub positions: &'a Arc<Buffer>,
    /// `[count]`: its row in the KV pools, written.
    pub rows: &'a Arc<Buffer>,
    /// `[count]`: length of the sequence including this token, incremented.
    pub lengths: &'a Arc<Buffer>,
    /// `[count, table_width]`: blocks of each sequence.
    pub table: &'a Arc<Buffer>,
    /// `[slots, vocabulary]`: number of times each token was added, incremented.
    pub counts: Option<&'a Arc<Buffer>>,
    /// `[count]`: the slot of each sequence, -1 for padding; set to -1 when the sequence ends.
    pub slots: &'a Arc<Buffer>,
    /// `[count, most]`: tokens that end each sequence, padded with -1.
    pub stops: &'a Arc<Buffer>,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Sequences.
    pub count: usize,
    /// Entries per row of the table.
    pub table_width: usize,
    /// Tokens per block.
    pub block: usize,
    /// Maximum number of tokens that end a sequence.
    pub most: usize,
}

/// Plans the update to the sampled tokens.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be loaded or compiled.
pub fn next(device: &Device, call: &DecodeIndices<'_>) -> Result<PlannedLaunches, OpError> {
    let DecodeIndices {
        chosen, ids, positions, rows, lengths, table, counts, slots, stops, ..
    } = *call;
    let DecodeIndices { count, table_width, block, vocabulary, most, .. } = *call;
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
