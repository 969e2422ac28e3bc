//! Prompts over two GPUs, each of which keeps the residual stream of half of the rows: what it has made of the other half it sends there,
//! and what it makes of its own, normalised, comes back. Copies run beside the products of the half that needs none of them.
//!
//! Of each sum, on each GPU:
//!
//! ```text
//! kernels     add, their half | add, own half | sum and norm of own half | product, own half | product, their half
//! copies                      | parts of their half                      | own half's norm   |
//! ```
//!
//! The kernel of the sum waits for the parts that the other GPU copies here, a kernel before the last product for its rows of the norm.
//! Neither waits for ever: the copy that a kernel waits for here was asked for before any kernel there that waits for this GPU, and a kernel
//! that waits leaves room for others, so that it holds up no copy, whatever the driver makes one by. One place of each kind is enough: a GPU copies parts
//! again when it has read the norms that were made of the last ones, and its next norms when the next parts are there, which were made of
//! the last norms.

use super::pass::device_error;
use super::run::Run;
use super::weights::CudaProjection;
use crate::Architecture;
use crate::program::{Input, RmsNorm};
use device::cuda::{Buffer, Cuda, CudaError, Event, Stream};
use kernels::decoder::{JoinOwn, Mark};
use kernels::linear::{Finish, LinearCall, Out};
use kernels::{DType, OpError, Tensor, decoder};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tokens from which on two halves are worth their launches.
const LEAST: usize = 256;
/// Rows of which a half is a multiple, as far as it can be: those of a tile of products, and for short prompts fewer.
const TILE: [usize; 2] = [256, 64];
/// Numbers that a mark is set to in turn.
const TURNS: usize = 256;
/// Bytes between places.
const APART: usize = 512;

/// What one GPU makes of rows on the way to another.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Parts,
    Norms,
}

/// Where another GPU's copy engine writes.
struct Places {
    /// Set behind each copy of a kind.
    marks: [Arc<Buffer>; 2],
    /// What the other GPU has made of this one's rows: sums in bf16, squares in f32.
    parts: Arc<Buffer>,
    /// The rows of both, normalised, `[tokens, hidden]` bf16.
    rows: Arc<Buffer>,
}

impl Places {
    fn of(area: &Buffer, [tokens, hidden]: [usize; 2]) -> Result<Self, CudaError> {
        let part = |start, bytes| area.part(start, bytes).map(Arc::new);
        let parts = parts_bytes([tokens, hidden]);
        Ok(Self {
            marks: [part(0, 4)?, part(APART, 4)?],
            parts: part(2 * APART, parts)?,
            rows: part(2 * APART + parts, 2 * tokens * hidden)?,
        })
    }
}

/// Bytes of the parts of the larger half of so many tokens.
fn parts_bytes([tokens, hidden]: [usize; 2]) -> usize {
    let half = tokens / 2 + TILE[0];
    (half * (2 * hidden + 4) + APART).next_multiple_of(APART)
}

/// Memory that two GPUs copy to, and the stream of a GPU's copies.
pub(super) struct Halves {
    copies: Stream,
    /// `1..=TURNS` in u32.
    turns: Buffer,
    here: Places,
    there: Places,
    /// Copies of each kind so far: as many here as there, since all ranks make the same calls.
    made: [AtomicUsize; 2],
    rank: usize,
    /// Tokens of a pass at most.
    tokens: usize,
}

/// Tokens of a pass for which such memory is kept, and its bytes on each GPU.
pub(super) fn room(of: &Architecture, tokens: usize) -> Option<(usize, usize)> {
    let fits = of.hidden.is_multiple_of(8) && of.hidden <= JoinOwn::WIDEST;
    let fits = fits && of.place.ranks == 2 && tokens >= LEAST;
    let size = [tokens, of.hidden];
    fits.then(|| (tokens, 2 * APART + parts_bytes(size) + 2 * tokens * of.hidden))
}

impl Halves {
    /// Bytes beside what both write to.
    pub(super) const TURNS: usize = 4 * TURNS;

    /// Over as many bytes of both GPUs, zeroed once.
    pub(super) fn new(
        cuda: &Cuda,
        [here, there]: [&Buffer; 2],
        rank: usize,
        size @ [tokens, _]: [usize; 2],
    ) -> Result<Self, CudaError> {
        let turns: Vec<u8> = (1..=TURNS as u32).flat_map(u32::to_le_bytes).collect();
        Ok(Self {
            copies: cuda.new_stream()?,
            turns: cuda.stream().upload(&turns)?,
            here: Places::of(here, size)?,
            there: Places::of(there, size)?,
            made: Default::default(),
            rank,
            tokens,
        })
    }

