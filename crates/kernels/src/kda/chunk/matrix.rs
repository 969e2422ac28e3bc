//! Scratch matrices and the products of them.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers, bounds asserted first.

use crate::cpu::simd::Simd;
use device::Isa;

/// One cache line of f32; all vectors of a matrix lie inside lines.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// A row-major matrix of f32 that starts on a cache line, as its rows do.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    lines: Vec<Line>,
    stride: usize,
}

impl Matrix {
    /// Makes room; new elements are zero. Rows are an odd number of lines apart, so that a column of a tile does not
    /// fall into a few sets of the first cache.
    pub(super) fn resize(&mut self, rows: usize, columns: usize) {
        let lines = columns.div_ceil(LINE) | 1;
        self.stride = lines * LINE;
        self.lines.resize(rows * lines, Line::default());
    }

    /// Distance of two rows.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// All elements, padding included.
    pub(super) fn data(&self) -> &[f32] {
        // SAFETY: lines are arrays of f32 without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * LINE) }
    }

    /// All elements, padding included.
    pub(super) fn data_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `data`.
        unsafe {
            std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * LINE)
        }
    }

    /// A row with its padding.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let stride = self.stride;
        &mut self.data_mut()[row * stride..][..stride]
    }

    /// The matrix from a row on, for reading.
    pub(super) fn from_row(&self, row: usize) -> View<'_> {
        View { data: &self.data()[row * self.stride..], stride: self.stride }
    }
}

/// A row-major matrix to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// What a product is added to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// Nothing; the old values are not read.
    Zero,
    /// The old values.
    Old,
    /// The old values, each row times a factor.
    Scaled(&'a [f32]),
}

/// `c = start + a b` for `[rows, depth]` times `[depth, columns]`. Rows and columns are multiples of 16: the buffers
/// of a chunk are padded, so that no tile is ever cut.
///
/// # Panics
/// When a size is no multiple of 16 or a matrix is too small.
#[inline(always)]
pub(super) fn multiply<S: Simd>(
    simd: S,
    [rows, columns, depth]: [usize; 3],
    a: View<'_>,
    b: View<'_>,
    start: Start<'_>,
    c: &mut [f32],
    c_stride: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(
        rows.is_multiple_of(16) && columns.is_multiple_of(16),
        "{rows}x{columns} is no whole tile"
    );
    assert!(depth == 0 || (rows - 1) * a.stride + depth <= a.data.len(), "a is too small");
    assert!(depth == 0 || (depth - 1) * b.stride + columns <= b.data.len(), "b is too small");
    assert!((rows - 1) * c_stride + columns <= c.len(), "c is too small");
    if let Start::Scaled(factors) = start {
        assert!(factors.len() >= rows, "a factor for each row");
    }
    let product = Product { rows, depth, a, b, start, c: c.as_mut_ptr(), c_stride };
    // SAFETY: sizes asserted above. Sums of a tile, its vectors of b and a broadcast fit the registers.
    unsafe {
        match S::ISA {
            Isa::Avx512 | Isa::Avx512Bf16 => product.columns::<S, 8, 2>(simd, columns),
            Isa::Neon => product.columns::<S, 8, 2>(simd, columns),
            Isa::Avx2 => product.columns::<S, 4, 2>(simd, columns),
            Isa::Portable => product.columns::<S, 2, 2>(simd, columns),
        }
    }
}

struct Product<'a> {
    rows: usize,
    depth: usize,
    a: View<'a>,
    b: View<'a>,
    start: Start<'a>,
    c: *mut f32,
    c_stride: usize,
}

impl Product<'_> {
    /// # Safety
    /// The sizes must fit the matrices, rows be a multiple of `ROWS` and columns of the lanes.
    #[inline(always)]
    unsafe fn columns<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &self,
        simd: S,
        columns: usize,
    ) {
        let mut column = 0;
        while column + S::LANES * VECTORS <= columns {
            for row in (0..self.rows).step_by(ROWS) {
                // SAFETY: the tile is inside.
                unsafe { self.tile::<S, ROWS, VECTORS>(simd, row, column) };
            }
            column += S::LANES * VECTORS;
        }
        while column < columns {
            for row in (0..self.rows).step_by(ROWS) {
                // SAFETY: the tile is inside.
                unsafe { self.tile::<S, ROWS, 1>(simd, row, column) };
            }
            column += S::LANES;
        }
    }

    /// # Safety
    /// The tile of `ROWS` rows and `VECTORS` vectors of columns must be inside.
    #[inline(always)]
    unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &self,
        simd: S,
        row: usize,
        column: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let a: [*const f32; ROWS] =
                std::array::from_fn(|i| self.a.data.as_ptr().add((row + i) * self.a.stride));
            let b = self.b.data.as_ptr().add(column);
            let c = self.c.add(row * self.c_stride + column);
            let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
            match self.start {
                Start::Zero => {}
                Start::Old => {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        for (j, sum) in sums.iter_mut().enumerate() {
                            *sum = simd.load(c.add(i * self.c_stride + j * S::LANES));
                        }
                    }
                }
                Start::Scaled(factors) => {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let factor = simd.splat(*factors.get_unchecked(row + i));
                        for (j, sum) in sums.iter_mut().enumerate() {
                            let old = simd.load(c.add(i * self.c_stride + j * S::LANES));
                            *sum = simd.mul(factor, old);
                        }
                    }
                }
            }
            for k in 0..self.depth {
                let b: [S::V; VECTORS] =
                    std::array::from_fn(|j| simd.load(b.add(k * self.b.stride + j * S::LANES)));
                for (sums, a) in sums.iter_mut().zip(&a) {
                    let a = simd.splat(*a.add(k));
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = simd.fma(a, b, *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    simd.store(c.add(i * self.c_stride + j * S::LANES), *sum);
                }
            }
        }
    }
}

/// Solves `(I - lower) x = x` in place, row after row, for 16 rows of x; `lower` is strictly lower triangular.
///
/// # Panics
/// When a matrix is too small or the columns are no multiple of 16.
#[inline(always)]
pub(super) fn solve_16<S: Simd>(
    simd: S,
    lower: View<'_>,
    x: &mut [f32],
    x_stride: usize,
    columns: usize,
) {
    assert!(columns.is_multiple_of(16), "{columns} columns are no whole tile");
    assert!(15 * lower.stride + 16 <= lower.data.len() && 15 * x_stride + columns <= x.len());
    for column in (0..columns).step_by(S::LANES) {
        let x = x[column..].as_mut_ptr();
        // SAFETY: 16 rows of both are inside, asserted above.
        unsafe {
            let mut rows: [S::V; 16] = std::array::from_fn(|i| simd.load(x.add(i * x_stride)));
            for j in 0..15 {
                for i in 1..16 {
                    if i > j {
                        let factor = simd.splat(*lower.data.as_ptr().add(i * lower.stride + j));
                        rows[i] = simd.fma(factor, rows[j], rows[i]);
                    }
                }
            }
            for (i, row) in rows.iter().enumerate() {
                simd.store(x.add(i * x_stride), *row);
            }
        }
    }
}
