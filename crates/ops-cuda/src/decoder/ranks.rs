//! Kernels around the all-reduces of tensor parallelism: RMSNorm over sharded rows, all-reduce fused with the residual add, and the
//! gather of logits. The contracts are in `spread.cu`, `join.cu`, `join_peers.cu`, `join_many.cu` and `gather.cu`.

use super::{NAME, THREADS, holds, int, launch, launch_without_pdl};
use crate::{PlannedLaunches, arguments, source};
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

/// Values per block of `join.cu`, `join_peers.cu` and `gather.cu`.
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
    /// Width of the residual rows, the terms of the RMS divisor, and the factor on the sums.
    Onto { hidden: i32, inverse_width: f32, eps: f32, factor: f32 }
}

arguments! {
    /// The ranks' inboxes.
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

/// The input of an RMSNorm whose rows are sharded over ranks.
#[derive(Debug)]
pub struct ShardedNorm<'a> {
    /// Storage type of x and o, of 16 bits.
    pub dtype: DType,
    /// This rank's shard of the rows, `[count, width]`.
    pub x: &'a Arc<Buffer>,
    /// The norm's weight, `[width]` f32.
    pub w: &'a Arc<Buffer>,
    /// `[count, width]`, written.
    pub o: &'a Arc<Buffer>,
    /// Sums of the shard's squares, `[count]` f32, written.
    pub squares: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// Width of the shard, a multiple of 8.
    pub width: usize,
}

/// Plans `o = x * w` and `squares[t] = x[t] . x[t]`; [`join`] divides by the RMS of the whole rows.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width is no multiple of 8, or the kernel cannot be loaded or compiled.
pub fn spread(device: &Device, call: &ShardedNorm<'_>) -> Result<PlannedLaunches, OpError> {
    let ShardedNorm { dtype, x, w, o, squares, count, width } = *call;
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

/// Sums over ranks that are added to the residual stream.
#[derive(Debug)]
pub struct ResidualSum<'a> {
    /// The sums `[count, hidden]`, f32 unless the function documents another type.
    pub added: &'a Arc<Buffer>,
    /// Sums of squares of the input rows, `[count]` f32, the full width of these rows, and the norm's epsilon.
    pub squares: Option<(&'a Arc<Buffer>, usize, f64)>,
    /// The residual stream, `[count, hidden]` f32, updated.
    pub x: &'a Arc<Buffer>,
    /// Tokens.
    pub count: usize,
    /// A multiple of 4.
    pub hidden: usize,
    /// Factor on the sums.
    pub factor: f64,
}

impl Onto<'_> {
    /// Sets the divisor `sqrt(squares / width + eps)`.
    fn over(self, width: usize, eps: f64) -> Self {
        Self { inverse_width: (1.0 / width as f64) as f32, eps: eps as f32, ..self }
    }
}

impl<'a> ResidualSum<'a> {
    /// Checks the buffer sizes, with `added` of this type, and returns the arguments that the kernels share.
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

    /// The buffers that a plan holds.
    fn held(&self) -> Vec<&'a Arc<Buffer>> {
        [self.added, self.x].into_iter().chain(self.squares()).collect()
    }

    /// The grid of blocks of [`BLOCK`] values.
    fn grid(&self) -> Launch {
        let of_row = self.hidden.div_ceil(BLOCK) as u32;
        Launch::new([self.count as u32, of_row, 1], THREADS, 0)
    }
}

/// Plans `x += factor * added`, divided by the input rows' RMS if `squares` is given. Runs after another library's all-reduce.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width is no multiple of 8, or the kernel cannot be loaded or compiled.
pub fn join(device: &Device, call: &ResidualSum<'_>) -> Result<PlannedLaunches, OpError> {
    multiple(call.hidden, 4)?;
    let squares = call.squares().map(|of| &**of);
    let args = Joined { added: call.added, squares, x: call.x, onto: call.onto(DType::F32)? };
    launch_without_pdl(device, join_source, (call.grid(), args.into()), &call.held())
}

/// Maximum number of ranks that write to each other's memory.
pub const PEERS: usize = 8;

