//! The memory layout of a GPU's partial sums.

use super::owners::{ALIGNMENT, ROW_TILES};
use std::ops::Range;

/// The rows that one GPU owns.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    /// Byte range of their sums, `[rows, hidden]` bf16.
    pub(super) sums: Range<usize>,
    /// Byte range of the sums of squares, `[rows]` f32.
    pub(super) squares: Range<usize>,
}

impl Part {
    /// Byte range that is sent to the owner.
    pub(super) fn sent(&self) -> Range<usize> {
        self.sums.start.min(self.squares.start)..self.sums.end.max(self.squares.end)
    }
}

/// The layout of a GPU's partial sums of all rows. Each part is contiguous, and the squares of two consecutive parts
/// are contiguous between their sums.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) hidden: usize,
    pub(super) parts: Vec<Part>,
}

impl Layout {
    pub(super) fn new([tokens, hidden]: [usize; 2], ranks: usize) -> Self {
        let tile = ROW_TILES[usize::from(tokens / ranks < 4 * ROW_TILES[0])];
        let start = |rank: usize| match rank == ranks {
            true => tokens,
            false => (tokens * rank / ranks).next_multiple_of(tile),
        };
        let (mut parts, mut end) = (Vec::new(), 0usize);
        for rank in 0..ranks {
            let rows = start(rank)..start(rank + 1);
            let (sums, squares) = (2 * rows.len() * hidden, 4 * rows.len());
            let part = match rank % 2 {
                0 => {
                    let begin = end.next_multiple_of(ALIGNMENT);
                    Part {
                        rows,
                        sums: begin..begin + sums,
                        squares: begin + sums..begin + sums + squares,
                    }
                }
                _ => {
                    let begin = (end + squares).next_multiple_of(ALIGNMENT);
                    Part { rows, sums: begin..begin + sums, squares: end..end + squares }
                }
            };
            end = part.sent().end;
            parts.push(part);
        }
        Self { hidden, parts }
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.last().map_or(0, |part| part.sent().end)
    }

    /// Number of rows and byte range of contiguous squares.
    pub(super) fn squares(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.parts.chunks(2).map(|pair| {
            let bytes = pair[0].squares.start..pair[pair.len() - 1].squares.end;
            (bytes.len() / 4, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::owners::{ReceiveArea, min_divided_tokens};
    use super::*;
    use ops_cuda::decoder::PEERS;

    /// Each rank reads what the others send, ranges are 16-byte aligned and do not overlap.
    #[test]
    fn parts_do_not_overlap() {
        for ranks in 2..=PEERS {
            for tokens in [0, 1, 44, 124, 255, 1791, 1792, 1793, 3840, 8192] {
                let tokens = min_divided_tokens(ranks) + tokens;
                for hidden in [64, 2048, 4096, 8192] {
                    let layout = Layout::new([tokens, hidden], ranks);
                    let parts = &layout.parts;
                    let ends = [parts[0].rows.start, parts[ranks - 1].rows.end];
                    assert_eq!((parts.len(), ends), (ranks, [0, tokens]));
                    assert!(parts.windows(2).all(|two| two[0].rows.end == two[1].rows.start));
                    let mut all: Vec<_> =
                        parts.iter().flat_map(|part| [&part.sums, &part.squares]).collect();
                    all.sort_by_key(|bytes| bytes.start);
                    assert!(all.windows(2).all(|two| two[0].end <= two[1].start), "{all:?}");
                    assert!(all[2 * ranks - 1].end <= layout.bytes());
                    let of_all: usize = layout.squares().map(|(rows, _)| rows).sum();
                    assert_eq!(of_all, tokens);
                    for part in parts {
                        let (rows, sent) = (part.rows.len(), part.sent());
                        assert!(rows > 0, "{layout:?}");
                        assert_eq!(
                            [part.sums.len(), part.squares.len()],
                            [2 * hidden * rows, 4 * rows]
                        );
                        let before = sent.start;
                        assert_eq!([part.sums.start % 16, (part.sums.start - before) % 16], [0, 0]);
                        assert!(sent.len() <= ReceiveArea::parts_bytes(ranks, [tokens, hidden]));
                        // Only their own data and padding before the next sums.
                        assert!(sent.len() - part.sums.len() - part.squares.len() < ALIGNMENT);
                    }
                    let mut sent: Vec<_> = parts.iter().map(Part::sent).collect();
                    sent.sort_by_key(|bytes| bytes.start);
                    assert!(sent.windows(2).all(|two| two[0].end <= two[1].start), "{sent:?}");
                }
            }
        }
    }

    /// The layout of a prompt of 4096 rows, of which two GPUs own 2048 each.
    #[test]
    fn two_gpus_own_half_of_the_rows() {
        let Layout { parts, .. } = Layout::new([4096, 2048], 2);
        let (half, squares) = (2 * 2048 * 2048, 4 * 2048);
        let second = half + 2 * squares;
        assert_eq!(
            parts.iter().map(|part| part.rows.clone()).collect::<Vec<_>>(),
            [0..2048, 2048..4096]
        );
        assert_eq!([&parts[0].sums, &parts[1].sums], [&(0..half), &(second..second + half)]);
        assert_eq!(
            [parts[0].sent(), parts[1].sent()],
            [0..half + squares, half + squares..second + half]
        );
        assert_eq!(
            [min_divided_tokens(2), min_divided_tokens(4), min_divided_tokens(8)],
            [256, 2560, 6144]
        );
    }
}
