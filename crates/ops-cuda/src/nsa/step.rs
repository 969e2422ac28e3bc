//! `step`: few queries against a long cache. Thread blocks split the compressed tokens, selected tokens and windows;
//! the last block to finish selects, and later combines the parts. The contracts are in `step_score.cu` and
//! `step_attend.cu`.

use super::operands::{Gates, HEAD_ROWS, Operands, Sequences, row_bytes, shape_macros};
use super::stages::{self, Selection, compress};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Buffer, BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource,
    Launch, SourcePart,
};
use ops::nsa::NsaProblem;
use ops::{ChoiceTable, DType};
use std::sync::Arc;

pub(super) const VARIANT: CudaVariant<NsaProblem> = CudaVariant { name: "step", why_not, plan };

const SCORE: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("step.cuh"),
    source!("importance.cuh"),
    source!("step_select.cuh"),
    source!("step_score.cu"),
];
const ATTEND: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("step.cuh"),
    source!("step_attend.cu"),
];

/// Tokens that a warp reads at a time.
const TILE: usize = 16;
/// Warps of a block: the first that fits the shared memory.
const WARPS: &[usize] = &[8, 4, 2, 1];
/// Maximum number of queries of a sequence: each reads its tokens separately.
const MAX_QUERIES: usize = 64;
/// Maximum number of blocks of a query that the selecting block orders by counting.
const MAX_BLOCKS: usize = 1024;
/// Heads of a group whose sums the selecting block has in shared memory: `lse` of `step_score.cu`.
const MAX_GROUP: usize = 64;
/// Maximum number of parts of one branch: one block reads all of them again to combine them.
const MAX_PARTS: usize = 64;

/// Maximum static shared memory of the kernels.
const STATIC_BYTES: usize = 6144;
/// The two kernels' parameter `KEY_COPIES`: keys, and their rounding errors.
const SCORE_COPIES: usize = 2;
const ATTEND_COPIES: usize = 1;

/// `ATTEND_BYTES` of `step.cuh`, for `warps` warps of `tile` tokens.
pub(super) fn attend_bytes(
    (d, dv): (usize, usize),
    (warps, tile): (usize, usize),
    key_copies: usize,
) -> usize {
    let of_token = key_copies * row_bytes(d) + row_bytes(dv);
    let weights = 16 * (2 * warps * tile + 16);
    16 * row_bytes(d) + warps * tile * of_token + weights
}

fn shared_bytes(dims: (usize, usize), warps: usize, key_copies: usize) -> usize {
    attend_bytes(dims, (warps, TILE), key_copies)
}

/// Number of parts of the compressed tokens, enough for two blocks per SM, and the tokens of a part.
fn splits(problem: &NsaProblem, warps: usize, here: &CudaCapabilities) -> (usize, usize) {
    let tokens = problem.compressed_tokens(problem.keys.longest());
    let rows = problem.queries.count() * problem.queries.longest();
    let items = rows * problem.kv_heads * problem.group().div_ceil(HEAD_ROWS);
    let slots = 2 * here.multiprocessors as usize;
    let splits = tokens.div_ceil(warps * TILE).min(slots.div_ceil(items.max(1))).max(1);
    let share = tokens.div_ceil(splits).next_multiple_of(TILE).max(TILE);
    (tokens.div_ceil(share).max(1), share)
}

/// Shared memory of the selecting block: sums of the parts, weights, importance and the list of selected blocks.
fn select_bytes(problem: &NsaProblem, splits: usize) -> usize {
    if !problem.selects() {
        return 0;
    }
    let keys = problem.keys.longest();
    let blocks = keys.div_ceil(problem.select_block);
    let sums = problem.group().next_multiple_of(HEAD_ROWS) * splits * 2;
    4 * (sums + problem.compressed_tokens(keys) + blocks + problem.select_count)
}

fn choose(dims: (usize, usize), shared: u32) -> Option<usize> {
    let most = (shared as usize).saturating_sub(STATIC_BYTES);
    WARPS.iter().copied().find(|warps| shared_bytes(dims, *warps, SCORE_COPIES) <= most)
}

fn source(
    (name, parts): (&'static str, &'static [SourcePart]),
    (dtype, dims): (DType, (usize, usize)),
    (warps, key_copies): (usize, usize),
    arch: GpuArch,
) -> KernelSource {
    shape_macros(KernelSource::new(name, parts, arch), dtype, dims)
        .define("TILE", TILE)
        .define("WARPS", warps)
        .define("KEY_COPIES", key_copies)
}