/// Inbox layout of a kernel whose blocks exchange data with the same block of the other ranks.
struct InboxLayout {
    blocks: usize,
    /// Words per block, rank and buffer of the double buffer.
    slot: usize,
    /// Flag words per block and rank, after the slots.
    marks: usize,
}

/// `BLOCKS` and `SLOT` of `join_peers.cu`.
const FEW: InboxLayout = InboxLayout { blocks: 64, slot: 2 * BLOCK + 8, marks: 0 };
/// `BLOCKS` and `SLOT` of `join_many.cu`, and its `VALUES` and `ROWS`.
const MANY: InboxLayout = InboxLayout { blocks: 256, slot: MANY_VALUES / 2 + MANY_ROWS, marks: 1 };
const MANY_VALUES: usize = 8192;
const MANY_ROWS: usize = 32;
/// Maximum number of ranks for `join_many`: up to here, sending bf16 to every rank moves no more bytes than a ring in float32.
const MANY_RANKS: usize = 4;

impl InboxLayout {
    const fn bytes(&self, ranks: usize) -> usize {
        4 * ranks * self.blocks * (2 * self.slot + self.marks)
    }

    const fn turns(&self) -> usize {
        4 * self.blocks
    }
}

/// The inboxes of all ranks, in rank order, and this rank's turn counters. The regions of the two kernels follow each other.
#[derive(Debug, Clone)]
pub struct Inboxes {
    /// [`Inboxes::bytes`] per rank, zeroed once.
    pub of: Vec<Arc<Buffer>>,
    /// [`Inboxes::TURNS`] bytes, zeroed once.
    pub turns: Arc<Buffer>,
    /// This rank.
    pub rank: usize,
}

/// One kernel's regions of the inboxes.
struct InboxRegions {
    of: Vec<Buffer>,
    turns: Buffer,
    rank: usize,
}

impl InboxRegions {
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
    /// Bytes of the turn counters.
    pub const TURNS: usize = FEW.turns() + MANY.turns();

    /// Bytes of one inbox for this number of ranks.
    pub const fn bytes(ranks: usize) -> usize {
        FEW.bytes(ranks) + MANY.bytes(ranks)
    }

    /// A kernel's regions, after those of `before`.
    fn regions(
        &self,
        layout: &InboxLayout,
        before: Option<&InboxLayout>,
    ) -> Result<InboxRegions, OpError> {
        let ranks = self.of.len();
        if ranks > PEERS {
            let what = format!("up to {PEERS} ranks can write to each other's memory, got {ranks}");
            return Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } });
        }
        let part = |buffer: &Buffer, start, bytes| {
            buffer.part(start, bytes).map_err(|error| OpError::Device { op: NAME, error })
        };
        let start = before.map_or(0, |before| before.bytes(ranks));
        let of = self.of.iter().map(|inbox| part(inbox, start, layout.bytes(ranks)));
        let turns = part(&self.turns, before.map_or(0, InboxLayout::turns), layout.turns())?;
        Ok(InboxRegions { of: of.collect::<Result<_, _>>()?, turns, rank: self.rank })
    }

    fn held(&self) -> impl Iterator<Item = &Arc<Buffer>> {
        self.of.iter().chain([&self.turns])
    }

    /// Whether [`join_peers`] supports this number of tokens. [`join_many`] or a library's reduce-scatter is faster for more.
    pub fn take(count: usize, hidden: usize) -> bool {
        count * hidden.div_ceil(BLOCK) <= FEW.blocks
    }

    /// Whether [`join_many`] supports rows of this width and the number of ranks.
    pub fn take_many(&self, hidden: usize) -> bool {
        self.of.len() <= MANY_RANKS && hidden.is_multiple_of(8) && hidden <= MANY_VALUES
    }
}

/// Input rows of a product whose RMSNorm used only this rank's shard of each row.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// `[count, width]` bf16.
    pub of: &'a Arc<Buffer>,
    /// A multiple of 8.
    pub width: usize,
    /// Width of the whole rows.
    pub whole: usize,
    /// The norm's epsilon.
    pub eps: f64,
}

