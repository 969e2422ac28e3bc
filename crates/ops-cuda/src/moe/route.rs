//! The launches that select experts and list pairs of tokens and experts. The contracts are in `route.cu`, `sort.cu`
//! and `list.cuh`.

use super::operands::{AMPERE, CHOOSE, Weighing, overlapping, weighing};
use crate::{Planner, arguments, int, source};
use device::cuda::{Args, Buffer, DeviceError, GpuArch, KernelSource, Launch, SourcePart};
use ops::moe::MoeProblem;
use std::sync::Arc;

const LIST: SourcePart = source!("list.cuh");
const ROUTE: &[SourcePart] = &[AMPERE, CHOOSE, LIST, source!("route.cu")];
const SORT: &[SourcePart] = &[AMPERE, CHOOSE, LIST, source!("sort.cu")];

/// `CHUNK` of `list.cuh`: tokens that one block lists.
pub(super) const CHUNK: usize = 64;
/// `LIST_THREADS` of `list.cuh`.
const THREADS: u32 = 512;

/// The router, for tiles of up to `tile` pairs.
pub(super) fn route_source(tile: usize, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_route", ROUTE, arch.clone()).define("TILE", tile)
}

/// The kernel that builds the list of more tokens than one block handles.
pub(super) fn sort_source(tile: usize, arch: &GpuArch) -> KernelSource {
    KernelSource::new("moe_sort", SORT, arch.clone()).define("TILE", tile)
}

/// A list on the GPU, as `list.cuh` describes it.
pub(super) struct List {
    pub(super) tiles: Arc<Buffer>,
    pub(super) pairs: Arc<Buffer>,
    /// Maximum number of tiles.
    pub(super) most_tiles: usize,
}

impl List {
    fn new(
        problem: &MoeProblem,
        planner: &mut Planner<'_>,
        tile: usize,
    ) -> Result<Self, DeviceError> {
        let pairs = problem.pairs();
        let most_tiles = pairs.min(problem.held + pairs / tile);
        Ok(Self {
            tiles: planner.scratch(4 + 4 * most_tiles)?,
            pairs: planner.scratch(pairs)?,
            most_tiles,
        })
    }
}

arguments! {
    Sort: moe_sort {
        chosen: Pointer, counts: Pointer, tiles: Pointer, pairs: Pointer, places: Pointer, tokens: i32, first_held: i32,
        held: i32, top_k: i32,
    }
}

/// Adds the launch that selects and weighs the experts of up to [`CHUNK`] tokens, and lists the pairs.
pub(super) fn plan_few(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    tile: usize,
) -> Result<List, DeviceError> {
    let list = List::new(problem, planner, tile)?;
    route(problem, planner, tile, (Some(&list), None))?;
    Ok(list)
}

/// The same for any number of tokens, in two launches; also returns the position of each pair in the list, `[T, K]`.
pub(super) fn plan(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    tile: usize,
) -> Result<(List, Arc<Buffer>), DeviceError> {
    let chunks = problem.tokens.div_ceil(CHUNK);
    let counts = planner.scratch(chunks * problem.held)?;
    route(problem, planner, tile, (None, Some(&counts)))?;
    let kernel = planner.kernel(&sort_source(tile, &planner.arch()))?;
    let list = List::new(problem, planner, tile)?;
    let places = planner.scratch(problem.pairs())?;
    let args = Args::from(Sort {
        chosen: &*planner.output("chosen")?,
        counts: &counts,
        tiles: &list.tiles,
        pairs: &list.pairs,
        places: &places,
        tokens: int(problem.tokens)?,
        first_held: int(problem.first)?,
        held: int(problem.held)?,
        top_k: int(problem.of_token())?,
    });
    let launch = overlapping(planner, Launch::new([chunks as u32, 1, 1], THREADS, 0));
    planner.launch(kernel, launch, args);
    Ok((list, places))
}

arguments! {
    Route: moe_route {
        logits: Pointer, correction: Nullable, chosen: Pointer, weights: Pointer, tiles: Nullable, pairs: Nullable,
        counts: Nullable, tokens: i32, weighing: (Weighing),
    }
}

fn route(
    problem: &MoeProblem,
    planner: &mut Planner<'_>,
    tile: usize,
    (list, counts): (Option<&List>, Option<&Buffer>),
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&route_source(tile, &planner.arch()))?;
    let args = Args::from(Route {
        logits: &*planner.required("logits")?,
        correction: planner.input("correction")?.as_deref(),
        chosen: &*planner.output("chosen")?,
        weights: &*planner.output("weights")?,
        tiles: list.map(|list| &*list.tiles),
        pairs: list.map(|list| &*list.pairs),
        counts,
        tokens: int(problem.tokens)?,
        weighing: weighing(problem)?,
    });
    let grid = [problem.tokens.div_ceil(CHUNK) as u32, 1, 1];
    let launch = overlapping(planner, Launch::new(grid, THREADS, 0));
    planner.launch(kernel, launch, args);
    Ok(())
}
