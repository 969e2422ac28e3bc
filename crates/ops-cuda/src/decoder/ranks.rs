//! What stands around the sums of a model that is split over ranks. The contracts stand in `spread.cu`, `join.cu`,
//! `join_peers.cu`, `join_many.cu` and `gather.cu`.

use super::{NAME, THREADS, holds, int, launch, launch_apart};
use crate::{Planned, arguments, source};
use device::Device;
use device::cuda::{Buffer, DeviceError, GpuArch, KernelSource, Launch, Part};
use ops::{DType, OpError};
use std::sync::Arc;

const SPREAD: &[Part] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("spread.cu")];
const JOIN: &[Part] = &[source!("../include/order.cuh"), source!("join.cu")];
const JOIN_PEERS: &[Part] = &[source!("../include/order.cuh"), source!("join_peers.cu")];
const JOIN_MANY: &[Part] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("join_many.cu")];
const GATHER: &[Part] = &[source!("../include/order.cuh"), source!("gather.cu")];

/// Values of a block of `join.cu` and `gather.cu`.
const BLOCK: usize = 1024;

pub(super) fn spread_source(dtype: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_spread", SPREAD, arch).define("DTYPE", dtype)
}

pub(super) fn join_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_join", JOIN, arch)
}

pub(super) fn join_peers_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_join_peers", JOIN_PEERS, arch)
}

pub(super) fn join_many_source(added: DType, arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_join_many", JOIN_MANY, arch)
        .define("DTYPE", DType::Bf16)
        .define("ADDED_F32", u8::from(added == DType::F32))
}

pub(super) fn gather_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_gather", GATHER, arch)
}

arguments! {
    SpreadRows: decoder_spread { x: Pointer, w: Pointer, o: Pointer, squares: Pointer, width: i32 }
}

arguments! {
    /// Width of rows, and what sums are times before they go onto the stream.
    Onto { hidden: i32, inverse_width: f32, eps: f32, factor: f32 }
}

arguments! {
    /// Where ranks put what they add.
    Boxes {
        turns: Pointer, inbox0: Nullable, inbox1: Nullable, inbox2: Nullable, inbox3: Nullable, inbox4: Nullable,
        inbox5: Nullable, inbox6: Nullable, inbox7: Nullable, rank: i32, ranks: i32,
    }
}

arguments! { Joined: decoder_join { added: Pointer, squares: Nullable, x: Pointer, onto: (Onto) } }

arguments! {
    JoinedPeers: decoder_join_peers {
        added: Pointer, rows: Nullable, width: i32, x: Pointer, boxes: (Boxes), onto: (Onto),
    }
}

arguments! {
    JoinedMany: decoder_join_many {
        added: Pointer, squares: Nullable, x: Pointer, boxes: (Boxes), count: i32, rows: i32, onto: (Onto),
    }
}

arguments! { Gathered: decoder_gather { from: Pointer, to: Pointer, room: i32, whole: i32 } }

/// Rows of a norm of which this rank has a part.
#[derive(Debug)]
pub struct Spread<'a> {
    /// Storage type of x and o, of 16 bits.
    pub dtype: DType,
    /// `[count, width]`.
    pub x: &'a Arc<Buffer>,
    /// The norm's weight, `[width]` f32.
    pub w: &'a Arc<Buffer>,
    /// `[count, width]`.
    pub o: &'a Arc<Buffer>,
    /// `[count]` f32.
    pub squares: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// A multiple of 8.
    pub width: usize,
}

/// Plans `o = x * w` and the sum of x's squares.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width does not fit, or the kernel cannot be had.
pub fn spread(device: &Device, call: &Spread<'_>) -> Result<Planned, OpError> {
    let Spread { dtype, x, w, o, squares, count, width } = *call;
    multiple(width, 8)?;
    for (name, buffer, bytes) in [
        ("x", x, 2 * count * width),
        ("w", w, 4 * width),
        ("o", o, 2 * count * width),
        ("squares", squares, 4 * count),
    ] {
        holds(name, buffer, bytes)?;
    }
    let args = SpreadRows { x, w, o, squares, width: int(width)? };
    let shape = Launch::new([count as u32, 1, 1], THREADS, 0);
    let held = [x, w, o, squares];
    launch(device, |arch| spread_source(dtype, arch), (shape, args.into()), &held)
}

/// Sums that go onto the residual stream.
#[derive(Debug)]
pub struct Join<'a> {
    /// The sums `[count, hidden]` f32.
    pub added: &'a Arc<Buffer>,
    /// The squares of the rows that they were made of, `[count]` f32, the rows' whole width, and what is added to the mean.
    pub squares: Option<(&'a Arc<Buffer>, usize, f64)>,
    /// `[count, hidden]` f32.
    pub x: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// A multiple of 4.
    pub hidden: usize,
    /// What the sums are times.
    pub factor: f64,
}

impl Onto<'_> {
    /// Over the size of rows of such a width.
    fn over(self, width: usize, eps: f64) -> Self {
        Self { inverse_width: (1.0 / width as f64) as f32, eps: eps as f32, ..self }
    }
}