    /// Copies to the other GPU what is there at an event, and then sets its mark; gives this GPU's, which the other one sets.
    fn send(&self, what: Sent, [from, to]: [&Buffer; 2], after: &Event) -> Result<Mark, CudaError> {
        let turn = self.made[what as usize].fetch_add(1, Ordering::Relaxed) % TURNS;
        self.copies.wait(after)?;
        self.copies.copy(from, to, from.bytes())?;
        let number = self.turns.part(4 * turn, 4)?;
        self.copies.copy(&number, &self.there.marks[what as usize], 4)?;
        Ok(Mark { of: Arc::clone(&self.here.marks[what as usize]), turn: turn as u32 + 1 })
    }
}

/// The halves of a pass.
pub(super) struct Halved {
    halves: Arc<Halves>,
    layout: Layout,
    stream: RefCell<Kept>,
}

/// What a GPU makes of all rows: sums of the first half in bf16, squares of both in f32, sums of the second half, so that what belongs to
/// a half lies together.
#[derive(Debug, Clone, Copy)]
struct Layout {
    tokens: usize,
    hidden: usize,
    /// Where the second half begins.
    cut: usize,
}

impl Layout {
    fn new([tokens, hidden]: [usize; 2]) -> Self {
        let tile = TILE[usize::from(tokens < 8 * TILE[0])];
        Self { tokens, hidden, cut: (tokens / 2).next_multiple_of(tile) }
    }

    /// Rows that a rank keeps.
    fn rows(self, rank: usize) -> Range<usize> {
        if rank == 0 { 0..self.cut } else { self.cut..self.tokens }
    }

    /// Bytes of their sums.
    fn sums(self, rank: usize) -> Range<usize> {
        let before = (2 * self.cut * self.hidden + 4 * self.tokens).next_multiple_of(APART);
        let start = if rank == 0 { 0 } else { before };
        start..start + 2 * self.rows(rank).len() * self.hidden
    }

    /// Bytes of their squares.
    fn squares(self, rank: usize) -> Range<usize> {
        let (start, rows) = (self.sums(0).end, self.rows(rank));
        start + 4 * rows.start..start + 4 * rows.end
    }

    /// Bytes that go to who keeps them.
    fn sent(self, rank: usize) -> Range<usize> {
        match rank {
            0 => 0..self.squares(0).end,
            _ => self.squares(1).start..self.sums(1).end,
        }
    }
}

/// Where the residual stream is.
enum Kept {
    /// Here, all of it.
    Whole,
    /// Its parts are under way: the sum of its own half is taken when somebody reads it.
    Parts(Parts, Mark, Option<(usize, f64)>),
    /// Its own half is here, and the norm of it that was asked for, by the address of its weight. What was sent stays until the other
    /// GPU's rows are waited for, which says that it has arrived.
    Normed { by: u64, theirs: Option<(Mark, Parts)> },
}

/// What this GPU has made of all rows, until the sum of its own is taken.
pub(super) struct Parts {
    all: Buffer,
    /// `[tokens]` f32.
    pub(super) squares: Tensor,
    /// When the other GPU's are there.
    sent: Option<Event>,
}

impl Halved {
    /// The halves of so many tokens, where they are worth it.
    pub(super) fn new(halves: &Arc<Halves>, size @ [tokens, _]: [usize; 2]) -> Option<Self> {
        let worth = (LEAST..=halves.tokens).contains(&tokens);
        let (halves, layout) = (Arc::clone(halves), Layout::new(size));
        worth.then(|| Self { halves, layout, stream: RefCell::new(Kept::Whole) })
    }

    /// Whether all rows of the norm are there.
    fn has_met(&self) -> bool {
        matches!(&*self.stream.borrow(), Kept::Normed { theirs: None, .. })
    }

    /// Which of the ranks this is, and the other one.
    fn ranks(&self) -> [usize; 2] {
        [self.halves.rank, 1 - self.halves.rank]
    }
}

/// A part of a buffer, as arguments are given it.
fn part(of: &Buffer, bytes: Range<usize>) -> Result<Arc<Buffer>, OpError> {
    of.part(bytes.start, bytes.len()).map(Arc::new).map_err(device_error)
}

fn refused(what: &str) -> OpError {
    device_error(CudaError::Refused { what: what.to_owned() })
}

