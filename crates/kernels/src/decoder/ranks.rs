//! What stands around the sums of a model that is split over ranks. The contracts stand in `spread.cu`, `join.cu`,
//! `join_peers.cu` and `gather.cu`.

use super::{NAME, THREADS, holds, int, launch, launch_apart};
use crate::cuda::{Planned, arguments};
use crate::{DType, OpError};
use device::Device;
use device::cuda::{Buffer, CudaError, GpuArch, KernelSource, Launch};
use std::sync::Arc;

const SPREAD: &[&str] = &[
    include_str!("../cuda/order.cuh"),
    include_str!("../cuda/storage.cuh"),
    include_str!("spread.cu"),
];
const JOIN: &[&str] = &[include_str!("../cuda/order.cuh"), include_str!("join.cu")];
const JOIN_PEERS: &[&str] = &[include_str!("../cuda/order.cuh"), include_str!("join_peers.cu")];
const GATHER: &[&str] = &[include_str!("../cuda/order.cuh"), include_str!("gather.cu")];

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

pub(super) fn gather_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_gather", GATHER, arch)
}

arguments! {
    SpreadRows: decoder_spread { x: Pointer, w: Pointer, o: Pointer, squares: Pointer, width: i32 }
}

arguments! {
    Joined: decoder_join {
        added: Pointer, squares: Nullable, x: Pointer, hidden: i32, inverse_width: f32, eps: f32, factor: f32,
    }
}

arguments! {
    JoinedPeers: decoder_join_peers {
        added: Pointer, squares: Nullable, x: Pointer, turns: Pointer, inbox0: Nullable, inbox1: Nullable, inbox2: Nullable,
        inbox3: Nullable, inbox4: Nullable, inbox5: Nullable, inbox6: Nullable, inbox7: Nullable, rank: i32, ranks: i32,
        hidden: i32, inverse_width: f32, eps: f32, factor: f32,
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
/// [`OpError::Cuda`] when a buffer is too short, the width does not fit, or the kernel cannot be had.
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

/// Plans `x += factor * added`, over the rows' size where their squares are given.
///
/// # Errors
/// [`OpError::Cuda`] when a buffer is too short, the width does not fit, or the kernel cannot be had.
pub fn join(device: &Device, call: &Join<'_>) -> Result<Planned, OpError> {
    let Join { added, squares, x, count, hidden, factor } = *call;
    multiple(hidden, 4)?;
    holds("added", added, 4 * count * hidden)?;
    holds("x", x, 4 * count * hidden)?;
    let (of, width, eps) =
        squares.map_or((None, 1, 0.0), |(of, width, eps)| (Some(of), width, eps));
    let mut held = vec![added, x];
    if let Some(of) = of {
        holds("squares", of, 4 * count)?;
        held.push(of);
    }
    let args = Joined {
        added,
        squares: of.map(|of| &**of),
        x,
        hidden: int(hidden)?,
        inverse_width: (1.0 / width as f64) as f32,
        eps: eps as f32,
        factor: factor as f32,
    };
    let shape = Launch::new([count as u32, hidden.div_ceil(BLOCK) as u32, 1], THREADS, 0);
    launch_apart(device, join_source, (shape, args.into()), &held)
}

/// Ranks that write to one another's memory, at most.
pub const PEERS: usize = 8;

/// `BLOCKS` and `SLOT` of `join_peers.cu`.
const PEER_BLOCKS: usize = 64;
const PEER_SLOT: usize = BLOCK + 4;

/// Where ranks put what they add, of all ranks in their order, and this rank's own count of turns.
#[derive(Debug, Clone)]
pub struct Inboxes {
    /// [`Inboxes::bytes`] of each rank, zeroed once.
    pub of: Vec<Arc<Buffer>>,
    /// [`Inboxes::TURNS`] bytes, zeroed once.
    pub turns: Arc<Buffer>,
    /// Which of them is this rank's.
    pub rank: usize,
}

impl Inboxes {
    /// Bytes of the count of turns.
    pub const TURNS: usize = 4 * PEER_BLOCKS;

    /// Bytes of an inbox of so many ranks.
    pub fn bytes(ranks: usize) -> usize {
        4 * ranks * PEER_BLOCKS * (2 * PEER_SLOT + 1)
    }

    /// Whether sums of so many tokens go through them: what is longer is faster by a library that deals it out.
    pub fn take(count: usize, hidden: usize) -> bool {
        count * hidden.div_ceil(BLOCK) <= PEER_BLOCKS
    }
}

/// Plans the sum of all ranks' `added` and what [`join`] makes of it.
///
/// # Errors
/// As [`join`]; and for more tokens than [`Inboxes::take`].
pub fn join_peers(device: &Device, call: &Join<'_>, inboxes: &Inboxes) -> Result<Planned, OpError> {
    let Join { added, squares, x, count, hidden, factor } = *call;
    multiple(hidden, 4)?;
    holds("added", added, 4 * count * hidden)?;
    holds("x", x, 4 * count * hidden)?;
    holds("turns", &inboxes.turns, Inboxes::TURNS)?;
    let ranks = inboxes.of.len();
    if ranks > PEERS || !Inboxes::take(count, hidden) {
        let what = format!("{ranks} ranks sum {count} rows of {hidden} by a library");
        return Err(OpError::Cuda { op: NAME, error: CudaError::Refused { what } });
    }
    let (of, width, eps) =
        squares.map_or((None, 1, 0.0), |(of, width, eps)| (Some(of), width, eps));
    let mut held = vec![added, x, &inboxes.turns];
    for inbox in &inboxes.of {
        holds("inbox", inbox, Inboxes::bytes(ranks))?;
        held.push(inbox);
    }
    if let Some(of) = of {
        holds("squares", of, 4 * count)?;
        held.push(of);
    }
    let [inbox0, inbox1, inbox2, inbox3, inbox4, inbox5, inbox6, inbox7] =
        std::array::from_fn(|rank| inboxes.of.get(rank).map(|inbox| &**inbox));
    let args = JoinedPeers {
        added,
        squares: of.map(|of| &**of),
        x,
        turns: &inboxes.turns,
        inbox0,
        inbox1,
        inbox2,
        inbox3,
        inbox4,
        inbox5,
        inbox6,
        inbox7,
        rank: int(inboxes.rank)?,
        ranks: int(ranks)?,
        hidden: int(hidden)?,
        inverse_width: (1.0 / width as f64) as f32,
        eps: eps as f32,
        factor: factor as f32,
    };
    let shape = Launch::new([count as u32, hidden.div_ceil(BLOCK) as u32, 1], THREADS, 0);
    launch(device, join_peers_source, (shape, args.into()), &held)
}

/// Plans `to [rows, whole]` from the parts of so many ranks, `from [ranks, room]`, both f32: see `gather.cu`.
///
/// # Errors
/// [`OpError::Cuda`] when a buffer is too short, or the kernel cannot be had.
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
    Err(OpError::Cuda { op: NAME, error: CudaError::Refused { what } })
}