impl<'a> Join<'a> {
    /// What its kernels have in common, once its buffers are known to hold what they read: of `added` numbers of this type.
    fn onto(&self, added: DType) -> Result<Onto<'a>, OpError> {
        let Self { squares, count, hidden, factor, .. } = *self;
        holds("added", self.added, added.bytes() * count * hidden)?;
        holds("x", self.x, 4 * count * hidden)?;
        if let Some((squares, ..)) = squares {
            holds("squares", squares, 4 * count)?;
        }
        let (width, eps) = squares.map_or((1, 0.0), |(_, width, eps)| (width, eps));
        let (hidden, factor) = (int(hidden)?, factor as f32);
        Ok(Onto { hidden, inverse_width: 0.0, eps: 0.0, factor }.over(width, eps))
    }

    fn squares(&self) -> Option<&'a Arc<Buffer>> {
        self.squares.map(|(squares, ..)| squares)
    }

    /// Its buffers.
    fn held(&self) -> Vec<&'a Arc<Buffer>> {
        [self.added, self.x].into_iter().chain(self.squares()).collect()
    }

    /// The grid of blocks of [`BLOCK`] values.
    fn grid(&self) -> Launch {
        let of_row = self.hidden.div_ceil(BLOCK) as u32;
        Launch::new([self.count as u32, of_row, 1], THREADS, 0)
    }
}

/// Plans `x += factor * added`, over the rows' size where their squares are given.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width does not fit, or the kernel cannot be had.
pub fn join(device: &Device, call: &Join<'_>) -> Result<Planned, OpError> {
    multiple(call.hidden, 4)?;
    let squares = call.squares().map(|of| &**of);
    let args = Joined { added: call.added, squares, x: call.x, onto: call.onto(DType::F32)? };
    launch_apart(device, join_source, (call.grid(), args.into()), &call.held())
}

/// Ranks that write to one another's memory, at most.
pub const PEERS: usize = 8;

/// Places for blocks that meet those of other ranks.
struct Meeting {
    blocks: usize,
    /// Words of a block, of each rank, of each of two turns.
    slot: usize,
    /// Words of a block, of each rank, behind them.
    marks: usize,
}

/// `BLOCKS` and `SLOT` of `join_peers.cu`.
const FEW: Meeting = Meeting { blocks: 64, slot: 2 * BLOCK + 8, marks: 0 };
/// `BLOCKS` and `SLOT` of `join_many.cu`, and its `VALUES` and `ROWS`.
const MANY: Meeting = Meeting { blocks: 256, slot: MANY_VALUES / 2 + MANY_ROWS, marks: 1 };
const MANY_VALUES: usize = 8192;
const MANY_ROWS: usize = 32;
/// Ranks up to which a part for each other rank is no more than what a library sends in float32 by a ring.
const MANY_RANKS: usize = 4;

impl Meeting {
    const fn bytes(&self, ranks: usize) -> usize {
        4 * ranks * self.blocks * (2 * self.slot + self.marks)
    }

    const fn turns(&self) -> usize {
        4 * self.blocks
    }
}

/// Where ranks put what they add, of all ranks in their order, and this rank's own count of turns. A kernel's places lie behind
/// another's.
#[derive(Debug, Clone)]
pub struct Inboxes {
    /// [`Inboxes::bytes`] of each rank, zeroed once.
    pub of: Vec<Arc<Buffer>>,
    /// [`Inboxes::TURNS`] bytes, zeroed once.
    pub turns: Arc<Buffer>,
    /// Which of them is this rank's.
    pub rank: usize,
}

/// One kernel's places in them.
struct Places {
    of: Vec<Buffer>,
    turns: Buffer,
    rank: usize,
}

impl Places {
    fn boxes(&self) -> Result<Boxes<'_>, OpError> {
        let [inbox0, inbox1, inbox2, inbox3, inbox4, inbox5, inbox6, inbox7] =
            std::array::from_fn(|rank| self.of.get(rank));
        let (rank, ranks) = (int(self.rank)?, int(self.of.len())?);
        Ok(Boxes {
            turns: &self.turns,
            inbox0,
            inbox1,
            inbox2,
            inbox3,
            inbox4,
            inbox5,
            inbox6,
            inbox7,
            rank,
            ranks,
        })
    }
}

impl Inboxes {
    /// Bytes of the count of turns.
    pub const TURNS: usize = FEW.turns() + MANY.turns();

    /// Bytes of an inbox of so many ranks.
    pub const fn bytes(ranks: usize) -> usize {
        FEW.bytes(ranks) + MANY.bytes(ranks)
    }

