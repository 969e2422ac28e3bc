//! Products of scratch matrices in f32, and the triangle of one block.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers, bounds asserted first.

use super::matrix::{View, ViewMut};
use crate::simd::Simd;
use device::Isa;

/// The value of C that a product is added to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// Zero; C is not read.
    Zero,
    /// C.
    Current,
    /// C, each row times a factor.
    Scaled(&'a [f32]),
}

/// Depth of a tile between two calls of [`InterleavedTask::next`].
pub(super) const STRETCH: usize = 16;

/// A small task interleaved with a product.
pub(super) trait InterleavedTask {
    /// Called after each stretch of each tile; implement as `#[inline(always)]`.
    fn next(&mut self);
}

impl InterleavedTask for () {
    #[inline(always)]
    fn next(&mut self) {}
}

/// `c = start + a b` for `[rows, depth]` times `[depth, columns]`. Rows and columns are multiples of 16: the buffers
/// of a chunk are padded, so that all tiles are full.
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
    c: ViewMut<'_>,
    between: &mut impl InterleavedTask,
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
    assert!((rows - 1) * c.stride + columns <= c.data.len(), "c is too small");
    if let Start::Scaled(factors) = start {
        assert!(factors.len() >= rows, "a factor for each row");
    }
    let product = Product { rows, depth, a, b, start, c: c.data.as_mut_ptr(), c_stride: c.stride };
    // SAFETY: sizes asserted above. Sums of a tile, its vectors of b and a broadcast fit the registers.
    unsafe {
        match S::ISA {
            Isa::Avx512 | Isa::Avx512Bf16 => product.columns::<S, 8, 2>(simd, columns, between),
            Isa::Neon => product.columns::<S, 8, 2>(simd, columns, between),
            Isa::Avx2 => product.columns::<S, 4, 2>(simd, columns, between),
            Isa::Portable => product.columns::<S, 2, 2>(simd, columns, between),
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
        between: &mut impl InterleavedTask,
    ) {
        let mut column = 0;
        while column + S::LANES * VECTORS <= columns {
            for row in (0..self.rows).step_by(ROWS) {
                // SAFETY: the tile is inside.
                unsafe { self.tile::<S, ROWS, VECTORS>(simd, row, column, between) };
            }
            column += S::LANES * VECTORS;
        }
        while column < columns {
            for row in (0..self.rows).step_by(ROWS) {
                // SAFETY: the tile is inside.
                unsafe { self.tile::<S, ROWS, 1>(simd, row, column, between) };
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
        between: &mut impl InterleavedTask,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let a: [*const f32; ROWS] =
                std::array::from_fn(|i| self.a.data.as_ptr().add((row + i) * self.a.stride));
            let b = self.b.data.as_ptr().add(column);
            let c = self.c.add(row * self.c_stride + column);
            let mut sums = [[simd.splat(0.0); VECTORS]; ROWS];
            for stretch in (0..self.depth).step_by(STRETCH) {
                for k in stretch..(stretch + STRETCH).min(self.depth) {
                    let b: [S::V; VECTORS] =
                        std::array::from_fn(|j| simd.load(b.add(k * self.b.stride + j * S::LANES)));
                    for (sums, a) in sums.iter_mut().zip(&a) {
                        let a = simd.splat(*a.add(k));
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = simd.fma(a, b, *sum);
                        }
                    }
                }
                between.next();
            }
            // Added last: a sum that begins with it rounds at its size at every step.
            match self.start {
                Start::Zero => {}
                Start::Current => {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        for (j, sum) in sums.iter_mut().enumerate() {
                            let old = simd.load(c.add(i * self.c_stride + j * S::LANES));
                            *sum = simd.add(*sum, old);
                        }
                    }
                }
                Start::Scaled(factors) => {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let factor = simd.splat(*factors.get_unchecked(row + i));
                        for (j, sum) in sums.iter_mut().enumerate() {
                            let old = simd.load(c.add(i * self.c_stride + j * S::LANES));
                            *sum = simd.fma(factor, old, *sum);
                        }
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
pub(super) fn solve_16<S: Simd>(simd: S, lower: View<'_>, x: ViewMut<'_>, columns: usize) {
    assert!(columns.is_multiple_of(16), "{columns} columns are no whole tile");
    assert!(15 * lower.stride + 16 <= lower.data.len());
    assert!(15 * x.stride + columns <= x.data.len());
    let triangle = Triangle { lower, x: x.data.as_mut_ptr(), stride: x.stride };
    // SAFETY: sizes asserted above. Enough columns at once hide that each row waits for the one before.
    unsafe {
        match S::ISA {
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Neon => triangle.columns::<S, 4>(simd, columns),
            Isa::Avx2 | Isa::Portable => triangle.columns::<S, 2>(simd, columns),
        }
    }
}

struct Triangle<'a> {
    lower: View<'a>,
    x: *mut f32,
    stride: usize,
}

impl Triangle<'_> {
    /// # Safety
    /// 16 rows of `columns` values must be there, and 16 x 16 of the triangle.
    #[inline(always)]
    unsafe fn columns<S: Simd, const VECTORS: usize>(&self, simd: S, columns: usize) {
        let mut column = 0;
        // SAFETY: the caller's contract.
        unsafe {
            while column + S::LANES * VECTORS <= columns {
                for row in (0..16).step_by(4) {
                    self.rows::<S, VECTORS>(simd, row, column);
                }
                column += S::LANES * VECTORS;
            }
            while column < columns {
                for row in (0..16).step_by(4) {
                    self.rows::<S, 1>(simd, row, column);
                }
                column += S::LANES;
            }
        }
    }

    /// Four rows, when those before them are solved.
    ///
    /// # Safety
    /// As [`Self::columns`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const VECTORS: usize>(&self, simd: S, row: usize, column: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let x = self.x.add(column);
            let lower: [*const f32; 4] = std::array::from_fn(|i| {
                self.lower.data.as_ptr().add((row + i) * self.lower.stride)
            });
            let mut sums = [[simd.splat(0.0); VECTORS]; 4];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = simd.load(x.add((row + i) * self.stride + j * S::LANES));
                }
            }
            for k in 0..row {
                for j in 0..VECTORS {
                    let solved = simd.load(x.add(k * self.stride + j * S::LANES));
                    for i in 0..4 {
                        sums[i][j] = simd.fma(simd.splat(*lower[i].add(k)), solved, sums[i][j]);
                    }
                }
            }
            for i in 1..4 {
                for k in 0..i {
                    let factor = simd.splat(*lower[i].add(row + k));
                    for j in 0..VECTORS {
                        sums[i][j] = simd.fma(factor, sums[k][j], sums[i][j]);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    simd.store(x.add((row + i) * self.stride + j * S::LANES), *sum);
                }
            }
        }
    }
}
