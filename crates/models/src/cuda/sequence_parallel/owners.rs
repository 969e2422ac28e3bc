//! Receive buffers of sequence parallelism: the memory on each GPU that the GPUs of the other ranks copy to.

use super::super::pass::device_error;
use crate::Architecture;
use architectures::ShardRank;
use device::cuda::{Buffer, Cuda, DeviceError, Stream};
use ops::OpError;
use ops_cuda::decoder::{Mark, OwnedRowReduction, PEERS};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of each rank are a multiple of this where possible: the tile height of GEMMs, and less for short prompts.
pub(super) const ROW_TILES: [usize; 2] = [256, 64];
/// Number of values of a flag, which are used in turn, so that each copy sets another one.
const FLAG_VALUES: usize = 256;
/// Alignment of buffers in bytes.
pub(super) const ALIGNMENT: usize = 512;

/// The kinds of copies between GPUs.
#[derive(Debug, Clone, Copy)]
pub(super) enum CopyKind {
    /// Partial sums, to the GPU that owns the rows.
    Parts,
    /// Normalized rows, from the GPU that owns them.
    Norms,
}

/// The receive buffers of one GPU, which other GPUs write by peer-to-peer copies.
pub(super) struct ReceiveArea {
    area: Buffer,
    pub(super) place: ShardRank,
    size: [usize; 2],
}

impl ReceiveArea {
    /// Size in bytes for `ranks` ranks.
    pub(super) fn bytes(ranks: usize, size @ [tokens, hidden]: [usize; 2]) -> usize {
        2 * ALIGNMENT + (ranks - 1) * Self::parts_bytes(ranks, size) + 2 * tokens * hidden
    }

    /// Maximum bytes of the partial sums that one GPU sends to another.
    pub(super) fn parts_bytes(ranks: usize, [tokens, hidden]: [usize; 2]) -> usize {
        let rows = tokens / ranks + ROW_TILES[0];
        (rows * (2 * hidden + 4) + ALIGNMENT).next_multiple_of(ALIGNMENT)
    }

    /// Stride in bytes between the partial sums of two senders.
    pub(super) fn sender_stride(&self) -> usize {
        Self::parts_bytes(self.place.ranks, self.size)
    }

    /// The index of rank `of` among the senders to this GPU.
    pub(super) fn sender_index(&self, of: usize) -> usize {
        of - usize::from(of > self.place.rank)
    }

    /// The flags that are set after copies of a kind, from the nth sender's on.
    pub(super) fn flags(&self, what: CopyKind, nth: usize) -> Result<Arc<Buffer>, OpError> {
        let (kind, before) = (what as usize * ALIGNMENT, nth * Mark::APART);
        part(&self.area, kind + before..kind + (self.place.ranks - 1) * Mark::APART)
    }

    /// The partial sums of several senders: from byte `bytes.start` of sender `nth` to byte `bytes.end` of sender `last`.
    pub(super) fn parts(
        &self,
        nth: usize,
        bytes: Range<usize>,
        last: usize,
    ) -> Result<Arc<Buffer>, OpError> {
        let of = |nth: usize| 2 * ALIGNMENT + nth * self.sender_stride();
        part(&self.area, of(nth) + bytes.start..of(last) + bytes.end)
    }

    /// Normalized rows of all GPUs `[tokens, hidden]` bf16.
    pub(super) fn rows(&self, rows: Range<usize>) -> Result<Arc<Buffer>, OpError> {
        let [_, hidden] = self.size;
        let start = 2 * ALIGNMENT + (self.place.ranks - 1) * self.sender_stride();
        part(&self.area, start + 2 * rows.start * hidden..start + 2 * rows.end * hidden)
    }
}

/// The receive buffers of all GPUs and the stream of this GPU's copies.
pub(in crate::cuda) struct ReceiveBuffers {
    pub(super) copies: Stream,
    /// The values `1..=FLAG_VALUES` as u32; a flag is set by copying one of them.
    flag_values: Buffer,
    /// The receive buffers by rank.
    pub(super) places: Vec<ReceiveArea>,
    /// Number of copies of each kind so far, equal on all ranks because they make the same calls.
    copies_made: [AtomicUsize; 2],
    pub(super) rank: usize,
    /// Maximum tokens of a pass.
    pub(super) tokens: usize,
}

