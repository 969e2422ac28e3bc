//! Prefetches of later tokens' rows during compute-bound products.

use super::CHUNK;
use super::products::{InterleavedTask, STRETCH};
use crate::kda::operands::Operands;
use crate::kda::parts::Part;
use crate::stream::prefetch;
use ops::Element;
use std::ops::Range;

/// Prefetches, during the two products with the state, the rows that the next steps access first. A few at a time: more
/// requests than the processor has line fill buffers would stall the product.
pub(super) struct Prefetch<'a, 'b, E> {
    part: &'a mut Part<'b, E>,
    /// The next row: first this chunk's outputs, then the next chunk's inputs.
    next: usize,
    outputs: Range<usize>,
    inputs: Range<usize>,
    /// Rows per call, so that all are prefetched when the products end.
    rows: usize,
}

impl<'a, 'b, E: Element> Prefetch<'a, 'b, E> {
    /// For the two products of `[rows, depth]` times `[depth, columns]` of a chunk, the depth in steps.
    #[inline(always)]
    pub(super) fn new(
        part: &'a mut Part<'b, E>,
        tokens: Range<usize>,
        [rows, columns, depth]: [usize; 3],
    ) -> Self {
        // Tiles are at most 8 x 32.
        let calls = 2 * (rows / 8) * columns.div_ceil(32) * depth.div_ceil(STRETCH);
        let inputs = tokens.end..(tokens.end + CHUNK).min(part.tokens.end);
        let all = tokens.len() + inputs.len() * Operands::<E>::INPUT_ROWS;
        Self { part, next: 0, outputs: tokens, inputs, rows: all.div_ceil(calls.max(1)) }
    }
}

impl<E: Element> InterleavedTask for Prefetch<'_, '_, E> {
    #[inline(always)]
    fn next(&mut self) {
        for _ in 0..self.rows {
            let row = self.next;
            self.next += 1;
            if row < self.outputs.len() {
                prefetch(self.part.output(self.outputs.start + row));
                continue;
            }
            let row = row - self.outputs.len();
            let token = self.inputs.start + row / Operands::<E>::INPUT_ROWS;
            if token < self.inputs.end {
                let values = self.part.column..self.part.column + self.part.columns;
                let row = row % Operands::<E>::INPUT_ROWS;
                self.part.operands().prefetch(row, token, self.part.head, values);
            }
        }
    }
}