    /// A kernel's places, which lie behind those of another one.
    fn places(&self, meeting: &Meeting, before: Option<&Meeting>) -> Result<Places, OpError> {
        let ranks = self.of.len();
        if ranks > PEERS {
            let what = format!("{ranks} ranks do not write to one another's memory");
            return Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } });
        }
        let part = |buffer: &Buffer, start, bytes| {
            buffer.part(start, bytes).map_err(|error| OpError::Device { op: NAME, error })
        };
        let start = before.map_or(0, |before| before.bytes(ranks));
        let of = self.of.iter().map(|inbox| part(inbox, start, meeting.bytes(ranks)));
        let turns = part(&self.turns, before.map_or(0, Meeting::turns), meeting.turns())?;
        Ok(Places { of: of.collect::<Result<_, _>>()?, turns, rank: self.rank })
    }

    fn held(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        self.of.iter().chain([&self.turns])
    }

    /// Whether [`join_peers`] sums so many tokens: what is longer is faster by [`join_many`], or by a library that deals it out.
    pub fn take(count: usize, hidden: usize) -> bool {
        count * hidden.div_ceil(BLOCK) <= FEW.blocks
    }

    /// Whether [`join_many`] sums rows of such a width for so many ranks.
    pub fn take_many(&self, hidden: usize) -> bool {
        self.of.len() <= MANY_RANKS && hidden.is_multiple_of(8) && hidden <= MANY_VALUES
    }
}

/// Rows of which the sums were made by a norm of what this rank has of each.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// `[count, width]` bf16.
    pub of: &'a Arc<Buffer>,
    /// A multiple of 8.
    pub width: usize,
    /// Their whole width.
    pub whole: usize,
    /// What is added to the mean of their squares.
    pub eps: f64,
}

/// Plans the sum of all ranks' `added`, made whole where each was made of a part of rows, and what [`join`] makes of it. The squares are
/// this kernel's to take.
///
/// # Errors
/// As [`join`]; and for more tokens than [`Inboxes::take`].
pub fn join_peers(
    device: &Device,
    call: &Join<'_>,
    rows: Option<Rows<'_>>,
    inboxes: &Inboxes,
) -> Result<Planned, OpError> {
    multiple(call.hidden, 4)?;
    if !Inboxes::take(call.count, call.hidden) {
        return Err(longer(call));
    }
    if let Some(Rows { of, width, .. }) = rows {
        multiple(width, 8)?;
        holds("rows", of, 2 * call.count * width)?;
    }
    let places = inboxes.places(&FEW, None)?;
    let onto = call.onto(DType::F32)?;
    let onto = rows.map_or(onto, |rows| onto.over(rows.whole, rows.eps));
    let args = JoinedPeers {
        added: call.added,
        rows: rows.map(|rows| &**rows.of),
        width: int(rows.map_or(1, |rows| rows.width))?,
        x: call.x,
        boxes: places.boxes()?,
        onto,
    };
    let rows = rows.map(|rows| rows.of);
    let held: Vec<_> = call.held().into_iter().chain(rows).chain(inboxes.held()).collect();
    launch(device, join_peers_source, (call.grid(), args.into()), &held)
}

/// Plans the same of many tokens, of whose parts each is rounded to bf16 once; `added` is of this type, f32 or bf16.
///
/// # Errors
/// As [`join`]; and where it is not for [`Inboxes::take_many`].
pub fn join_many(
    device: &Device,
    call: &Join<'_>,
    added: DType,
    inboxes: &Inboxes,
) -> Result<Planned, OpError> {
    if !inboxes.take_many(call.hidden) {
        return Err(longer(call));
    }
    let places = inboxes.places(&MANY, Some(&FEW))?;
    let rows = (MANY_VALUES / call.hidden).min(MANY_ROWS);
    let args = JoinedMany {
        added: call.added,
        squares: call.squares().map(|of| &**of),
        x: call.x,
        boxes: places.boxes()?,
        count: int(call.count)?,
        rows: int(rows)?,
        onto: call.onto(added)?,
    };
    let held: Vec<_> = call.held().into_iter().chain(inboxes.held()).collect();
    let blocks = call.count.div_ceil(rows).min(MANY.blocks);
    let shape = Launch::new([blocks as u32, 1, 1], THREADS, 0);
    launch(device, |arch| join_many_source(added, arch), (shape, args.into()), &held)
}

/// What peers do not sum.
fn longer(call: &Join<'_>) -> OpError {
    let what = format!("{} rows of {} are summed by a library", call.count, call.hidden);
    OpError::Device { op: NAME, error: DeviceError::Refused { what } }
}

/// Plans `to [rows, whole]` from the parts of so many ranks, `from [ranks, room]`, both f32: see `gather.cu`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be had.
pub fn gather(
    device: &Device,
    [from, to]: [&Arc<Buffer>; 2],
    [ranks, room]: [usize; 2],
    [rows, whole]: [usize; 2],
) -> Result<Planned, OpError> {
    holds("from", from, 4 * ranks * room)?;
    holds("to", to, 4 * rows * whole)?;
    let most = whole.div_ceil(ranks);
    let args = Gathered { from, to, room: int(room)?, whole: int(whole)? };
    let grid = [rows as u32, ranks as u32, most.div_ceil(BLOCK) as u32];
    launch_apart(device, gather_source, (Launch::new(grid, THREADS, 0), args.into()), &[from, to])
}

fn multiple(width: usize, of: usize) -> Result<(), OpError> {
    if width.is_multiple_of(of) {
        return Ok(());
    }
    let what = format!("rows that ranks sum want a multiple of {of} values, got {width}");
    Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } })
}