/// Minimum tokens of a pass whose rows are divided over the ranks. Shorter passes are slower divided, because each part has
/// its own GEMM, wait and copies. The value for four ranks is interpolated between measured lengths; the one for eight is not
/// measured.
pub(super) fn min_divided_tokens(ranks: usize) -> usize {
    match ranks {
        0..=2 => 256,
        3..=4 => 2560,
        _ => 6144,
    }
}

/// Maximum tokens of a divided pass and the bytes of its receive buffers on each GPU; `None` if passes are not divided.
pub(in crate::cuda) fn receive_buffers_size(
    of: &Architecture,
    tokens: usize,
) -> Option<(usize, usize)> {
    let ranks = of.place.ranks;
    let fits = of.hidden.is_multiple_of(8) && of.hidden <= OwnedRowReduction::WIDEST;
    let fits = fits && (2..=PEERS).contains(&ranks) && tokens >= min_divided_tokens(ranks);
    fits.then(|| (tokens, ReceiveArea::bytes(ranks, [tokens, of.hidden])))
}

impl ReceiveBuffers {
    /// Bytes of the source of flag values, which is separate from the receive buffers.
    pub(in crate::cuda) const FLAG_VALUE_BYTES: usize = 4 * FLAG_VALUES;

    /// Receive buffers in `areas`, one zeroed buffer on each rank's GPU.
    pub(in crate::cuda) fn new(
        cuda: &Cuda,
        areas: Vec<Buffer>,
        rank: usize,
        size @ [tokens, _]: [usize; 2],
    ) -> Result<Self, DeviceError> {
        let flag_values: Vec<u8> = (1..=FLAG_VALUES as u32).flat_map(u32::to_le_bytes).collect();
        let ranks = areas.len();
        let places = areas.into_iter().enumerate();
        let places =
            places.map(|(rank, area)| ReceiveArea { area, place: ShardRank { rank, ranks }, size });
        Ok(Self {
            copies: cuda.new_stream()?,
            flag_values: cuda.stream().upload(&flag_values)?,
            places: places.collect(),
            copies_made: Default::default(),
            rank,
            tokens,
        })
    }

    pub(super) fn here(&self) -> &ReceiveArea {
        &self.places[self.rank]
    }

    /// The other ranks, in the order of sending.
    pub(super) fn others(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.places.len());
        (1..ranks).map(move |turn| (rank + turn) % ranks)
    }

    /// The value of the flags after the next copies of a kind.
    pub(super) fn next_flag_value(&self, what: CopyKind) -> u32 {
        (self.copies_made[what as usize].fetch_add(1, Ordering::Relaxed) % FLAG_VALUES) as u32 + 1
    }

    /// Enqueues a copy to a rank and then of its flag on the copy stream.
    pub(super) fn send(
        &self,
        (what, turn): (CopyKind, u32),
        rank: usize,
        [from, to]: [&Buffer; 2],
    ) -> Result<(), OpError> {
        let there = &self.places[rank];
        let flag = there.flags(what, there.sender_index(self.rank))?;
        let value = part(&self.flag_values, 4 * (turn as usize - 1)..4 * turn as usize)?;
        self.copies.copy(from, to, from.bytes()).map_err(device_error)?;
        self.copies.copy(&value, &flag, 4).map_err(device_error)
    }

    /// The flag that the nth sender sets on this GPU, with the value to wait for.
    pub(super) fn flag(&self, (what, turn): (CopyKind, u32), nth: usize) -> Result<Mark, OpError> {
        Ok(Mark { of: self.here().flags(what, nth)?, turn })
    }
}

/// A range of a buffer as a kernel argument.
pub(super) fn part(of: &Buffer, bytes: Range<usize>) -> Result<Arc<Buffer>, OpError> {
    of.part(bytes.start, bytes.len()).map(Arc::new).map_err(device_error)
}
