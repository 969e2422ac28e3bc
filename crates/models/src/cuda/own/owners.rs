//! Memory that the GPUs of a model's ranks copy to.

use super::super::pass::device_error;
use crate::Architecture;
use architectures::Place;
use device::cuda::{Buffer, Cuda, CudaError, Stream};
use kernels::OpError;
use kernels::decoder::{JoinOwn, Mark, PEERS};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of which a part is a multiple, as far as it can be: those of a tile of products, and for short prompts fewer.
pub(super) const TILE: [usize; 2] = [256, 64];
/// Numbers that a mark is set to in turn.
const TURNS: usize = 256;
/// Bytes between places.
pub(super) const APART: usize = 512;

/// What one GPU makes of rows on the way to another.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sent {
    Parts,
    Norms,
}

/// Where other GPUs' copy engines write in one GPU's memory.
pub(super) struct Places {
    area: Buffer,
    pub(super) place: Place,
    size: [usize; 2],
}

impl Places {
    /// Bytes for so many ranks.
    pub(super) fn bytes(ranks: usize, size @ [tokens, hidden]: [usize; 2]) -> usize {
        2 * APART + (ranks - 1) * Self::parts_bytes(ranks, size) + 2 * tokens * hidden
    }

    /// Bytes of the parts of any GPU's rows.
    pub(super) fn parts_bytes(ranks: usize, [tokens, hidden]: [usize; 2]) -> usize {
        let most = tokens / ranks + TILE[0];
        (most * (2 * hidden + 4) + APART).next_multiple_of(APART)
    }

    /// Bytes from one other rank's parts to the next one's.
    pub(super) fn apart(&self) -> usize {
        Self::parts_bytes(self.place.ranks, self.size)
    }

    /// Which of the others' places is a rank's.
    pub(super) fn nth(&self, of: usize) -> usize {
        of - usize::from(of > self.place.rank)
    }

    /// Set behind each copy of a kind: the marks from the nth other rank's on.
    pub(super) fn marks(&self, what: Sent, nth: usize) -> Result<Arc<Buffer>, OpError> {
        let (kind, before) = (what as usize * APART, nth * Mark::APART);
        part(&self.area, kind + before..kind + (self.place.ranks - 1) * Mark::APART)
    }

    /// What other ranks have made of this one's rows: these bytes of the nth's, and of those up to the last one's.
    pub(super) fn parts(
        &self,
        nth: usize,
        bytes: Range<usize>,
        last: usize,
    ) -> Result<Arc<Buffer>, OpError> {
        let of = |nth: usize| 2 * APART + nth * self.apart();
        part(&self.area, of(nth) + bytes.start..of(last) + bytes.end)
    }

    /// The rows of all, normalised, `[tokens, hidden]` bf16: so many from one on.
    pub(super) fn rows(&self, rows: Range<usize>) -> Result<Arc<Buffer>, OpError> {
        let [_, hidden] = self.size;
        let start = 2 * APART + (self.place.ranks - 1) * self.apart();
        part(&self.area, start + 2 * rows.start * hidden..start + 2 * rows.end * hidden)
    }
}

/// Memory that GPUs copy to, and the stream of a GPU's copies.
pub(in crate::cuda) struct Owners {
    pub(super) copies: Stream,
    /// `1..=TURNS` in u32.
    turns: Buffer,
    /// Of all ranks.
    pub(super) places: Vec<Places>,
    /// Copies of each kind so far: as many here as there, since all ranks make the same calls.
    made: [AtomicUsize; 2],
    pub(super) rank: usize,
    /// Tokens of a pass at most.
    pub(super) tokens: usize,
}

/// Tokens from which on so many ranks keep parts of the rows: of fewer the host takes longer, for each part has a product, a wait and
/// copies of its own. Over four it lies between lengths that were measured; over eight it is a guess.
pub(super) fn least(ranks: usize) -> usize {
    match ranks {
        0..=2 => 256,
        3..=4 => 2560,
        _ => 6144,
    }
}

/// Tokens of a pass for which such memory is kept, and its bytes on each GPU.
pub(in crate::cuda) fn room(of: &Architecture, tokens: usize) -> Option<(usize, usize)> {
    let ranks = of.place.ranks;
    let fits = of.hidden.is_multiple_of(8) && of.hidden <= JoinOwn::WIDEST;
    let fits = fits && (2..=PEERS).contains(&ranks) && tokens >= least(ranks);
    fits.then(|| (tokens, Places::bytes(ranks, [tokens, of.hidden])))
}

impl Owners {
    /// Bytes beside what others write to.
    pub(in crate::cuda) const TURNS: usize = 4 * TURNS;

    /// Over as many bytes of each rank's GPU, zeroed once.
    pub(in crate::cuda) fn new(
        cuda: &Cuda,
        areas: Vec<Buffer>,
        rank: usize,
        size @ [tokens, _]: [usize; 2],
    ) -> Result<Self, CudaError> {
        let turns: Vec<u8> = (1..=TURNS as u32).flat_map(u32::to_le_bytes).collect();
        let ranks = areas.len();
        let places = areas.into_iter().enumerate();
        let places = places.map(|(rank, area)| Places { area, place: Place { rank, ranks }, size });
        Ok(Self {
            copies: cuda.new_stream()?,
            turns: cuda.stream().upload(&turns)?,
            places: places.collect(),
            made: Default::default(),
            rank,
            tokens,
        })
    }

    pub(super) fn here(&self) -> &Places {
        &self.places[self.rank]
    }

    /// The other ranks, in the order of turns.
    pub(super) fn others(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank, self.places.len());
        (1..ranks).map(move |turn| (rank + turn) % ranks)
    }

    /// The number that marks have behind the next copies of a kind.
    pub(super) fn next_turn(&self, what: Sent) -> u32 {
        (self.made[what as usize].fetch_add(1, Ordering::Relaxed) % TURNS) as u32 + 1
    }

    /// Copies to a rank, behind what the copies wait for, and then sets its mark.
    pub(super) fn send(
        &self,
        (what, turn): (Sent, u32),
        rank: usize,
        [from, to]: [&Buffer; 2],
    ) -> Result<(), OpError> {
        let there = &self.places[rank];
        let mark = there.marks(what, there.nth(self.rank))?;
        let number = part(&self.turns, 4 * (turn as usize - 1)..4 * turn as usize)?;
        self.copies.copy(from, to, from.bytes()).map_err(device_error)?;
        self.copies.copy(&number, &mark, 4).map_err(device_error)
    }

    /// What a rank sets here.
    pub(super) fn mark(&self, (what, turn): (Sent, u32), nth: usize) -> Result<Mark, OpError> {
        Ok(Mark { of: self.here().marks(what, nth)?, turn })
    }
}

/// A part of a buffer, as arguments are given it.
pub(super) fn part(of: &Buffer, bytes: Range<usize>) -> Result<Arc<Buffer>, OpError> {
    of.part(bytes.start, bytes.len()).map(Arc::new).map_err(device_error)
}
