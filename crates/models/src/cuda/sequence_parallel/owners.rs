//! The memory that the GPUs of a model's ranks copy to.

use super::super::pass::device_error;
use crate::Architecture;
use architectures::ShardRank;
use device::cuda::{Buffer, Cuda, DeviceError, Stream};
use ops::OpError;
use ops_cuda::decoder::{Mark, OwnedRowReduction, PEERS};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows per part are a multiple of this where possible: the tile height of GEMMs, and less for short prompts.
pub(super) const TILE: [usize; 2] = [256, 64];
/// Number of distinct values of a flag.
const TURNS: usize = 256;
/// Alignment of buffers in bytes.
pub(super) const APART: usize = 512;

/// The kinds of copies between GPUs.
#[derive(Debug, Clone, Copy)]
pub(super) enum CopyKind {
    Parts,
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
        2 * APART + (ranks - 1) * Self::parts_bytes(ranks, size) + 2 * tokens * hidden
    }

    /// Bytes of the partial sums of any GPU's rows.
    pub(super) fn parts_bytes(ranks: usize, [tokens, hidden]: [usize; 2]) -> usize {
        let most = tokens / ranks + TILE[0];
        (most * (2 * hidden + 4) + APART).next_multiple_of(APART)
    }

    /// Stride in bytes between the partial sums of two senders.
    pub(super) fn apart(&self) -> usize {
        Self::parts_bytes(self.place.ranks, self.size)
    }

    /// The index of a rank among the senders.
    pub(super) fn nth(&self, of: usize) -> usize {
        of - usize::from(of > self.place.rank)
    }

    /// The flags that are set after each copy of a kind, starting at the nth sender.
    pub(super) fn marks(&self, what: CopyKind, nth: usize) -> Result<Arc<Buffer>, OpError> {
        let (kind, before) = (what as usize * APART, nth * Mark::APART);
        part(&self.area, kind + before..kind + (self.place.ranks - 1) * Mark::APART)
    }

    /// A byte range of the partial sums received from sender `nth` to sender `last`.
    pub(super) fn parts(
        &self,
        nth: usize,
        bytes: Range<usize>,
        last: usize,
    ) -> Result<Arc<Buffer>, OpError> {
        let of = |nth: usize| 2 * APART + nth * self.apart();
        part(&self.area, of(nth) + bytes.start..of(last) + bytes.end)
    }

    /// Normalized rows of all GPUs `[tokens, hidden]` bf16.
    pub(super) fn rows(&self, rows: Range<usize>) -> Result<Arc<Buffer>, OpError> {
        let [_, hidden] = self.size;
        let start = 2 * APART + (self.place.ranks - 1) * self.apart();
        part(&self.area, start + 2 * rows.start * hidden..start + 2 * rows.end * hidden)
    }
}

/// The receive buffers of all GPUs and the stream of this GPU's copies.
pub(in crate::cuda) struct ReceiveBuffers {
    pub(super) copies: Stream,
    /// The values `1..=TURNS` in u32, the source of flag copies.
    turns: Buffer,
    /// The receive buffers by rank.
    pub(super) places: Vec<ReceiveArea>,
    /// Number of copies of each kind, equal on all ranks because they make the same calls.
    made: [AtomicUsize; 2],
    pub(super) rank: usize,
    /// Maximum tokens of a pass.
    pub(super) tokens: usize,
}

/// Minimum tokens of a divided pass. Shorter ones are slower because each part has its own GEMM, wait and copies. The
/// value for four ranks is interpolated between measured lengths; the one for eight is not measured.
pub(super) fn least(ranks: usize) -> usize {
    match ranks {
        0..=2 => 256,
        3..=4 => 2560,
        _ => 6144,
    }
}

/// Maximum tokens of a divided pass and the bytes of its receive buffers on each GPU; `None` if passes are not divided.
pub(in crate::cuda) fn room(of: &Architecture, tokens: usize) -> Option<(usize, usize)> {
    let ranks = of.place.ranks;
    let fits = of.hidden.is_multiple_of(8) && of.hidden <= OwnedRowReduction::WIDEST;
    let fits = fits && (2..=PEERS).contains(&ranks) && tokens >= least(ranks);
    fits.then(|| (tokens, ReceiveArea::bytes(ranks, [tokens, of.hidden])))
}

impl ReceiveBuffers {
    /// Bytes of the flag values, in addition to the receive buffers.
    pub(in crate::cuda) const TURNS: usize = 4 * TURNS;

    /// Uses a zeroed buffer on each rank's GPU.
    pub(in crate::cuda) fn new(
        cuda: &Cuda,
        areas: Vec<Buffer>,
        rank: usize,
        size @ [tokens, _]: [usize; 2],
    ) -> Result<Self, DeviceError> {
        let turns: Vec<u8> = (1..=TURNS as u32).flat_map(u32::to_le_bytes).collect();
        let ranks = areas.len();
        let places = areas.into_iter().enumerate();
        let places =
            places.map(|(rank, area)| ReceiveArea { area, place: ShardRank { rank, ranks }, size });
        Ok(Self {
            copies: cuda.new_stream()?,
            turns: cuda.stream().upload(&turns)?,
            places: places.collect(),
            made: Default::default(),
            rank,
            tokens,
        })
    }

    pub(super) fn here(&self) -> &ReceiveArea {
        &self.places[self.rank]
    }

    /// The other ranks, in the order of turns.
    pub(super) fn others(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.places.len());
        (1..ranks).map(move |turn| (rank + turn) % ranks)
    }

    /// The flag value after the next copies of a kind.
    pub(super) fn next_turn(&self, what: CopyKind) -> u32 {
        (self.made[what as usize].fetch_add(1, Ordering::Relaxed) % TURNS) as u32 + 1
    }

    /// Copies to a rank, in the order of the copy stream, then sets its flag.
    pub(super) fn send(
        &self,
        (what, turn): (CopyKind, u32),
        rank: usize,
        [from, to]: [&Buffer; 2],
    ) -> Result<(), OpError> {
        let there = &self.places[rank];
        let mark = there.marks(what, there.nth(self.rank))?;
        let number = part(&self.turns, 4 * (turn as usize - 1)..4 * turn as usize)?;
        self.copies.copy(from, to, from.bytes()).map_err(device_error)?;
        self.copies.copy(&number, &mark, 4).map_err(device_error)
    }

    /// The flag that a rank sets on this GPU.
    pub(super) fn mark(&self, (what, turn): (CopyKind, u32), nth: usize) -> Result<Mark, OpError> {
        Ok(Mark { of: self.here().marks(what, nth)?, turn })
    }
}

/// A range of a buffer as a kernel argument.
pub(super) fn part(of: &Buffer, bytes: Range<usize>) -> Result<Arc<Buffer>, OpError> {
    of.part(bytes.start, bytes.len()).map(Arc::new).map_err(device_error)
}
