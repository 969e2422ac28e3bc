//! The steps before the selected branch: compressed tokens (`compress.cu`, `learned.cu`), the compressed branch with
//! the weights that blocks are selected by (`compressed.cu`), and the selection (`select.cu`).

use super::operands::{Gates, HOPPER, Operands, Sequences, row_bytes, shape_macros};
use crate::{Planner, arguments, int, source};
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch,
    KernelSource, Launch, SourcePart,
};
use ops::nsa::{NsaProblem, Pooling};
use ops::{ChoiceTable, DType};
use std::sync::Arc;

const COMPRESS: &[SourcePart] =
    &[source!("../include/ampere.cuh"), source!("call.cuh"), source!("compress.cu")];
const LEARNED: &[SourcePart] =
    &[source!("../include/ampere.cuh"), source!("call.cuh"), source!("learned.cu")];
const COMPRESSED: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("softmax.cuh"),
    source!("common.cuh"),
    source!("compressed.cuh"),
    source!("compressed.cu"),
];
const COMPRESSED_HOPPER: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("call.cuh"),
    source!("hopper_tile.cuh"),
    source!("softmax.cuh"),
    source!("compressed.cuh"),
    source!("compressed_hopper.cu"),
];
const SELECT: &[SourcePart] = &[
    source!("../include/ampere.cuh"),
    source!("call.cuh"),
    source!("importance.cuh"),
    source!("select.cu"),
];

/// Rows of a block of `learned.cu`.
const LEARNED_ROWS: usize = 8;
/// Warps of a block of `select.cu`, where their scores fit in shared memory.
const SELECT_WARPS: usize = 4;
/// Limit of the weights of a chunk of queries, bytes.
const WEIGHT_BYTES: usize = 1 << 30;

/// A row of the table of `compressed.cu`.
#[derive(Debug)]
struct Tile {
    /// Whether it is one of `compressed_hopper.cu`: D and Dv multiples of 64, Dv up to 128.
    hopper: bool,
    /// The larger of D and Dv, at most.
    channels: usize,
    row_tiles: usize,
    block_keys: usize,
    warps: usize,
    /// Resident blocks per SM that the kernel must allow, which limits its registers.
    blocks: usize,
}

const fn tile(channels: usize, [row_tiles, block_keys, warps, blocks]: [usize; 4]) -> Tile {
    Tile { hopper: false, channels, row_tiles, block_keys, warps, blocks }
}

const TILES: &[Tile] = &[
    Tile { hopper: true, ..tile(192, [1, 64, 8, 2]) },
    tile(128, [2, 32, 4, 2]),
    tile(320, [1, 32, 4, 1]),
    tile(320, [1, 32, 2, 1]),
];

impl Tile {
    fn tokens(&self) -> usize {
        self.row_tiles * self.warps
    }

    fn shared_bytes(&self, (d, dv): (usize, usize)) -> usize {
        if self.hopper {
            // Columns of 64 must start at multiples of 1024 bytes.
            return self.tokens() * 16 * 2 * d
                + 2 * self.block_keys * (2 * d + 2 * d.max(dv))
                + 1024;
        }
        let second = row_bytes(d).max(row_bytes(dv));
        self.tokens() * 16 * row_bytes(d) + 2 * self.block_keys * (row_bytes(d) + second)
    }

    fn fits(&self, (d, dv): (usize, usize), compute: ComputeCapability, shared: u32) -> bool {
        let form = !self.hopper
            || compute == HOPPER && d.is_multiple_of(64) && dv.is_multiple_of(64) && dv <= 128;
        form && d.max(dv) <= self.channels && self.shared_bytes((d, dv)) <= shared as usize
    }

    fn source(&self, dtype: DType, dims: (usize, usize), arch: GpuArch) -> KernelSource {
        if self.hopper {
            let source = KernelSource::new("nsa_compressed_hopper", COMPRESSED_HOPPER, arch);
            return shape_macros(source, dtype, dims).define("KEYS", self.block_keys);
        }
        shape_macros(KernelSource::new("nsa_compressed", COMPRESSED, arch), dtype, dims)
            .define("ROW_TILES", self.row_tiles)
            .define("BLOCK_KEYS", self.block_keys)
            .define("WARPS", self.warps)
            .define("BLOCKS_PER_SM", self.blocks)
    }
}

fn choose(dims: (usize, usize), compute: ComputeCapability, shared: u32) -> Option<&'static Tile> {
    TILES.iter().find(|tile| tile.fits(dims, compute, shared))
}

