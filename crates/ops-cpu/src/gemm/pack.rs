//! B in panels as wide as a register tile: `[panel][depth][width]`, the last panel padded with zeros.

use super::Mat;
use super::micro::TILE_VECTORS;
use crate::simd::{Simd, SimdKernel, dispatch};
use device::Isa;

/// A packed right-hand side. [`PackedB::pack`] reuses its buffer.
#[derive(Debug, Default)]
pub struct PackedB {
    data: Vec<f32>,
    depth: usize,
    columns: usize,
    width: usize,
}

impl PackedB {
    /// An empty matrix.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `b` for products on `isa`.
    ///
    /// # Panics
    /// When the matrix leaves its slice or this processor lacks `isa`.
    pub fn pack(&mut self, isa: Isa, b: Mat<'_>) {
        b.check();
        dispatch(isa, Pack { b, to: self });
    }

    /// Rows of B.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of B.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn tile_columns(&self) -> usize {
        self.width
    }

    pub(super) fn panel(&self, index: usize) -> &[f32] {
        let size = self.depth * self.width;
        &self.data[index * size..(index + 1) * size]
    }
}

struct Pack<'a> {
    b: Mat<'a>,
    to: &'a mut PackedB,
}

impl SimdKernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { b, to } = self;
        let width = S::LANES * TILE_VECTORS;
        (to.depth, to.columns, to.width) = (b.rows, b.columns, width);
        let panels = b.columns.div_ceil(width);
        // Resizing clears only added values; all values, padding included, are overwritten below.
        to.data.resize(panels * width * b.rows, 0.0);
        for panel in 0..panels {
            let first = panel * width;
            let columns = width.min(b.columns - first);
            let out = &mut to.data[panel * width * b.rows..(panel + 1) * width * b.rows];
            if b.column_stride == 1 {
                copy_rows(b, first, columns, width, out);
            } else if b.row_stride == 1 {
                transpose_columns(simd, b, first, columns, width, out);
            } else {
                for (row, out) in out.chunks_exact_mut(width).enumerate() {
                    out.fill(0.0);
                    for (column, out) in out[..columns].iter_mut().enumerate() {
                        *out = b.data[row * b.row_stride + (first + column) * b.column_stride];
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn copy_rows(b: Mat<'_>, first: usize, columns: usize, width: usize, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let start = row * b.row_stride + first;
        out[..columns].copy_from_slice(&b.data[start..start + columns]);
        out[columns..].fill(0.0);
    }
}

/// Columns of B are contiguous: whole square blocks go through registers, the rest one by one.
#[inline(always)]
fn transpose_columns<S: Simd>(
    simd: S,
    b: Mat<'_>,
    first: usize,
    columns: usize,
    width: usize,
    out: &mut [f32],
) {
    let block = S::TRANSPOSE;
    let (whole_rows, whole_columns) = (b.rows / block * block, columns / block * block);
    for column in (0..whole_columns).step_by(block) {
        for row in (0..whole_rows).step_by(block) {
            let from = &b.data[(first + column) * b.column_stride + row..];
            assert!((block - 1) * b.column_stride + block <= from.len());
            let to = &mut out[row * width + column..];
            assert!((block - 1) * width + block <= to.len());
            // SAFETY: both slices have `block` rows of `block` values, asserted above.
            unsafe { simd.transpose(from.as_ptr(), b.column_stride, to.as_mut_ptr(), width) };
        }
    }
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let done = if row < whole_rows { whole_columns } else { 0 };
        for (column, out) in out[..columns].iter_mut().enumerate().skip(done) {
            *out = b.data[(first + column) * b.column_stride + row];
        }
        out[columns..].fill(0.0);
    }
}
