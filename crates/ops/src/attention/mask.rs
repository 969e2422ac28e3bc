use std::ops::Range;

/// Attention mask: causal, sliding window, or both.
///
/// Query `i` of `Tq` has key position `p = i + Tk - Tq` (bottom-right alignment: the last query is aligned with the last
/// key), so one query over many cached keys sees all of them. Key `j` is visible if it passes every limit that is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mask {
    /// `j <= p`.
    pub causal: bool,
    /// `j >= p - window_left`.
    pub window_left: Option<usize>,
    /// `j <= p + window_right`.
    pub window_right: Option<usize>,
}

impl Mask {
    /// Every key up to the query's own position.
    pub const CAUSAL: Self = Self { causal: true, window_left: None, window_right: None };

    /// Keys that query `i` of `queries` sees among `keys`; empty (as `0..0`) when it sees none.
    pub fn visible(&self, queries: usize, keys: usize, i: usize) -> Range<usize> {
        // Positions are offset by `queries`, so that they fit `usize` with fewer keys than queries.
        let position = i + keys;
        let first = match self.window_left {
            Some(left) => position.saturating_sub(queries).saturating_sub(left),
            None => 0,
        };
        let reach = if self.causal { Some(0) } else { self.window_right };
        let end = match reach {
            Some(right) => {
                position.saturating_add(right).saturating_add(1).saturating_sub(queries).min(keys)
            }
            None => keys,
        };
        if first < end { first..end } else { 0..0 }
    }

    /// Keys that at least one of the queries in `rows` sees (both limits rise with the query).
    pub fn visible_to_any(&self, queries: usize, keys: usize, rows: Range<usize>) -> Range<usize> {
        let mut seen =
            rows.map(|i| self.visible(queries, keys, i)).filter(|range| !range.is_empty());
        let Some(first) = seen.next() else { return 0..0 };
        let last = seen.next_back().unwrap_or_else(|| first.clone());
        first.start..last.end
    }

    /// Number of visible (query, key) pairs.
    pub fn pairs(&self, queries: usize, keys: usize) -> f64 {
        if self.is_full() {
            return queries as f64 * keys as f64;
        }
        (0..queries).map(|i| self.visible(queries, keys, i).len() as f64).sum()
    }

    /// Whether every query sees every key.
    pub fn is_full(&self) -> bool {
        !self.causal && self.window_left.is_none() && self.window_right.is_none()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges, some of one query.
mod tests {
    use super::*;

    fn check(mask: Mask, queries: usize, keys: usize, expect: &[Range<usize>]) {
        let got: Vec<_> = (0..queries).map(|i| mask.visible(queries, keys, i)).collect();
        assert_eq!(got, expect, "{mask:?} Tq {queries} Tk {keys}");
    }

    #[test]
    fn ranges_are_aligned_at_the_last_query_and_the_last_key() {
        let full = Mask::default();
        let causal = Mask { causal: true, ..full };
        check(full, 2, 3, &[0..3, 0..3]);
        check(full, 2, 0, &[0..0, 0..0]);
        check(causal, 3, 3, &[0..1, 0..2, 0..3]);
        check(causal, 1, 4, &[0..4]);
        check(causal, 2, 4, &[0..3, 0..4]);
        check(causal, 4, 2, &[0..0, 0..0, 0..1, 0..2]);
        check(Mask { window_left: Some(1), ..causal }, 3, 4, &[0..2, 1..3, 2..4]);
        check(
            Mask { window_left: Some(0), window_right: Some(1), ..full },
            3,
            3,
            &[0..2, 1..3, 2..3],
        );
        check(Mask { window_right: Some(1), ..full }, 4, 2, &[0..0, 0..1, 0..2, 0..2]);
        check(Mask { window_left: Some(0), ..full }, 4, 2, &[0..2, 0..2, 0..2, 1..2]);
        check(Mask { window_right: Some(usize::MAX), ..full }, 1, 2, &[0..2]);
        // A window to the right does not reach past the causal limit.
        check(Mask { window_right: Some(5), ..causal }, 2, 2, &[0..1, 0..2]);
    }

    #[test]
    fn pairs_and_unions_agree_with_single_queries() {
        for (queries, keys) in [(1, 1), (3, 7), (7, 3), (5, 5), (4, 0)] {
            for causal in [false, true] {
                for window_left in [None, Some(0), Some(2)] {
                    for window_right in [None, Some(0), Some(3)] {
                        let mask = Mask { causal, window_left, window_right };
                        let seen: Vec<Vec<usize>> = (0..queries)
                            .map(|i| mask.visible(queries, keys, i).collect())
                            .collect();
                        let pairs: usize = seen.iter().map(Vec::len).sum();
                        assert_eq!(mask.pairs(queries, keys), pairs as f64, "{mask:?}");
                        let mut union: Vec<usize> = seen.concat();
                        union.sort_unstable();
                        union.dedup();
                        let range: Vec<usize> =
                            mask.visible_to_any(queries, keys, 0..queries).collect();
                        assert_eq!(range, union, "{mask:?} Tq {queries} Tk {keys}");
                    }
                }
            }
        }
    }
}