fn score_source(dtype: DType, dims: (usize, usize), warps: usize, arch: GpuArch) -> KernelSource {
    source(("nsa_step_score", SCORE), (dtype, dims), (warps, SCORE_COPIES), arch)
}

fn attend_source(dtype: DType, dims: (usize, usize), warps: usize, arch: GpuArch) -> KernelSource {
    source(("nsa_step_attend", ATTEND), (dtype, dims), (warps, ATTEND_COPIES), arch)
}

/// Common shapes, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    let Some(warps) = choose(dims, arch.shared_bytes) else { return Vec::new() };
    vec![
        score_source(dtype, dims, warps, arch.arch()),
        attend_source(dtype, dims, warps, arch.arch()),
    ]
}

pub(super) fn table() -> ChoiceTable {
    ChoiceTable {
        title: "warps of a block of nsa_step: the first whose tiles fit the shared memory",
        columns: &["warps", "tokens of a warp"],
        rows: WARPS.iter().map(|warps| vec![warps.to_string(), TILE.to_string()]).collect(),
    }
}

fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    let queries = problem.queries.longest();
    if queries > MAX_QUERIES {
        return Some(format!("needs up to {MAX_QUERIES} queries in a sequence, got {queries}"));
    }
    if problem.group() > MAX_GROUP {
        return Some(format!("needs groups of up to {MAX_GROUP} heads, got {}", problem.group()));
    }
    if problem.select_count > MAX_BLOCKS {
        let got = problem.select_count;
        return Some(format!("needs select_count up to {MAX_BLOCKS}, got {got}"));
    }
    let dims = (problem.head_dim, problem.value_dim);
    let shared = here.shared_bytes;
    let Some(warps) = choose(dims, shared) else {
        return Some(format!("no tile fits the {shared} bytes of shared memory of a block here"));
    };
    let needed = select_bytes(problem, splits(problem, warps, here).0) + STATIC_BYTES;
    if needed > shared as usize {
        return Some(format!(
            "needs {needed} bytes of shared memory of a block to select, got {shared}"
        ));
    }
    let rows = problem.queries.count() * queries;
    if rows > 65_535 {
        return Some(format!("needs up to 65535 queries in all, got {rows}"));
    }
    stages::why_not(problem, here)
}

/// Partial results.
struct Partial {
    values: Arc<Buffer>,
    sums: Arc<Buffer>,
    parts: usize,
}

impl Partial {
    fn new(
        problem: &NsaProblem,
        planner: &mut Planner<'_>,
        items: usize,
        parts: usize,
    ) -> Result<Self, DeviceError> {
        let columns = problem.value_dim.next_multiple_of(16);
        Ok(Self {
            values: planner.scratch(items * parts * 16 * columns)?,
            sums: planner.scratch(items * parts * 16 * 2)?,
            parts,
        })
    }
}

arguments! {
    StepScore: nsa_step_score {
        q: Pointer, k_cmp: Pointer, k_rest: Nullable, v_cmp: Nullable, scores: Pointer, values: Pointer, sums: Pointer,
        counters: Pointer, indices: Pointer, reads: Pointer, sequences: (Sequences), heads: i32,
        kv_heads: i32, block: i32, stride: i32, rows_each: i32, share: i32, score_stride: i32, select: i32, select_block: i32,
        select_count: i32, initial_blocks: i32, local_blocks: i32, scale: f32,
    }
}

arguments! {
    StepAttend: nsa_step_attend {
        q: Pointer, k: Pointer, v: Pointer, o: Pointer, indices: Pointer, reads: Pointer, score_values: Nullable,
        score_sums: Nullable, values: Pointer, sums: Pointer, counters: Pointer, gates: (Gates), sequences: (Sequences), heads: i32,
        kv_heads: i32, select_block: i32, select_count: i32, window: i32, score_parts: i32, selected_parts: i32, share: i32,
        scale: f32,
    }
}

