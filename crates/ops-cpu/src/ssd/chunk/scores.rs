//! Scores of a chunk, C B^T: the weight of each token's input in each token's output, before decay.

use crate::gemm::{Mat, MatMut, PackedB, Store, gemm_packed};
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::ssd::operands::{Operands, Rows};
use device::Isa;
use ops::Element;
use ops::ssd::SsdProblem;
use std::ops::Range;

/// Columns computed at once; the rows above them, hidden by the causal mask, are skipped.
const COLUMNS: usize = 32;

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    b: Vec<f32>,
    c: Vec<f32>,
    packed: PackedB,
}

/// Range of the scores of a chunk and group: `tokens.len()` rows, `chunk` apart.
pub(super) fn range(
    problem: &SsdProblem,
    chunk: usize,
    tokens: &Range<usize>,
    group: usize,
) -> Range<usize> {
    let start = (tokens.start * problem.groups + group * tokens.len()) * chunk;
    start..start + tokens.len() * chunk
}

struct Compute<'a, E> {
    isa: Isa,
    operands: &'a Operands<'a, E>,
    tokens: Range<usize>,
    group: usize,
    chunk: usize,
    scratch: &'a mut Scratch,
    out: &'a mut [f32],
}

/// Computes the scores of one chunk and group on and below the diagonal; scores above it are not all written.
pub(super) fn compute<E: Element>(
    isa: Isa,
    operands: &Operands<'_, E>,
    tokens: Range<usize>,
    group: usize,
    chunk: usize,
    scratch: &mut Scratch,
    out: &mut [f32],
) {
    dispatch(isa, Compute { isa, operands, tokens, group, chunk, scratch, out });
}

impl<E: Element> SimdKernel for Compute<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { isa, operands, tokens, group, chunk, scratch, out } = self;
        let len = tokens.len();
        let Scratch { b, c, packed } = scratch;
        let rows = Rows::of_group(operands.problem, tokens, group);
        let b = rows.read(simd, operands.b, b);
        let c = rows.read(simd, operands.c, c);
        for first in (0..len).step_by(COLUMNS) {
            let columns = COLUMNS.min(len - first);
            packed.pack(isa, part(b, first, columns).t());
            let to = MatMut::new(&mut out[first * chunk + first..], len - first, columns, chunk);
            gemm_packed(isa, 1.0, part(c, first, len - first), packed, Store::Replace, to);
        }
    }
}

/// `count` rows of a matrix from `first` on.
fn part(matrix: Mat<'_>, first: usize, count: usize) -> Mat<'_> {
    // A matrix without columns has no elements to start at.
    let start = if matrix.columns == 0 { 0 } else { first * matrix.row_stride };
    Mat::new(&matrix.data[start..], count, matrix.columns, matrix.row_stride)
}
