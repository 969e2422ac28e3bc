//! The residual stream of the rows that a GPU keeps, where several GPUs have parts of a prompt's. The contracts stand in `join_own.cu`,
//! `meet.cu` and `narrow.cu`.

use super::{NAME, PEERS, THREADS, holds, int, launch};
use crate::{Planned, arguments, source};
use device::Device;
use device::cuda::{Buffer, Cuda, DeviceError, GpuArch, KernelSource, Launch, Part};
use ops::{DType, OpError};
use std::sync::Arc;

const JOIN: &[Part] = &[
    source!("../include/order.cuh"),
    source!("../include/storage.cuh"),
    source!("mark.cuh"),
    source!("join_own.cu"),
];
const MEET: &[Part] = &[source!("../include/order.cuh"), source!("mark.cuh"), source!("meet.cu")];
const NARROW: &[Part] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("narrow.cu")];

pub(super) fn join_source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_join_own", JOIN, arch).define("DTYPE", DType::Bf16)
}

pub(super) fn meet_source(arch: GpuArch) -> KernelSource {
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

/// What another GPU sets to a number behind what it copies here.
#[derive(Debug, Clone)]
pub struct Mark {
    /// One u32, zeroed once.
    pub of: Arc<Buffer>,
    /// The number; never the one before.
    pub turn: u32,
}

impl Mark {
    /// Bytes from one GPU's mark to the next one's: `MARK` words of `join_own.cu`.
    pub const APART: usize = 64;
}

/// What GPUs have made of rows that this one keeps.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    /// What this one has.
    pub own: &'a Arc<Buffer>,
    /// What the others have, in their order, [`JoinOwn::apart`] bytes from one to the next.
    pub theirs: &'a Arc<Buffer>,
}

/// The sum of what GPUs have made of rows, and the rows' norm.
#[derive(Debug)]
pub struct JoinOwn<'a> {
    /// Sums, `[count, hidden]` bf16 of each GPU.
    pub added: Made<'a>,
    /// The squares of the rows that they were made of, `[count]` f32 of each GPU, those rows' whole width, and what is added to the mean.
    pub squares: Option<(Made<'a>, usize, f64)>,
    /// Bytes from one other GPU's to the next one's.
    pub apart: usize,
    /// Set when the first other GPU's are here; the marks of the rest lie behind, [`Mark::APART`] bytes from one to the next.
    pub mark: &'a Mark,
    /// Which rank this is, of how many: 2 to [`PEERS`].
    pub place: [usize; 2],
    /// `[count, hidden]` f32.
    pub x: &'a Arc<Buffer>,
    /// What the sums are times.
    pub factor: f64,
    /// The norm's weight, `[hidden]` f32, and what is added to the mean.
    pub norm: (&'a Arc<Buffer>, f64),
    /// The rows, normalised, `[count, hidden]` bf16.
    pub h: &'a Arc<Buffer>,
    /// Rows.
    pub count: usize,
    /// A multiple of 8, up to [`JoinOwn::WIDEST`].
    pub hidden: usize,
}

impl JoinOwn<'_> {
    /// Values of a row at most: a block holds one in the shared memory that every kernel has.
    pub const WIDEST: usize = 8192;
}

/// Plans `x += factor * (all added)`, over the rows' size where their squares are given, and `h`, the norm of what x is then.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, the width or the number of ranks does not fit, or the kernel cannot be had.
pub fn join_own(device: &Device, call: &JoinOwn<'_>) -> Result<Planned, OpError> {
    let JoinOwn { added, squares, apart, mark, x, factor, norm: (weight, eps), h, .. } = *call;
    let JoinOwn { count, hidden, place: [rank, ranks], .. } = *call;
    if !hidden.is_multiple_of(8) || hidden > JoinOwn::WIDEST || !(2..=PEERS).contains(&ranks) {
        let what = format!("{ranks} GPUs have no parts of rows of {hidden}");
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
    // Half of the threads of a multiprocessor, on GPUs that have the fewest.
    let here = Cuda::of(device).map_or(1, |cuda| cuda.capabilities().multiprocessors);
    let shape = Launch::new([(count as u32).min(3 * here), 1, 1], THREADS, 4 * hidden as u32);
    let both = squares.into_iter().map(|(squares, ..)| squares).chain([added]);
    let held = both.flat_map(|made| [made.own, made.theirs]);
    let held: Vec<_> = held.chain([&mark.of, x, weight, h]).collect();
    launch(device, join_source, (shape, args.into()), &held)
}

/// Plans to wait for a mark.
///
/// # Errors
/// [`OpError::Device`] when the kernel cannot be had.
pub fn meet(device: &Device, mark: &Mark) -> Result<Planned, OpError> {
    let args = Met { mark: &mark.of, turn: mark.turn.cast_signed() };
    let shape = Launch::new([1, 1, 1], 32, 0);
    launch(device, meet_source, (shape, args.into()), &[&mark.of])
}

/// Plans to round so many numbers, a multiple of 8, from f32 to bf16.
///
/// # Errors
/// [`OpError::Device`] when a buffer is too short, or the kernel cannot be had.
pub fn narrow(
    device: &Device,
    [from, to]: [&Arc<Buffer>; 2],
    count: usize,
) -> Result<Planned, OpError> {
    holds("from", from, 4 * count)?;
    holds("to", to, 2 * count)?;
    let here = Cuda::of(device).map_or(1, |cuda| cuda.capabilities().multiprocessors);
    let blocks = (count / 8).div_ceil(THREADS as usize).min(8 * here as usize);
    let shape = Launch::new([blocks as u32, 1, 1], THREADS, 0);
    let args = Narrowed { from, to, count: count as i64 };
    launch(device, narrow_source, (shape, args.into()), &[from, to])
}