/// Plans the all-reduce of `added` and [`join`] in one kernel. With `rows`, it computes their squares and replaces the RMS of the
/// shard by that of the whole rows.
///
/// # Errors
/// As [`join`]; also when [`Inboxes::take`] is false.
pub fn join_peers(
    device: &Device,
    call: &ResidualSum<'_>,
    rows: Option<Rows<'_>>,
    inboxes: &Inboxes,
) -> Result<PlannedLaunches, OpError> {
    multiple(call.hidden, 4)?;
    if !Inboxes::take(call.count, call.hidden) {
        return Err(longer(call));
    }
    if let Some(Rows { of, width, .. }) = rows {
        multiple(width, 8)?;
        holds("rows", of, 2 * call.count * width)?;
    }
    let regions = inboxes.regions(&FEW, None)?;
    let onto = call.onto(DType::F32)?;
    let onto = rows.map_or(onto, |rows| onto.over(rows.whole, rows.eps));
    let args = JoinedPeers {
        added: call.added,
        rows: rows.map(|rows| &**rows.of),
        width: int(rows.map_or(1, |rows| rows.width))?,
        x: call.x,
        boxes: regions.boxes()?,
        onto,
    };
    let rows = rows.map(|rows| rows.of);
    let held: Vec<_> = call.held().into_iter().chain(rows).chain(inboxes.held()).collect();
    launch(device, join_peers_source, (call.grid(), args.into()), &held)
}

/// Plans the all-reduce and [`join`] for many tokens; each rank's part is rounded to bf16 once. `added` is f32 or bf16.
///
/// # Errors
/// As [`join`]; also when [`Inboxes::take_many`] is false.
pub fn join_many(
    device: &Device,
    call: &ResidualSum<'_>,
    added: DType,
    inboxes: &Inboxes,
) -> Result<PlannedLaunches, OpError> {
    if !inboxes.take_many(call.hidden) {
        return Err(longer(call));
    }
    let regions = inboxes.regions(&MANY, Some(&FEW))?;
    let rows = (MANY_VALUES / call.hidden).min(MANY_ROWS);
    let args = JoinedMany {
        added: call.added,
        squares: call.squares().map(|of| &**of),
        x: call.x,
        boxes: regions.boxes()?,
        count: int(call.count)?,
        rows: int(rows)?,
        onto: call.onto(added)?,
    };
    let held: Vec<_> = call.held().into_iter().chain(inboxes.held()).collect();
    let blocks = call.count.div_ceil(rows).min(MANY.blocks);
    let shape = Launch::new([blocks as u32, 1, 1], THREADS, 0);
    launch(device, |arch| join_many_source(added, arch), (shape, args.into()), &held)
}

/// The error for sizes that the kernels do not support.
fn longer(call: &ResidualSum<'_>) -> OpError {
    let what = format!(
        "{} rows of {} exceed what peer kernels sum: use a library's all-reduce",
        call.count, call.hidden
    );
    OpError::Device { op: NAME, error: DeviceError::Refused { what } }
}

/// Plans the gather of logits: `to [rows, whole]` from the shards of `ranks` ranks, `from [ranks, room]`, both f32. The layout is in
/// `gather.cu`.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be loaded or compiled.
pub fn gather(
    device: &Device,
    [from, to]: [&Arc<Buffer>; 2],
    [ranks, room]: [usize; 2],
    [rows, whole]: [usize; 2],
) -> Result<PlannedLaunches, OpError> {
    holds("from", from, 4 * ranks * room)?;
    holds("to", to, 4 * rows * whole)?;
    let most = whole.div_ceil(ranks);
    let args = Gathered { from, to, room: int(room)?, whole: int(whole)? };
    let grid = [rows as u32, ranks as u32, most.div_ceil(BLOCK) as u32];
    launch_without_pdl(
        device,
        gather_source,
        (Launch::new(grid, THREADS, 0), args.into()),
        &[from, to],
    )
}

fn multiple(width: usize, of: usize) -> Result<(), OpError> {
    if width.is_multiple_of(of) {
        return Ok(());
    }
    let what = format!("rows summed over ranks need a multiple of {of} values, got {width}");
    Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } })
}
