//! Scratch matrices.
// `from_row` says where a view begins; it converts nothing.
#![allow(clippy::wrong_self_convention)]

use crate::aligned::Aligned;

/// f32 values of a cache line.
const LINE: usize = 16;

/// A row-major matrix of f32 that starts on a cache line, as its rows do.
#[derive(Default)]
pub(super) struct Matrix {
    values: Aligned,
    len: usize,
    stride: usize,
}

impl Matrix {
    /// Grows the buffer with zeros. Rows are an odd number of lines apart, so that the rows of a tile do not map to a few
    /// sets of L1.
    pub(super) fn resize(&mut self, rows: usize, columns: usize) {
        self.stride = (columns.div_ceil(LINE) | 1) * LINE;
        self.len = rows * self.stride;
        self.values.of_len(self.len);
    }

    /// Distance of two rows.
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

    /// The matrix from a row on, for writing.
    pub(super) fn from_row_mut(&mut self, row: usize) -> ViewMut<'_> {
        let stride = self.stride;
        ViewMut { data: &mut self.data_mut()[row * stride..], stride }
    }

    /// The rows before `row`, and those from it on for writing.
    pub(super) fn split_at(&mut self, row: usize) -> (View<'_>, ViewMut<'_>) {
        let stride = self.stride;
        let (before, after) = self.data_mut().split_at_mut(row * stride);
        (View { data: before, stride }, ViewMut { data: after, stride })
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

impl<'a> View<'a> {
    /// The matrix from a column on.
    pub(super) fn from_column(self, column: usize) -> View<'a> {
        View { data: &self.data[column..], stride: self.stride }
    }
}

/// A row-major matrix to write.
#[derive(Debug)]
pub(super) struct ViewMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
}
