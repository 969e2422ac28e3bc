//! `hopper_latent`: attention over a latent cache (MLA), where the values are the first channels of the keys and each key is read
//! once. The contract is in `hopper_latent.cu`.

use super::combine::{Parts, keys_seen, splits};
use super::operands::{Operands, Rows, not_half, row_map, shape_macros};
use crate::{CudaVariant, Planner, arguments, source};
use device::cuda::{
    ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::attention::AttentionProblem;

pub(super) const VARIANT: CudaVariant<AttentionProblem> =
    CudaVariant { name: "hopper_latent", why_not, plan };

const PARTS: &[SourcePart] = &[
    source!("../include/hopper.cuh"),
    source!("../include/order.cuh"),
    source!("split.cuh"),
    source!("hopper_latent_tile.cuh"),
    source!("hopper_latent.cu"),
];

/// `BLOCK_KEYS` of the kernel.
const BLOCK_KEYS: usize = 64;
/// `BOX_BYTES` of the kernel.
const BOX_BYTES: usize = 128 * BLOCK_KEYS;
/// Maximum shared memory of a block on Hopper, bytes.
const MAX_SHARED: usize = 227 << 10;

/// `ROWS`: rows (queries times heads) of a block. Up to 128 rows, blocks of 32 that read the same keys from L2 are faster than half
/// as many blocks of 64.
fn block_rows(problem: &AttentionProblem) -> usize {
    match problem.queries.longest() * problem.group() {
        ..=16 => 16,
        17..=128 => 32,
        _ => 64,
    }
}

/// `THREADS` of the kernel.
fn threads(rows: usize) -> u32 {
    if rows == 64 { 512 } else { 416 }
}

/// `SHARED_BYTES` of the kernel.
fn shared_bytes(head_dim: usize, rows: usize, boxes: usize) -> usize {
    1024 + 128 * rows * (head_dim / 64 + 2) + (BOX_BYTES + 16) * boxes + 64 * rows + 32
}

/// `BOXES`: as many as fit in shared memory, at most three tiles; more would stay idle.
fn boxes(head_dim: usize, rows: usize) -> usize {
    let others = shared_bytes(head_dim, rows, 0);
    ((MAX_SHARED - others) / (BOX_BYTES + 16)).min(3 * head_dim / 64)
}

/// Keys per TMA box: the largest power of two up to [`BLOCK_KEYS`] that divides the page size.
fn box_rows(problem: &AttentionProblem) -> usize {
    let page = problem.keys.block_size().unwrap_or(BLOCK_KEYS);
    1 << page.trailing_zeros().min(BLOCK_KEYS.trailing_zeros())
}

fn why_not(problem: &AttentionProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute != ComputeCapability::new(9, 0) {
        return Some(format!("needs compute capability 9.0, this GPU has {}", here.compute));
    }
    if !problem.values_in_keys {
        return Some("needs values that are channels of the keys".to_owned());
    }
    let widths = [("D", problem.head_dim, 64, 640), ("Dv", problem.value_dim, 128, 512)];
    for (name, channels, step, most) in widths {
        if !channels.is_multiple_of(step) || channels > most {
            return Some(format!("needs {name} a multiple of {step} up to {most}, got {channels}"));
        }
    }
    if box_rows(problem) < 8 {
        return Some("needs pages of a multiple of 8 keys".to_owned());
    }
    not_half(problem)
}

fn source(dtype: DType, dims: (usize, usize), rows: usize) -> KernelSource {
    let arch = GpuArch::of(ComputeCapability::new(9, 0));
    shape_macros(KernelSource::new("attention_hopper_latent", PARTS, arch), dtype, dims)
        .define("ROWS", rows)
        .define("BOXES", boxes(dims.0, rows))
}

/// Kernels for decode and prefill with D 576 and Dv 512, for the bundle.
pub(super) fn bundled() -> Vec<KernelSource> {
    [16, 32, 64].map(|rows| source(DType::Bf16, (576, 512), rows)).into()
}

arguments! {
    AttentionHopperLatent: attention_hopper_latent {
        map_k: Map, q: Pointer, o: Pointer, lse: Pointer, partial_o: Nullable, partial_lse: Nullable, cu_q: Nullable,
        cu_k: Nullable, cache_seqlens: Nullable, block_table: Nullable, tq: i32, tk: i32, total_q: i32, heads: i32,
        kv_heads: i32, block_size: i32, max_blocks: i32, box_rows: i32, longest: i32, window_left: i32, window_right: i32,
        scale: f32, softcap: f32,
    }
}

fn plan(problem: &AttentionProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let (dims, rows) = ((problem.head_dim, problem.value_dim), block_rows(problem));
    let kernel = planner.kernel(&source(problem.dtype, dims, rows))?;
    let operands = Operands::new(problem, planner)?;
    let keys = Rows::flat(problem, &operands, planner)?;
    let of_k = (64, box_rows(problem));
    let map_k = row_map(planner, &operands.k, (keys, problem.head_dim), of_k, problem.dtype)?;
    let row_blocks = (problem.queries.longest() * problem.group()).div_ceil(rows);
    let blocks = problem.kv_heads * row_blocks;
    let seen = keys_seen(problem);
    // One block per SM.
    let slots = planner.here().multiprocessors as usize;
    let splits = splits(&seen, blocks, slots, BLOCK_KEYS);
    let parts = Parts::new(problem, planner, splits)?;
    let [partial_o, partial_lse] = parts.buffers();
    let args = AttentionHopperLatent {
        map_k: (&map_k).into(),
        q: &operands.q,
        o: &operands.o,
        lse: &operands.lse,
        partial_o,
        partial_lse,
        cu_q: operands.cu_queries.as_deref(),
        cu_k: operands.cu_keys.as_deref(),
        cache_seqlens: operands.key_counts.as_deref(),
        block_table: operands.block_table.as_deref(),
        tq: operands.queries,
        tk: operands.keys,
        total_q: operands.total,
        heads: operands.heads,
        kv_heads: operands.kv_heads,
        block_size: operands.block_size,
        max_blocks: operands.max_blocks,
        box_rows: box_rows(problem) as i32,
        longest: seen.iter().copied().max().unwrap_or(0) as i32,
        window_left: operands.window_left,
        window_right: operands.window_right,
        scale: operands.scale,
        softcap: operands.softcap,
    };
    let grid = [blocks as u32, splits as u32, operands.batch as u32];
    let shared = shared_bytes(problem.head_dim, rows, boxes(problem.head_dim, rows)) as u32;
    let launch = planner.overlapping(Launch::new(grid, threads(rows), shared));
    planner.launch(kernel, launch, args);
    parts.combine(problem, &operands, planner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_fits_more_than_one_tile() {
        for head_dim in (128..=640).step_by(64) {
            for rows in [16, 32, 64] {
                let boxes = boxes(head_dim, rows);
                assert!(boxes > head_dim / 64, "D {head_dim} rows {rows}: {boxes}");
                assert!(shared_bytes(head_dim, rows, boxes) <= MAX_SHARED);
            }
        }
        // `BOXES` of README-hopper-latent.md.
        assert_eq!([16, 32, 64].map(|rows| boxes(576, rows)), [25, 22, 16]);
    }
}
