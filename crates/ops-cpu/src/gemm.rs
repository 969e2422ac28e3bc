//! GEMM microkernels for blocks of other ops, and one product over all cores.
//!
//! A is read through its strides, so A and its transpose cost the same. B is packed once into panels of as many
//! columns as a register tile is wide ([`PackedB`]) and can be used many times.
#![allow(unsafe_code)] // Register tiles read through raw pointers; every bound is asserted on entry.

mod bf16;
mod integers;
mod micro;
mod pack;
mod parallel;

pub use bf16::{PackedBf16, PanelsBf16, gemm_bf16, gemm_panels_bf16};
pub use integers::{IntegerFormat, IntegerRows};
pub(super) use integers::{IntegerPanels, PANEL};
pub use pack::PackedB;
pub use parallel::{
    Block, gemm_bf16_blocks, gemm_bf16_parallel, gemm_f32_blocks, gemm_f32_parallel,
};

use super::simd::dispatch;
use device::Isa;

/// A matrix inside a slice: element (row, column) is `data[row * row_stride + column * column_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Mat<'a, T = f32> {
    /// Elements.
    pub data: &'a [T],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Distance of two rows, in elements.
    pub row_stride: usize,
    /// Distance of two columns, in elements.
    pub column_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// A row-major matrix whose rows are `row_stride` apart.
    ///
    /// # Panics
    /// When the slice is too short.
    pub fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        let matrix = Self { data, rows, columns, row_stride, column_stride: 1 };
        matrix.check();
        matrix
    }

    /// The transpose, by swapping strides.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    fn check(&self) {
        if self.rows > 0 && self.columns > 0 {
            let last = (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride;
            assert!(
                last < self.data.len(),
                "a {}x{} matrix in {} elements",
                self.rows,
                self.columns,
                self.data.len()
            );
        }
    }
}

/// A row-major matrix to write.
#[derive(Debug)]
pub struct MatMut<'a> {
    /// Elements.
    pub data: &'a mut [f32],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Distance of two rows, in elements.
    pub row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// A row-major matrix whose rows are `row_stride` apart.
    ///
    /// # Panics
    /// When the slice is too short.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let matrix = Self { data, rows, columns, row_stride };
        Mat::new(&*matrix.data, rows, columns, row_stride);
        matrix
    }
}

/// Treatment of the old values of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// They are overwritten (and may be NaN).
    Replace,
    /// The product is added to them.
    Add,
}

/// C = alpha A B, or C += alpha A B, on one thread, B packed before.
///
/// # Panics
/// When sizes disagree or this processor lacks `isa`.
pub fn gemm_packed(isa: Isa, alpha: f32, a: Mat<'_>, b: &PackedB, store: Store, c: MatMut<'_>) {
    multiply(isa, micro::Product { alpha, wide: false, a, b, store, c });
}

/// C = A B on one thread, with B already packed and sums in float64: each value of C is rounded once. Half as fast as [`gemm_packed`]
/// if compute-bound, equally fast if memory-bound.
///
/// # Panics
/// As [`gemm_packed`].
pub fn gemm_packed_wide(isa: Isa, a: Mat<'_>, b: &PackedB, c: MatMut<'_>) {
    multiply(isa, micro::Product { alpha: 1.0, wide: true, a, b, store: Store::Replace, c });
}

fn multiply(isa: Isa, product: micro::Product<'_>) {
    let micro::Product { a, b, c, .. } = &product;
    a.check();
    assert_eq!(
        (a.rows, a.columns, b.columns()),
        (c.rows, b.depth(), c.columns),
        "sizes of C = A B"
    );
    dispatch(isa, product);
}

/// C = alpha A B, or C += alpha A B, on one thread. `packed` is scratch that the caller reuses between calls.
///
/// # Panics
/// As [`gemm_packed`].
pub fn gemm_f32(
    isa: Isa,
    alpha: f32,
    a: Mat<'_>,
    b: Mat<'_>,
    store: Store,
    c: MatMut<'_>,
    packed: &mut PackedB,
) {
    packed.pack(isa, b);
    gemm_packed(isa, alpha, a, packed, store, c);
}

#[cfg(test)]
mod tests;
