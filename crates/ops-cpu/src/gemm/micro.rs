//! Register tiles of C = A B over f32 panels.

use super::{Mat, MatMut, PackedB, Store};
use crate::simd::{Simd, SimdKernel};
use device::Isa;

/// Vectors of columns in a register tile, the same for every instruction set so that panels are simple to size.
pub(super) const TILE_VECTORS: usize = 2;

pub(super) struct Product<'a> {
    pub(super) alpha: f32,
    /// Whether to accumulate in float64.
    pub(super) wide: bool,
    pub(super) a: Mat<'a>,
    pub(super) b: &'a PackedB,
    pub(super) store: Store,
    pub(super) c: MatMut<'a>,
}

impl SimdKernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        assert_eq!(
            self.b.tile_columns(),
            S::LANES * TILE_VECTORS,
            "B was packed for another instruction set"
        );
        if self.wide {
            // A sum takes two registers for one of f32.
            return match (self.a.rows, S::ISA) {
                (0 | 1, _) => self.tiles::<S, 1, true>(simd),
                (_, Isa::Avx2 | Isa::Portable) => self.tiles::<S, 2, true>(simd),
                _ => self.tiles::<S, 4, true>(simd),
            };
        }
        // A short A takes a tile of the same height: one row, as in decoding, has a twelfth of the arithmetic of the
        // full tile and is memory-bound. Rows are summed in the same order in every tile.
        match self.a.rows {
            0 | 1 => return self.tiles::<S, 1, false>(simd),
            2..=4 => return self.tiles::<S, 4, false>(simd),
            _ => {}
        }
        // Rows of a register tile: as many as leave registers for the B vectors and one broadcast.
        match S::ISA {
            // 12 x 2 sums, 2 of B and 1 broadcast: 27 of 32 registers.
            Isa::Avx512 | Isa::Avx512Bf16 => self.tiles::<S, 12, false>(simd),
            // 32 registers too, but 8 x 2 sums already cover latency times throughput.
            Isa::Neon => self.tiles::<S, 8, false>(simd),
            // 6 x 2 sums, 2 of B and 1 broadcast: 15 of 16 registers.
            Isa::Avx2 => self.tiles::<S, 6, false>(simd),
            Isa::Portable => self.tiles::<S, 2, false>(simd),
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn tiles<S: Simd, const ROWS: usize, const WIDE: bool>(self, simd: S) {
        let Self { alpha, a, b, store, c, .. } = self;
        let width = S::LANES * TILE_VECTORS;
        let c_start = c.data.as_mut_ptr();
        for (panel, column) in (0..c.columns).step_by(width).enumerate() {
            let columns = width.min(c.columns - column);
            let b_panel = b.panel(panel).as_ptr();
            let mut row = 0;
            while row < a.rows {
                let rows = ROWS.min(a.rows - row);
                // SAFETY: `gemm_packed` asserted that A, C and the panel cover rows, columns and depth; short tiles
                // read the last row again instead of leaving A, and store only `rows` rows and `columns` columns.
                unsafe {
                    let a_start = a.data.as_ptr().add(row * a.row_stride);
                    let a_rows: [*const f32; ROWS] =
                        std::array::from_fn(|i| a_start.add(i.min(rows - 1) * a.row_stride));
                    let sums = if WIDE {
                        tile_wide::<S, ROWS>(simd, &a_rows, a.column_stride, a.columns, b_panel)
                    } else {
                        tile::<S, ROWS>(simd, &a_rows, a.column_stride, a.columns, b_panel)
                    };
                    let to = c_start.add(row * c.row_stride + column);
                    let to = TileOutput { to, stride: c.row_stride, rows, columns };
                    put::<S, ROWS>(simd, sums, alpha, store, to);
                }
                row += rows;
            }
        }
    }
}

/// # Safety
/// Each A row must be readable for `depth` steps of `step`, the panel for `depth` register tile rows.
#[inline(always)]
unsafe fn tile<S: Simd, const ROWS: usize>(
    simd: S,
    a_rows: &[*const f32; ROWS],
    step: usize,
    depth: usize,
    b_panel: *const f32,
) -> [[S::V; TILE_VECTORS]; ROWS] {
    let mut sums = [[simd.splat(0.0); TILE_VECTORS]; ROWS];
    for k in 0..depth {
        // SAFETY: the caller's contract.
        unsafe {
            let b_row = b_panel.add(k * S::LANES * TILE_VECTORS);
            let b: [S::V; TILE_VECTORS] =
                std::array::from_fn(|j| simd.load(b_row.add(j * S::LANES)));
            for (sums, a_row) in sums.iter_mut().zip(a_rows) {
                let a = simd.splat(*a_row.add(k * step));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = simd.fma(a, b, *sum);
                }
            }
        }
    }
    sums
}

/// As [`tile`], with sums in float64, in which products of two f32 are exact.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn tile_wide<S: Simd, const ROWS: usize>(
    simd: S,
    a_rows: &[*const f32; ROWS],
    step: usize,
    depth: usize,
    b_panel: *const f32,
) -> [[S::V; TILE_VECTORS]; ROWS] {
    let mut sums = [[simd.splat_wide(0.0); TILE_VECTORS]; ROWS];
    for k in 0..depth {
        // SAFETY: the caller's contract.
        unsafe {
            let b_row = b_panel.add(k * S::LANES * TILE_VECTORS);
            let b: [S::Wide; TILE_VECTORS] =
                std::array::from_fn(|j| simd.load_wide(b_row.add(j * S::LANES)));
            for (sums, a_row) in sums.iter_mut().zip(a_rows) {
                let a = simd.splat_wide(f64::from(*a_row.add(k * step)));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = simd.fma_wide(a, b, *sum);
                }
            }
        }
    }
    let mut narrow = [[simd.splat(0.0); TILE_VECTORS]; ROWS];
    for (narrow, sums) in narrow.iter_mut().zip(&sums) {
        for (narrow, sum) in narrow.iter_mut().zip(sums) {
            *narrow = simd.narrow_wide(*sum);
        }
    }
    narrow
}

/// Destination of a register tile: `rows` rows of `columns` values, `stride` apart.
struct TileOutput {
    to: *mut f32,
    stride: usize,
    rows: usize,
    columns: usize,
}

/// # Safety
/// The destination must be writable.
#[inline(always)]
unsafe fn put<S: Simd, const ROWS: usize>(
    simd: S,
    sums: [[S::V; TILE_VECTORS]; ROWS],
    alpha: f32,
    store: Store,
    TileOutput { to, stride, rows, columns }: TileOutput,
) {
    let scale = simd.splat(alpha);
    for (i, sums) in sums.iter().enumerate() {
        if i >= rows {
            return;
        }
        for (j, sum) in sums.iter().enumerate() {
            let count = S::LANES.min(columns.saturating_sub(j * S::LANES));
            // SAFETY: the caller's contract; `count` columns from here are inside the row.
            unsafe {
                let to = to.add(i * stride + (j * S::LANES).min(columns));
                let value = match store {
                    Store::Replace => simd.mul(*sum, scale),
                    Store::Add if count == S::LANES => simd.fma(*sum, scale, simd.load(to)),
                    Store::Add => simd.fma(*sum, scale, simd.load_first(to, count)),
                };
                if count == S::LANES {
                    simd.store(to, value);
                } else {
                    simd.store_first(to, value, count);
                }
            }
        }
    }
}