pub(super) fn table() -> ChoiceTable {
    let row = |tile: &Tile| {
        let form = if tile.hopper { "9.0, multiples of 64" } else { "any" };
        let cells = [tile.channels, tile.tokens(), tile.block_keys, tile.warps];
        let cells = cells.iter().map(usize::to_string);
        std::iter::once(form.to_owned()).chain(cells).collect()
    };
    ChoiceTable {
        title: "tile of nsa_compressed: the first row that fits and whose shared memory the GPU has",
        columns: &["compute capability", "channels up to", "queries", "compressed keys", "warps"],
        rows: TILES.iter().map(row).collect(),
    }
}

fn compress_source(dtype: DType, dims: (usize, usize), arch: GpuArch) -> KernelSource {
    shape_macros(KernelSource::new("nsa_compress", COMPRESS, arch), dtype, dims)
}

fn select_source(warps: usize, arch: GpuArch) -> KernelSource {
    // It reads no element of the storage type, so one kernel serves all types.
    let source = KernelSource::new("nsa_select", SELECT, arch).define("D", 16);
    source.define("DTYPE", DType::Bf16).define("WARPS", warps)
}

/// Common shapes, for the bundle.
pub(super) fn bundled(dtype: DType, dims: (usize, usize), arch: &BundledArch) -> Vec<KernelSource> {
    let mut sources =
        vec![compress_source(dtype, dims, arch.arch()), select_source(SELECT_WARPS, arch.arch())];
    sources.extend(
        choose(dims, arch.compute, arch.shared_bytes)
            .map(|tile| tile.source(dtype, dims, arch.arch())),
    );
    sources
}

/// Why these steps cannot run on this GPU.
pub(super) fn why_not(problem: &NsaProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if !matches!(problem.dtype, DType::Bf16 | DType::F16) {
        return Some(format!("needs bf16 or f16 tensors, got {}", problem.dtype));
    }
    if let Some(stored) = problem.given_compressed.filter(|stored| *stored != problem.dtype) {
        return Some(format!("needs k_cmp and v_cmp stored like q, got {stored}"));
    }
    for (name, channels, most) in [("D", problem.head_dim, 256), ("Dv", problem.value_dim, 320)] {
        if channels > most {
            return Some(format!("needs {name} up to {most}, got {channels}"));
        }
    }
    if choose((problem.head_dim, problem.value_dim), here.compute, here.shared_bytes).is_none() {
        let shared = here.shared_bytes;
        return Some(format!("no tile fits the {shared} bytes of shared memory of a block here"));
    }
    let blocks = problem.keys.longest().div_ceil(problem.select_block);
    let most = here.shared_bytes as usize / 4;
    (blocks > most).then(|| format!("needs up to {most} select blocks in a sequence, got {blocks}"))
}

/// Compressed tokens on the GPU.
pub(super) struct Compressed {
    pub(super) keys: Arc<Buffer>,
    /// The rounding errors of the compressed keys; `None` if they were not rounded.
    pub(super) rest: Option<Arc<Buffer>>,
    pub(super) values: Option<Arc<Buffer>>,
    /// Rows of every sequence; 0 for the layout of `compress.cu`.
    pub(super) rows_each: usize,
}

arguments! {
    Compress: nsa_compress {
        k: Pointer, v: Pointer, k_cmp: Pointer, k_rest: Nullable, v_cmp: Nullable, cu_k: Nullable, tk: i32, kv_heads: i32,
        block: i32, stride: i32,
    }
}

arguments! {
    Learned: nsa_learned {
        x: Pointer, weight: Pointer, position: Nullable, to: Pointer, rest: Nullable, cu_k: Nullable, tk: i32, kv_heads: i32,
        block: i32, stride: i32, weight_f32: i32, position_f32: i32,
    }
}

