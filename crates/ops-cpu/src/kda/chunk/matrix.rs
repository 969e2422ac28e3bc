//! Scratch matrices.
// `from_row` returns a view and converts nothing.
#![allow(clippy::wrong_self_convention)]

use crate::aligned::Aligned;

/// f32 values of a cache line.
const LINE: usize = 16;

/// A row-major matrix of f32 whose rows start on cache lines.
#[derive(Default)]
pub(super) struct Matrix {
    values: Aligned,
    len: usize,
    stride: usize,
}

impl Matrix {
    /// Grows the buffer with zeros. The stride is an odd number of cache lines, so that the rows of a tile map to different
    /// L1 sets.
    pub(super) fn resize(&mut self, rows: usize, columns: usize) {
        self.stride = (columns.div_ceil(LINE) | 1) * LINE;
        self.len = rows * self.stride;
        self.values.of_len(self.len);
    }

    /// Elements from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// All elements, padding included.
    pub(super) fn data(&self) -> &[f32] {
        &self.values.values()[..self.len]
    }

    /// All elements, padding included.
    pub(super) fn data_mut(&mut self) -> &mut [f32] {
        self.values.of_len(self.len)
    }

    /// A row with its padding.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let stride = self.stride;
        &mut self.data_mut()[row * stride..][..stride]
    }

    /// The rows from `row` on, mutable.
    pub(super) fn from_row_mut(&mut self, row: usize) -> ViewMut<'_> {
        let stride = self.stride;
        ViewMut { data: &mut self.data_mut()[row * stride..], stride }
    }

    /// The rows before `row`, and the rows from it on, mutable.
    pub(super) fn split_at(&mut self, row: usize) -> (View<'_>, ViewMut<'_>) {
        let stride = self.stride;
        let (before, after) = self.data_mut().split_at_mut(row * stride);
        (View { data: before, stride }, ViewMut { data: after, stride })
    }

    /// The rows from `row` on.
    pub(super) fn from_row(&self, row: usize) -> View<'_> {
        View { data: &self.data()[row * self.stride..], stride: self.stride }
    }
}

/// Rows of a matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl<'a> View<'a> {
    /// The columns from `column` on.
    pub(super) fn from_column(self, column: usize) -> View<'a> {
        View { data: &self.data[column..], stride: self.stride }
    }
}

/// Mutable rows of a matrix.
#[derive(Debug)]
pub(super) struct ViewMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
}