fn plan(problem: &NsaProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let dims = (problem.head_dim, problem.value_dim);
    let Some(warps) = choose(dims, planner.here().shared_bytes) else {
        return Err(DeviceError::Refused { what: format!("step has no tile for D {}", dims.0) });
    };
    let operands = Operands::new(problem, planner)?;
    let compressed = compress(problem, &operands, planner)?;
    let rows = operands.batch * operands.queries;
    let items = rows * operands.kv_heads * operands.slabs;
    let arch = planner.arch();
    if !problem.selects() {
        let selection = Selection::new(problem, &operands, planner, (0, usize::MAX))?;
        for first in selection.chunks(&operands) {
            selection.plan(problem, (&operands, None), planner, first, None)?;
        }
    }

    let mut scored = None;
    if let Some(compressed) = &compressed {
        let tokens = problem.compressed_tokens(operands.keys);
        let (splits, share) = splits(problem, warps, planner.here());
        let stride = tokens.next_multiple_of(4).max(4);
        let part = Partial::new(problem, planner, items, splits)?;
        let scores = planner.scratch(if problem.selects() { items * 16 * stride } else { 4 })?;
        let counters = planner.zeroed(rows * operands.kv_heads)?;
        let kernel = planner.kernel(&score_source(problem.dtype, dims, warps, arch.clone()))?;
        let args = StepScore {
            q: &operands.q,
            k_cmp: &compressed.keys,
            k_rest: compressed.rest.as_deref(),
            v_cmp: compressed.values.as_deref(),
            scores: &scores,
            values: &part.values,
            sums: &part.sums,
            counters: &counters,
            indices: &operands.indices,
            reads: &operands.reads,
            sequences: operands.sequences(),
            heads: operands.heads,
            kv_heads: operands.kv_heads as i32,
            block: problem.compress_block as i32,
            stride: problem.compress_stride as i32,
            rows_each: int(compressed.rows_each)?,
            share: int(share)?,
            score_stride: int(stride)?,
            select: i32::from(problem.selects()),
            select_block: problem.select_block as i32,
            select_count: problem.select_count as i32,
            initial_blocks: int(problem.initial_blocks)?,
            local_blocks: int(problem.local_blocks)?,
            scale: problem.scale as f32,
        };
        let grid = [splits as u32, operands.head_slabs(), rows as u32];
        let shared =
            shared_bytes(dims, warps, SCORE_COPIES).max(select_bytes(problem, splits)) as u32;
        planner.launch(kernel, Launch::new(grid, 32 * warps as u32, shared), args);
        scored = Some(part);
    }

    let parts_of = |there: bool, tokens: usize| match there {
        true => tokens.min(operands.keys).div_ceil(warps * TILE).clamp(1, MAX_PARTS),
        false => 0,
    };
    let selected_tokens = problem.select_count * problem.select_block.min(operands.keys.max(1));
    let selected = parts_of(problem.branches.selected, selected_tokens);
    let window = parts_of(problem.branches.window, problem.window);
    let share_of = |parts: usize, tokens: usize| match parts {
        0 => TILE,
        parts => tokens.min(operands.keys).div_ceil(parts).next_multiple_of(TILE).max(TILE),
    };
    let share = share_of(selected, selected_tokens).max(share_of(window, problem.window));
    let part = Partial::new(problem, planner, items, (selected + window).max(1))?;
    let counters = planner.zeroed(items)?;
    let kernel = planner.kernel(&attend_source(problem.dtype, dims, warps, arch))?;
    let scored = scored.filter(|_| problem.branches.compressed);
    let score_parts = scored.as_ref().map_or(0, |scored| scored.parts);
    let args = StepAttend {
        q: &operands.q,
        k: &operands.k,
        v: &operands.v,
        o: &operands.o,
        indices: &operands.indices,
        reads: &operands.reads,
        score_values: scored.as_ref().map(|scored| &*scored.values),
        score_sums: scored.as_ref().map(|scored| &*scored.sums),
        values: &part.values,
        sums: &part.sums,
        counters: &counters,
        gates: operands.gates(),
        sequences: operands.sequences(),
        heads: operands.heads,
        kv_heads: operands.kv_heads as i32,
        select_block: problem.select_block as i32,
        select_count: problem.select_count as i32,
        window: problem.window as i32,
        score_parts: int(score_parts)?,
        selected_parts: selected as i32,
        share: int(share)?,
        scale: problem.scale as f32,
    };
    let grid = [part.parts as u32, operands.head_slabs(), rows as u32];
    // The sums of all parts of a row reuse the memory of the tiles.
    let sums = 128 * (score_parts + part.parts);
    let shared = shared_bytes(dims, warps, ATTEND_COPIES).max(sums) as u32;
    let mut launch = Launch::new(grid, 32 * warps as u32, shared);
    // With PDL, it starts while the previous kernel ends and waits for that kernel itself.
    launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
    Ok(())
}
