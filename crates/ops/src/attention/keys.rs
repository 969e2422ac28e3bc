use crate::Sequences;
use std::ops::Range;

/// Layout of the key (and value) rows of each sequence: contiguous, or paged in blocks of a block table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLayout {
    lengths: Vec<usize>,
    place: KeyRows,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyRows {
    /// First row of each sequence.
    Contiguous { starts: Vec<usize> },
    /// Block numbers `[sequences, max_blocks]`; row `j` of a sequence is in its block `j / block_size`.
    Paged { table: Vec<usize>, max_blocks: usize, block_size: usize },
}

impl KeyLayout {
    /// Contiguous rows. `lengths` limits each sequence (a cache that is not full); all rows if `None`.
    pub fn contiguous(rows: &Sequences, lengths: Option<Vec<usize>>) -> Self {
        let lengths = lengths.unwrap_or_else(|| rows.iter().map(|range| range.len()).collect());
        Self {
            lengths,
            place: KeyRows::Contiguous { starts: rows.iter().map(|range| range.start).collect() },
        }
    }

    /// Rows in blocks of `block_size`; entries of `table` past a sequence's length are not read.
    pub(super) fn paged(
        table: Vec<usize>,
        max_blocks: usize,
        block_size: usize,
        lengths: Vec<usize>,
    ) -> Self {
        Self { lengths, place: KeyRows::Paged { table, max_blocks, block_size } }
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.lengths.len()
    }

    /// Keys of one sequence.
    pub fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    /// Whether no sequence has a key.
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|length| *length == 0)
    }

    /// Keys of the longest sequence.
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Rows per block when the rows are paged.
    pub fn block_size(&self) -> Option<usize> {
        match &self.place {
            KeyRows::Contiguous { .. } => None,
            KeyRows::Paged { block_size, .. } => Some(*block_size),
        }
    }

    /// The row of key `j` of a sequence in the tensor seen as `[rows, Hkv, D]`.
    pub fn row(&self, sequence: usize, j: usize) -> usize {
        match &self.place {
            KeyRows::Contiguous { starts } => starts[sequence] + j,
            KeyRows::Paged { table, max_blocks, block_size } => {
                table[sequence * max_blocks + j / block_size] * block_size + j % block_size
            }
        }
    }

    /// The rows of keys `range` of a sequence, as few runs of neighbouring rows as the layout allows.
    pub fn runs(
        &self,
        sequence: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let length = match self.block_size() {
                None => range.end - next,
                Some(block_size) => (block_size - next % block_size).min(range.end - next),
            };
            let row = self.row(sequence, next);
            next += length;
            Some(row..row + length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_the_rows_in_order() {
        let contiguous = KeyLayout::contiguous(&Sequences::dense(2, 10), Some(vec![3, 10]));
        let paged = KeyLayout::paged(vec![7, 2, 0, 5, 1, 0], 3, 4, vec![9, 6]);
        assert_eq!(paged.row(0, 5), 2 * 4 + 1);
        for keys in [contiguous, paged] {
            for sequence in 0..2 {
                for start in 0..keys.len(sequence) {
                    for end in start..=keys.len(sequence) {
                        let rows: Vec<usize> = keys.runs(sequence, start..end).flatten().collect();
                        let expect: Vec<usize> =
                            (start..end).map(|j| keys.row(sequence, j)).collect();
                        assert_eq!(rows, expect, "{keys:?} {sequence} {start}..{end}");
                    }
                }
            }
        }
    }
}
