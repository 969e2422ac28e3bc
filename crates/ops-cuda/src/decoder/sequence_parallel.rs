//! Sequence parallelism in prefill: each rank owns some rows of the residual stream, and reduces all ranks' partial sums of these
//! rows (the receiving half of a reduce-scatter). The contracts are in `join_own.cu`, `meet.cu` and `narrow.cu`.

use super::{NAME, PEERS, THREADS, holds, int, launch};
use crate::{PlannedLaunches, arguments, source};
use device::Device;
use device::cuda::{Buffer, Cuda, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::{DType, OpError};
use std::sync::Arc;

const JOIN: &[SourcePart] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("mark.cuh"),
    source!("join_own.cu"),
];
const MEET: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("mark.cuh"), source!("meet.cu")];
const NARROW: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("narrow.cu")];

pub(super) fn join_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_join_own", JOIN, arch).define("DTYPE", DType::Bf16)
}

pub(super) fn wait_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_meet", MEET, arch)
}

pub(super) fn narrow_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_narrow", NARROW, arch).define("DTYPE", DType::Bf16)
}

arguments! {
    JoinedOwn: decoder_join_own {
        own: Pointer, own_squares: Nullable, theirs: Pointer, their_squares: Nullable, apart: i64, marks: Pointer, turn: i32, rank: i32,
        ranks: i32, x: Pointer, weight: Pointer, h: Pointer, count: i32, hidden: i32, inverse_width: f32, squares_eps: f32, factor: f32,
        inverse_hidden: f32, eps: f32,
    }
}

arguments! { Met: decoder_meet { mark: Pointer, turn: i32 } }

arguments! { Narrowed: decoder_narrow { from: Pointer, to: Pointer, count: i64 } }

/// A flag in this GPU's memory that another GPU sets after its copies to this GPU.
#[derive(Debug, Clone)]
pub struct Mark {
    /// One u32, zeroed once.
    pub of: Arc<Buffer>,
    /// The value to wait for; differs from the previous one.
    pub turn: u32,
}

impl Mark {
    /// Bytes between the flags of two GPUs: `MARK` words of `join_own.cu`.
    pub const APART: usize = 64;
}

/// All ranks' partial results for the rows that this rank owns.
#[derive(Debug, Clone, Copy)]
pub struct PartialResults<'a> {
    /// This rank's.
    pub own: &'a Arc<Buffer>,
    /// The other ranks', in rank order, [`OwnedRowReduction::apart`] bytes between two ranks.
    pub theirs: &'a Arc<Buffer>,
}

/// The reduction of partial sums onto the owned rows, and the RMSNorm of the result.
#[derive(Debug)]
pub struct OwnedRowReduction<'a> {
    /// Partial sums, `[count, hidden]` bf16 per rank.
    pub added: PartialResults<'a>,
    /// Sums of squares of the input rows, `[count]` f32 per rank, the full width of these rows, and the norm's epsilon.
    pub squares: Option<(PartialResults<'a>, usize, f64)>,
    /// Bytes between the partial results of two other ranks.
    pub apart: usize,
    /// Flag of the first other rank's results; the flags of the others follow, [`Mark::APART`] bytes apart.
    pub mark: &'a Mark,
    /// This rank and the number of ranks, 2 to [`PEERS`].
    pub place: [usize; 2],
    /// The residual stream, `[count, hidden]` f32, updated.
    pub x: &'a Arc<Buffer>,
    /// Factor on the sum.
    pub factor: f64,
    /// The RMSNorm's weight, `[hidden]` f32, and its epsilon.
    pub norm: (&'a Arc<Buffer>, f64),
    /// The normalized rows, `[count, hidden]` bf16, written.
    pub h: &'a Arc<Buffer>,
    /// Rows.
    pub count: usize,
    /// A multiple of 8, up to [`OwnedRowReduction::WIDEST`].
    pub hidden: usize,
}

impl OwnedRowReduction<'_> {
    /// Maximum width of a row: a block stores one f32 row in the shared memory available without opt-in.
    pub const WIDEST: usize = 8192;
}

