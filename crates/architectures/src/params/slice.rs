use facts::CompactSort;
use std::ops::Range;

/// A rank's part of a checkpoint's tensor: a column range of some rows, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSlice {
    /// Row width of the whole tensor.
    width: usize,
    /// Disjoint, in order.
    rows: Vec<Range<usize>>,
    columns: Range<usize>,
}

impl TensorSlice {
    /// From rows in any order, which may touch and overlap.
    pub(crate) fn new(width: usize, mut rows: Vec<Range<usize>>, columns: Range<usize>) -> Self {
        rows.compact_sort_by_key(|range| range.start);
        let mut apart: Vec<Range<usize>> = Vec::new();
        for range in rows {
            match apart.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        Self { width, rows: apart, columns }
    }

    /// Number of rows and columns.
    pub(crate) fn sides(&self) -> [usize; 2] {
        [self.rows.iter().map(Range::len).sum(), self.columns.len()]
    }

    /// Its column range, and the number of columns of the whole tensor.
    pub fn columns(&self) -> (Range<usize>, usize) {
        (self.columns.clone(), self.width)
    }

    /// Ranges of the whole tensor's rows that correspond to some of its rows, in order. Rows beyond its end are
    /// ignored.
    pub fn rows(&self, own: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut before = 0;
        self.rows.iter().filter_map(move |range| {
            let (from, to) = (own.start.max(before), own.end.min(before + range.len()));
            let run = (from < to).then(|| range.start + from - before..range.start + to - before);
            before += range.len();
            run
        })
    }

    /// Number of its rows before a row of the whole tensor.
    pub(crate) fn rows_before(&self, row: usize) -> usize {
        self.rows.iter().map(|range| range.end.min(row).saturating_sub(range.start)).sum()
    }

    /// Ranges of the whole tensor's values that correspond to `len` of its values starting at `first`, in order. Values
    /// beyond its end are ignored.
    pub fn runs(&self, first: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
        let Self { width, rows, columns } = self;
        let (own, end) = (columns.len(), first + len);
        let whole = own == *width;
        let mut at = first;
        let mut ranges = rows.iter();
        // The current range of rows, and the number of rows before it.
        let (mut current, mut before) = (0..0, 0);
        std::iter::from_fn(move || {
            if at >= end || own == 0 {
                return None;
            }
            while at / own >= before + current.len() {
                before += current.len();
                current = ranges.next()?.clone();
            }
            let row = current.start + at / own - before;
            let rows = if whole { current.end - row } else { 1 };
            let count = (rows * own - at % own).min(end - at);
            let start = row * width + columns.start + at % own;
            at += count;
            Some(start..start + count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cut: &TensorSlice, first: usize, len: usize, expect: &[(usize, usize)]) {
        let runs: Vec<_> = cut.runs(first, len).map(|run| (run.start, run.end)).collect();
        assert_eq!(runs, expect, "{cut:?} {first} {len}");
    }

    #[test]
    fn values_are_found_where_they_lie_in_the_whole() {
        let rows = TensorSlice::new(10, vec![4..6, 1..2, 5..7], 0..10);
        assert_eq!(rows.sides(), [4, 10]);
        check(&rows, 0, 40, &[(10, 20), (40, 70)]);
        check(&rows, 5, 10, &[(15, 20), (40, 45)]);
        check(&rows, 12, 3, &[(42, 45)]);
        // Beyond the end there is nothing.
        check(&rows, 35, 10, &[(65, 70)]);
        let columns = TensorSlice::new(10, vec![0..2, 3..4], 6..9);
        assert_eq!(columns.sides(), [3, 3]);
        check(&columns, 0, 9, &[(6, 9), (16, 19), (36, 39)]);
        check(&columns, 2, 3, &[(8, 9), (16, 18)]);
        check(&TensorSlice::new(10, Vec::new(), 0..10), 0, 10, &[]);
    }

    #[test]
    fn rows_are_found_where_they_lie_in_the_whole() {
        let cut = TensorSlice::new(10, vec![2..4, 8..11, 20..21], 6..9);
        let check = |own: Range<usize>, expect: &[(usize, usize)]| {
            let runs: Vec<_> = cut.rows(own.clone()).map(|run| (run.start, run.end)).collect();
            assert_eq!(runs, expect, "{own:?}");
        };
        check(0..6, &[(2, 4), (8, 11), (20, 21)]);
        check(1..3, &[(3, 4), (8, 9)]);
        check(3..5, &[(9, 11)]);
        check(5..9, &[(20, 21)]);
        check(2..2, &[]);
        assert_eq!(cut.columns(), (6..9, 10));
    }

    #[test]
    fn rows_count_the_remaining_rows() {
        let cut = TensorSlice::new(1, vec![2..4, 8..10], 0..1);
        let before: Vec<usize> = [0, 2, 3, 4, 8, 9, 10].map(|row| cut.rows_before(row)).into();
        assert_eq!(before, [0, 0, 1, 2, 2, 3, 4]);
    }
}
