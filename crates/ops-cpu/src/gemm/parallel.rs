//! GEMM over all cores, to measure the machine's peak FLOP/s with these microkernels.

use super::bf16::{PackedBf16, gemm_bf16};
use super::{Mat, MatMut, PackedB, Store, gemm_packed};
use device::{Device, Isa, SharedMut};
use half::bf16;
use rayon::prelude::*;

/// K per pass over B: a packed panel of it fits in L2.
const DEPTH: usize = 512;
/// Rows of A that one block multiplies; a multiple of every register tile's rows.
const ROWS: usize = 48;
/// Columns of B packed together, so that packing is spread over the cores.
const COLUMNS: usize = 256;

/// C = A B for row-major f32 matrices without padding: A is `[m, k]`, B `[k, n]`, C `[m, n]`.
///
/// # Panics
/// When a slice has another size, or the device lacks `isa`.
pub fn gemm_f32_parallel(
    device: &Device,
    isa: Isa,
    sizes: [usize; 3],
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
    let pack = |b: Mat<'_, f32>| {
        let mut packed = PackedB::new();
        packed.pack(isa, b);
        packed
    };
    let multiply =
        |a: Mat<'_, f32>, b: &PackedB, store, c: MatMut<'_>| gemm_packed(isa, 1.0, a, b, store, c);
    parallel(device, "gemm.f32", sizes, [a, b], c, pack, multiply);
}

/// C = A B for row-major bfloat16 A and B with f32 C, shaped as [`gemm_f32_parallel`]; needs AVX512-BF16.
///
/// # Panics
/// When a slice has another size, or this processor lacks AVX512-BF16.
pub fn gemm_bf16_parallel(
    device: &Device,
    sizes: [usize; 3],
    a: &[bf16],
    b: &[bf16],
    c: &mut [f32],
) {
    let pack = |b: Mat<'_, bf16>| {
        let mut packed = PackedBf16::new();
        packed.pack(b);
        packed
    };
    let multiply =
        |a: Mat<'_, bf16>, b: &PackedBf16, store, c: MatMut<'_>| gemm_bf16(1.0, a, b, store, c);
    parallel(device, "gemm.bf16", sizes, [a, b], c, pack, multiply);
}

/// Passes over K; in each, B is packed in strips of columns and every block multiplies its rows of A by all of them.
fn parallel<T: Copy + Sync, P: Send + Sync>(
    device: &Device,
    kernel: &str,
    [m, n, k]: [usize; 3],
    [a, b]: [&[T]; 2],
    c: &mut [f32],
    pack: impl Fn(Mat<'_, T>) -> P + Sync + Send,
    multiply: impl Fn(Mat<'_, T>, &P, Store, MatMut<'_>) + Sync,
) {
    assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "sizes of C = A B");
    let c = SharedMut::new(c);
    // With k = 0 the product is zero and is written too.
    for start in (0..k.max(1)).step_by(DEPTH) {
        let depth = DEPTH.min(k - start);
        let width = |strip: usize| COLUMNS.min(n - strip * COLUMNS);
        let strips: Vec<P> = (0..n.div_ceil(COLUMNS))
            .into_par_iter()
            .map(|strip| {
                pack(Mat::new(
                    &b[(start * n + strip * COLUMNS).min(b.len())..],
                    depth,
                    width(strip),
                    n,
                ))
            })
            .collect();
        let store = if start == 0 { Store::Replace } else { Store::Add };
        device.launch(kernel, m.div_ceil(ROWS), Vec::new, |tile: &mut Vec<T>, block| {
            let row = block * ROWS;
            let rows = ROWS.min(m - row);
            // At the stride of a full matrix row, rows of A can map to the same cache sets, so they are copied to a dense tile.
            tile.clear();
            for r in row..row + rows {
                tile.extend_from_slice(&a[r * k + start..r * k + start + depth]);
            }
            // SAFETY: blocks own disjoint rows.
            let into = unsafe { c.slice(row * n..(row + rows) * n) };
            for (strip, packed) in strips.iter().enumerate() {
                let into = MatMut::new(&mut into[strip * COLUMNS..], rows, width(strip), n);
                multiply(Mat::new(tile, rows, depth, depth), packed, store, into);
            }
        });
    }
}

/// A product whose operands fit in a core's private caches.
pub struct Block;

impl Block {
    /// M, N and K of the product: its panel of B fits in L2.
    pub const SIZES: [usize; 3] = [ROWS, 128, 512];

    /// FLOPs of one product.
    pub fn flops() -> f64 {
        2.0 * Self::SIZES.iter().product::<usize>() as f64
    }
}

/// Each thread multiplies the same block of A, `[ROWS, k]`, by the same panel of B, `[k, n]`, `repeats` times, into its own block of
/// C: measures the microkernels without memory stalls.
///
/// # Panics
/// When a slice has another size, or the device lacks `isa`.
pub fn gemm_f32_blocks(
    device: &Device,
    isa: Isa,
    repeats: usize,
    (a, b): (&[f32], &[f32]),
    c: &mut [f32],
) {
    let [m, n, k] = Block::SIZES;
    let mut packed = PackedB::new();
    packed.pack(isa, Mat::new(b, k, n, n));
    blocks(device, "gemm.f32.blocks", repeats, c, |c| {
        gemm_packed(isa, 1.0, Mat::new(a, m, k, k), &packed, Store::Replace, c);
    });
}

/// The same for bfloat16 A and B; needs AVX512-BF16.
///
/// # Panics
/// When a slice has another size, or this processor lacks AVX512-BF16.
pub fn gemm_bf16_blocks(
    device: &Device,
    repeats: usize,
    (a, b): (&[bf16], &[bf16]),
    c: &mut [f32],
) {
    let [m, n, k] = Block::SIZES;
    let mut packed = PackedBf16::new();
    packed.pack(Mat::new(b, k, n, n));
    blocks(device, "gemm.bf16.blocks", repeats, c, |c| {
        gemm_bf16(1.0, Mat::new(a, m, k, k), &packed, Store::Replace, c);
    });
}

fn blocks(
    device: &Device,
    kernel: &str,
    repeats: usize,
    c: &mut [f32],
    multiply: impl Fn(MatMut<'_>) + Sync,
) {
    let [m, n, _] = Block::SIZES;
    let threads = device.capabilities().threads;
    assert_eq!(c.len(), threads * m * n, "a block of C for each thread");
    let c = SharedMut::new(c);
    device.launch(
        kernel,
        threads,
        || (),
        |(), block| {
            // SAFETY: each block of the grid has its own part of C.
            let own = unsafe { c.slice(block * m * n..(block + 1) * m * n) };
            for _ in 0..repeats {
                multiply(MatMut::new(&mut *own, m, n, n));
            }
        },
    );
}