/// Plans `x += factor * sum of added`, divided by the input rows' root mean square if `squares` is given, and `h`, the RMSNorm of
/// the new x.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width or the number of ranks is not supported, or the kernel cannot be loaded or compiled.
pub fn join_own(device: &Device, call: &OwnedRowReduction<'_>) -> Result<PlannedLaunches, OpError> {
    let OwnedRowReduction {
        added, squares, apart, mark, x, factor, norm: (weight, eps), h, ..
    } = *call;
    let OwnedRowReduction { count, hidden, place: [rank, ranks], .. } = *call;
    if !hidden.is_multiple_of(8)
        || hidden > OwnedRowReduction::WIDEST
        || !(2..=PEERS).contains(&ranks)
    {
        let what = format!(
            "join_own needs 2 to {PEERS} ranks and rows of a multiple of 8 up to {}, got {ranks} ranks and {hidden}",
            OwnedRowReduction::WIDEST
        );
        return Err(OpError::Device { op: NAME, error: DeviceError::Refused { what } });
    }
    let before_last = ranks - 2;
    for (name, buffer, bytes) in [
        ("own", added.own, 2 * count * hidden),
        ("theirs", added.theirs, before_last * apart + 2 * count * hidden),
        ("marks", &mark.of, before_last * Mark::APART + 4),
        ("x", x, 4 * count * hidden),
        ("weight", weight, 4 * hidden),
        ("h", h, 2 * count * hidden),
    ] {
        holds(name, buffer, bytes)?;
    }
    if let Some((squares, ..)) = squares {
        holds("own squares", squares.own, 4 * count)?;
        holds("their squares", squares.theirs, before_last * apart + 4 * count)?;
    }
    let (width, squares_eps) = squares.map_or((1, 0.0), |(_, width, eps)| (width, eps));
    let args = JoinedOwn {
        own: added.own,
        own_squares: squares.map(|(squares, ..)| &**squares.own),
        theirs: added.theirs,
        their_squares: squares.map(|(squares, ..)| &**squares.theirs),
        apart: apart as i64,
        marks: &mark.of,
        turn: mark.turn.cast_signed(),
        rank: int(rank)?,
        ranks: int(ranks)?,
        x,
        weight,
        h,
        count: int(count)?,
        hidden: int(hidden)?,
        inverse_width: (1.0 / width as f64) as f32,
        squares_eps: squares_eps as f32,
        factor: factor as f32,
        inverse_hidden: (1.0 / hidden as f64) as f32,
        eps: eps as f32,
    };
    // Three blocks per SM fill half of its threads on the GPUs with the fewest (1536), so that copies never lack space.
    let here = Cuda::of(device).map_or(1, |cuda| cuda.capabilities().multiprocessors);
    let shape = Launch::new([(count as u32).min(3 * here), 1, 1], THREADS, 4 * hidden as u32);
    let both = squares.into_iter().map(|(squares, ..)| squares).chain([added]);
    let held = both.flat_map(|made| [made.own, made.theirs]);
    let held: Vec<_> = held.chain([&mark.of, x, weight, h]).collect();
    launch(device, join_source, (shape, args.into()), &held)
}

/// Plans a kernel that waits for a flag.
///
/// # Errors
/// [`OpError::Device`] when the kernel cannot be loaded or compiled.
pub fn wait_for_mark(device: &Device, mark: &Mark) -> Result<PlannedLaunches, OpError> {
    let args = Met { mark: &mark.of, turn: mark.turn.cast_signed() };
    let shape = Launch::new([1, 1, 1], 32, 0);
    launch(device, wait_source, (shape, args.into()), &[&mark.of])
}

/// Plans the conversion of `count` values, a multiple of 8, from f32 to bf16.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be loaded or compiled.
pub fn narrow(
    device: &Device,
    [from, to]: [&Arc<Buffer>; 2],
    count: usize,
) -> Result<PlannedLaunches, OpError> {
    holds("from", from, 4 * count)?;
    holds("to", to, 2 * count)?;
    let here = Cuda::of(device).map_or(1, |cuda| cuda.capabilities().multiprocessors);
    let blocks = (count / 8).div_ceil(THREADS as usize).min(8 * here as usize);
    let shape = Launch::new([blocks as u32, 1, 1], THREADS, 0);
    let args = Narrowed { from, to, count: count as i64 };
    launch(device, narrow_source, (shape, args.into()), &[from, to])
}