/// Adds the launches that compress keys and values, if any query is scored against them.
pub(super) fn compress(
    problem: &NsaProblem,
    operands: &Operands,
    planner: &mut Planner<'_>,
) -> Result<Option<Compressed>, DeviceError> {
    if !problem.scores_compressed() {
        return Ok(None);
    }
    if let Some(keys) = planner.input("k_cmp")? {
        let rows_each = problem.compressed_tokens(operands.keys);
        let values = planner.input("v_cmp")?;
        return Ok(Some(Compressed { keys, rest: None, values, rows_each }));
    }
    let (d, dv) = (problem.head_dim, problem.value_dim);
    // A sequence's compressed tokens start at its first token / stride.
    let rows = problem.keys.total() / problem.compress_stride + 1;
    let mut halves =
        |channels: usize| planner.scratch((rows * problem.kv_heads * channels).div_ceil(2));
    let keys = halves(d)?;
    let rest = if problem.selects() { Some(halves(d)?) } else { None };
    let values = if problem.branches.compressed { Some(halves(dv)?) } else { None };
    let most = problem.compressed_tokens(operands.keys).max(1);
    let (heads, batch) = (operands.kv_heads as u32, operands.batch as u32);
    let arch = planner.arch();
    if problem.pooling == Pooling::Mean {
        let kernel = planner.kernel(&compress_source(problem.dtype, (d, dv), arch))?;
        let args = Compress {
            k: &operands.k,
            v: &operands.v,
            k_cmp: &keys,
            k_rest: rest.as_deref(),
            v_cmp: values.as_deref(),
            cu_k: operands.cu_keys.as_deref(),
            tk: operands.keys as i32,
            kv_heads: operands.kv_heads as i32,
            block: problem.compress_block as i32,
            stride: problem.compress_stride as i32,
        };
        planner.launch(kernel, Launch::new([most as u32, heads, batch], 128, 0), args);
    } else {
        let sides = [
            (&operands.k, ["cmp_k_weight", "cmp_k_pos"], Some(&keys), rest.as_deref(), d),
            (&operands.v, ["cmp_v_weight", "cmp_v_pos"], values.as_ref(), None, dv),
        ];
        for (from, [weight, position], to, rest, channels) in sides {
            let Some(to) = to else { continue };
            let source = KernelSource::new("nsa_learned", LEARNED, arch.clone());
            let source = shape_macros(source, problem.dtype, (channels, channels));
            let kernel = planner.kernel(&source)?;
            let args = Args::from(Learned {
                x: from,
                weight: &*planner.required(weight)?,
                position: planner.input(position)?.as_deref(),
                to,
                rest,
                cu_k: operands.cu_keys.as_deref(),
                tk: operands.keys as i32,
                kv_heads: operands.kv_heads as i32,
                block: problem.compress_block as i32,
                stride: problem.compress_stride as i32,
                weight_f32: planner.is_f32(weight),
                position_f32: planner.is_f32(position),
            });
            let grid = [most.div_ceil(LEARNED_ROWS) as u32, heads, batch];
            planner.launch(kernel, Launch::new(grid, 128, 0), args);
        }
    }
    Ok(Some(Compressed { keys, rest, values, rows_each: 0 }))
}

arguments! {
    CompressedBranch: nsa_compressed | nsa_compressed_hopper {
        q: Pointer, k_cmp: Pointer, k_rest: Nullable, v_cmp: Nullable, o: Pointer, p_sum: Nullable, reads: Pointer,
        gates: (Gates), sequences: (Sequences), heads: i32, kv_heads: i32, block: i32, stride: i32, rows_each: i32, chunk_first: i32,
        chunk_tokens: i32, p_stride: i32, scale: f32,
    }
}

arguments! {
    Select: nsa_select {
        p_sum: Nullable, given: Nullable, indices: Pointer, reads: Pointer, sequences: (Sequences),
        kv_heads: i32, slabs: i32, mode: i32, zero_reads: i32, block: i32, stride: i32, select_block: i32, select_count: i32,
        initial_blocks: i32, local_blocks: i32, chunk_first: i32, chunk_tokens: i32, p_stride: i32, most_blocks: i32,
        bits: Nullable,
    }
}

/// Operands of the selection. Chunks reuse the same memory one after another.
pub(super) struct Selection {
    /// Queries of each sequence in a chunk: a multiple of 32.
    pub(super) chunk: usize,
    weights: Option<Arc<Buffer>>,
    weight_stride: usize,
    /// Blocks of the longest sequence, at least 1.
    pub(super) most_blocks: usize,
    /// Blocks that are always selected; 0 if the selection is an input.
    pub(super) initial_blocks: usize,
    pub(super) local_blocks: usize,
}