impl Run<'_> {
    /// Memory for what this GPU makes of rows.
    pub(super) fn parts(&self, halved: &Halved) -> Result<Parts, OpError> {
        let layout = halved.layout;
        let all = self.stream.allocate(layout.sums(1).end).map_err(device_error)?;
        let squares = part(&all, layout.squares(0).start..layout.squares(1).end)?;
        let squares = Tensor::on_gpu(squares, &[layout.tokens], DType::F32)?;
        Ok(Parts { all, squares, sent: None })
    }

    /// Makes them by a projection of rows x of all tokens, those of the other GPU first.
    pub(super) fn add_halves(
        &self,
        halved: &Halved,
        parts: &mut Parts,
        call: &LinearCall<'_>,
    ) -> Result<(), OpError> {
        let (layout, [own, other]) = (halved.layout, halved.ranks());
        for rank in [other, own] {
            let rows = layout.rows(rank);
            let x = call.x.rows(rows.start, rows.len())?;
            let sums = part(&parts.all, layout.sums(rank))?;
            let sums = Tensor::on_gpu(sums, &[rows.len(), layout.hidden], DType::Bf16)?;
            self.call(&LinearCall { x: &x, ..*call }.into([&sums]))?;
            if rank == other {
                parts.sent = Some(self.stream.record().map_err(device_error)?);
            }
        }
        Ok(())
    }

    /// Makes them of sums `[tokens, hidden]` in float32, those of the other GPU first.
    pub(super) fn narrow_halves(&self, halved: &Halved, sums: &Tensor) -> Result<Parts, OpError> {
        let (layout, [own, other]) = (halved.layout, halved.ranks());
        let mut parts = self.parts(halved)?;
        for rank in [other, own] {
            let rows = layout.rows(rank);
            let from = sums.rows(rows.start, rows.len())?;
            let both = [from.on()?, &part(&parts.all, layout.sums(rank))?];
            self.push(decoder::narrow(self.device, both, rows.len() * layout.hidden)?)?;
            if rank == other {
                parts.sent = Some(self.stream.record().map_err(device_error)?);
            }
        }
        Ok(parts)
    }

    /// Sends the other GPU's; the norm is that of the rows they were made of.
    pub(super) fn send_parts(
        &self,
        halved: &Halved,
        parts: Parts,
        norm: Option<(usize, f64)>,
    ) -> Result<(), OpError> {
        let Some(sent) = &parts.sent else { return Err(refused("nothing was added to halves")) };
        let from = part(&parts.all, halved.layout.sent(halved.ranks()[1]))?;
        let both = [&*from, &halved.halves.there.parts];
        let mark = halved.halves.send(Sent::Parts, both, sent).map_err(device_error)?;
        *halved.stream.borrow_mut() = Kept::Parts(parts, mark, norm);
        Ok(())
    }

    /// The residual stream, normalised, where this GPU keeps half of it: its rows are there, the other ones' from [`Self::meet`] on.
    fn halved(&self, x: Input<'_>) -> Result<Option<(&Halved, Tensor)>, OpError> {
        let halved = self.share.as_ref().and_then(|share| share.halved.as_ref());
        let Some(halved) = halved.filter(|_| x.rows.is_none()) else { return Ok(None) };
        let Some(norm) = x.norm else {
            return Err(refused("halves of a stream are read by a norm"));
        };
        let by = norm.weight.on()?.address();
        let kept = &mut *halved.stream.borrow_mut();
        match std::mem::replace(kept, Kept::Whole) {
            Kept::Whole => return Ok(None),
            Kept::Parts(parts, mark, squares) => {
                self.join_own(halved, &parts, (&mark, squares), norm)?;
                let done = self.stream.record().map_err(device_error)?;
                let halves = &halved.halves;
                let [from, to] =
                    [self.own_norms(halved, &halves.here)?, self.own_norms(halved, &halves.there)?];
                let mark = halves.send(Sent::Norms, [&from, &to], &done).map_err(device_error)?;
                *kept = Kept::Normed { by, theirs: Some((mark, parts)) };
            }
            // Another norm of the same rows would be written where the other GPU may still read this one.
            Kept::Normed { by: other, .. } if other != by => {
                return Err(refused("two norms read the same halves of a stream"));
            }
            normed => *kept = normed,
        }
        let shape = self.x.shape();
        let rows = Tensor::on_gpu(Arc::clone(&halved.halves.here.rows), shape, DType::Bf16)?;
        Ok(Some((halved, rows)))
    }

    /// This GPU's rows of the norm, in a GPU's places.
    fn own_norms(&self, halved: &Halved, of: &Places) -> Result<Arc<Buffer>, OpError> {
        let (rows, row) = (halved.layout.rows(halved.ranks()[0]), 2 * halved.layout.hidden);
        part(&of.rows, rows.start * row..rows.end * row)
    }

    /// The sum of this GPU's rows, and their norm.
    fn join_own(
        &self,
        halved: &Halved,
        parts: &Parts,
        (mark, squares): (&Mark, Option<(usize, f64)>),
        norm: &RmsNorm,
    ) -> Result<(), OpError> {
        let (layout, [own, _]) = (halved.layout, halved.ranks());
        let (rows, here) = (layout.rows(own), &halved.halves.here);
        // What came lies from the start on as it was sent.
        let came = |bytes: Range<usize>| {
            let start = layout.sent(own).start;
            part(&here.parts, bytes.start - start..bytes.end - start)
        };
        let both = |bytes: Range<usize>| Ok([part(&parts.all, bytes.clone())?, came(bytes)?]);
        let (sums, both_squares): ([_; 2], [_; 2]) =
            (both(layout.sums(own))?, both(layout.squares(own))?);
        let x = self.x.rows(rows.start, rows.len())?;
        let join = JoinOwn {
            added: sums.each_ref(),
            squares: squares.map(|(width, eps)| (both_squares.each_ref(), width, eps)),
            mark,
            x: x.on()?,
            factor: self.residual,
            norm: (norm.weight.on()?, norm.norm.eps),
            h: &self.own_norms(halved, here)?,
            count: rows.len(),
            hidden: layout.hidden,
        };
        self.push(decoder::join_own(self.device, &join)?)
    }

    /// From here on the other GPU's rows of the norm are there.
    fn meet(&self, halved: &Halved) -> Result<(), OpError> {
        let Kept::Normed { theirs, .. } = &mut *halved.stream.borrow_mut() else { return Ok(()) };
        // The parts' memory is free for what stands behind this in the stream.
        let Some((mark, _parts)) = theirs.take() else { return Ok(()) };
        self.push(decoder::meet(self.device, &mark)?)
    }

    /// All rows of the residual stream, normalised, where this GPU keeps half of it.
    pub(super) fn whole_norm(&self, x: Input<'_>) -> Result<Option<Tensor>, OpError> {
        let Some((halved, rows)) = self.halved(x)? else { return Ok(None) };
        self.meet(halved)?;
        Ok(Some(rows))
    }

    /// Projects rows into tensors of all tokens: where this GPU keeps half of the stream, its own rows first.
    pub(super) fn project_rows(
        &self,
        of: &CudaProjection,
        x: Input<'_>,
        (finish, out): (Finish<'_>, Option<Out>),
        made: &[Tensor],
    ) -> Result<(), OpError> {
        let scale = x.factor;
        let Some((halved, h)) = self.halved(x)? else {
            let (x, norm) = self.taken(x)?;
            return self.call(&LinearCall { norm, scale, finish, out, ..of.of(&x) }.into(made));
        };
        // What another projection has waited for is all there.
        if halved.has_met() {
            return self.call(&LinearCall { scale, finish, out, ..of.of(&h) }.into(made));
        }
        let [own, other] = halved.ranks();
        for rank in [own, other] {
            if rank == other {
                self.meet(halved)?;
            }
            let rows = halved.layout.rows(rank);
            let of_rows = |all: &Tensor| all.rows(rows.start, rows.len());
            let x = of_rows(&h)?;
            let made = made.iter().map(of_rows).collect::<Result<Vec<_>, _>>()?;
            self.call(&LinearCall { scale, finish, out, ..of.of(&x) }.into(&made))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one rank sends is where the other one reads it, 16-byte aligned, and nothing lies over another thing.
    #[test]
    fn halves_lie_side_by_side() {
        for tokens in [256, 257, 300, 380, 511, 2047, 2048, 2049, 4095, 4096, 8191, 8192] {
            for hidden in [64, 2048, 4096, 8192] {
                let layout = Layout::new([tokens, hidden]);
                assert_eq!([layout.rows(0).start, layout.rows(1).end], [0, tokens]);
                assert_eq!(layout.rows(0).end, layout.rows(1).start);
                assert!(!layout.rows(1).is_empty(), "{layout:?}");
                let all = [layout.sums(0), layout.squares(0), layout.squares(1), layout.sums(1)];
                assert!(all.windows(2).all(|two| two[0].end <= two[1].start), "{all:?}");
                for rank in [0, 1] {
                    let (sent, sums) = (layout.sent(rank), layout.sums(rank));
                    assert_eq!(sums.len(), 2 * hidden * layout.rows(rank).len());
                    assert_eq!(layout.squares(rank).len(), 4 * layout.rows(rank).len());
                    for of in [&sums, &layout.squares(rank)] {
                        assert!(sent.start <= of.start && of.end <= sent.end, "{layout:?}");
                    }
                    assert_eq!([sums.start % 16, (sums.start - sent.start) % 16], [0, 0]);
                    assert!(sent.len() <= parts_bytes([tokens, hidden]), "{layout:?}");
                }
                let sent = [layout.sent(0), layout.sent(1)];
                assert!(sent[0].end <= sent[1].start, "{sent:?}");
            }
        }
    }
}