impl Selection {
    /// Chunks as large as the weights allow, and `bytes_per_query` more of each query in `budget`.
    pub(super) fn new(
        problem: &NsaProblem,
        operands: &Operands,
        planner: &mut Planner<'_>,
        (bytes_per_query, budget): (usize, usize),
    ) -> Result<Self, DeviceError> {
        let stride = problem.compressed_tokens(operands.keys).next_multiple_of(4).max(4);
        let of_query = operands.batch * operands.kv_heads * operands.slabs * stride;
        let limits = [
            if problem.selects() { WEIGHT_BYTES / (4 * of_query).max(1) } else { usize::MAX },
            budget / (bytes_per_query * operands.batch).max(1),
            operands.queries.next_multiple_of(32),
        ];
        let chunk = limits.into_iter().fold(usize::MAX, usize::min);
        let chunk = (chunk / 32 * 32).max(32);
        let weights =
            if problem.selects() { Some(planner.scratch(of_query * chunk)?) } else { None };
        let most_blocks = operands.keys.div_ceil(problem.select_block).max(1);
        let [initial_blocks, local_blocks] = match problem.given_blocks {
            true => [0, 0],
            false => [problem.initial_blocks, problem.local_blocks],
        };
        let weight_stride = stride;
        Ok(Self { chunk, weights, weight_stride, most_blocks, initial_blocks, local_blocks })
    }

    /// First queries of the chunks.
    pub(super) fn chunks(&self, operands: &Operands) -> impl Iterator<Item = usize> + use<> {
        (0..operands.queries).step_by(self.chunk)
    }

    /// Adds the compressed branch and the selection of the chunk that starts at query `first`. `blocks.cu` lists a
    /// block's queries from `bits`.
    pub(super) fn plan(
        &self,
        problem: &NsaProblem,
        (operands, compressed): (&Operands, Option<&Compressed>),
        planner: &mut Planner<'_>,
        first: usize,
        bits: Option<&Buffer>,
    ) -> Result<(), DeviceError> {
        let chunk = self.chunk.min(operands.queries.next_multiple_of(32));
        if let Some(compressed) = compressed {
            let dims = (problem.head_dim, problem.value_dim);
            let here = planner.here();
            let Some(tile) = choose(dims, here.compute, here.shared_bytes) else {
                return Err(DeviceError::Refused { what: format!("no tile for D {}", dims.0) });
            };
            let kernel = planner.kernel(&tile.source(problem.dtype, dims, planner.arch()))?;
            let args = CompressedBranch {
                q: &operands.q,
                k_cmp: &compressed.keys,
                k_rest: compressed.rest.as_deref(),
                v_cmp: compressed.values.as_deref(),
                o: &operands.o,
                p_sum: self.weights.as_deref(),
                reads: &operands.reads,
                gates: operands.gates(),
                sequences: operands.sequences(),
                heads: operands.heads,
                kv_heads: operands.kv_heads as i32,
                block: problem.compress_block as i32,
                stride: problem.compress_stride as i32,
                rows_each: int(compressed.rows_each)?,
                chunk_first: first as i32,
                chunk_tokens: chunk as i32,
                p_stride: int(self.weight_stride)?,
                scale: problem.scale as f32,
            };
            let grid = [
                chunk.div_ceil(tile.tokens()) as u32,
                operands.head_slabs(),
                operands.batch as u32,
            ];
            let shared = tile.shared_bytes(dims) as u32;
            planner.launch(kernel, Launch::new(grid, 32 * tile.warps as u32, shared), args);
        }
        let scores = 4 * self.most_blocks;
        let fit = planner.here().shared_bytes as usize / scores;
        let warps = if fit >= SELECT_WARPS { SELECT_WARPS } else { 1 };
        let mode = match (problem.branches.selected, problem.given_blocks) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        let zero_reads = i32::from(!problem.scores_compressed())
            | i32::from(!problem.branches.selected) << 1
            | i32::from(!problem.branches.window) << 2;
        let given = planner.input("block_indices")?;
        let kernel = planner.kernel(&select_source(warps, planner.arch()))?;
        let args = Select {
            p_sum: self.weights.as_deref(),
            given: given.as_deref(),
            indices: &operands.indices,
            reads: &operands.reads,
            sequences: operands.sequences(),
            kv_heads: operands.kv_heads as i32,
            slabs: operands.slabs as i32,
            mode,
            zero_reads,
            block: problem.compress_block as i32,
            stride: problem.compress_stride as i32,
            select_block: problem.select_block as i32,
            select_count: problem.select_count as i32,
            initial_blocks: self.initial_blocks as i32,
            local_blocks: self.local_blocks as i32,
            chunk_first: first as i32,
            chunk_tokens: chunk as i32,
            p_stride: int(self.weight_stride)?,
            most_blocks: int(self.most_blocks)?,
            bits,
        };
        let grid = [(chunk * operands.kv_heads).div_ceil(warps) as u32, 1, operands.batch as u32];
        planner.launch(kernel, Launch::new(grid, 32 * warps as u32, (warps * scores) as u32), args);
        Ok(())
    }
}
