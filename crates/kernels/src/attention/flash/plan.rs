use super::super::AttentionProblem;
use std::ops::Range;

/// Stacked query rows up to which keys and values are streamed straight from memory, see [`super::stream`].
pub(super) const STREAM_ROWS: usize = 8;
/// Blocks below which long key ranges are split, so that few heads still fill many cores. A constant, never the number
/// of threads: the result must not depend on it.
const ENOUGH_BLOCKS: usize = 64;
/// Fewest keys of a split: below this, merging costs more than the split wins.
const SPLIT_KEYS: usize = 512;
/// Splits begin at multiples of this, so that key tiles stay whole.
const SPLIT_STEP: usize = 192;

/// The work of one block: some query rows of one key head against some keys.
///
/// The rows of a key head's group are stacked: row `r` is query `r / G`, head `kv_head * G + r % G`. So the group
/// shares every read of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    /// Keys that some row may see.
    pub(super) keys: Range<usize>,
    /// Where the rows' partial results go, in rows; `None` when this is the only split.
    pub(super) partial: Option<usize>,
}

/// Rows whose splits are merged afterwards: their partial results lie `rows.len()` apart from `partial` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) partial: usize,
    pub(super) splits: usize,
}

/// The blocks of a call, decided from its shape alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Longest first, so that the last blocks to finish are short ones.
    pub(super) items: Vec<Item>,
    pub(super) merges: Vec<Merge>,
    /// Rows of partial results.
    pub(super) partial_rows: usize,
    /// Most panels of query rows in a block.
    pub(super) panels: usize,
}

impl Plan {
    /// Blocks of at most `most_panels` panels of `panel_rows` stacked rows.
    pub(super) fn new(problem: &AttentionProblem, panel_rows: usize, most_panels: usize) -> Self {
        let group = problem.group();
        let stacked: Vec<usize> = problem.queries.iter().map(|rows| rows.len() * group).collect();
        let all_panels: usize =
            stacked.iter().map(|rows| rows.div_ceil(panel_rows)).sum::<usize>() * problem.kv_heads;
        let panels = (all_panels / ENOUGH_BLOCKS).clamp(1, most_panels.max(1));
        let tile_rows = panels * panel_rows;

        let units: usize =
            stacked.iter().map(|rows| rows.div_ceil(tile_rows)).sum::<usize>() * problem.kv_heads;
        let wanted_splits = ENOUGH_BLOCKS.div_ceil(units.max(1));

        let mut plan = Self { panels, ..Self::default() };
        for (sequence, rows) in stacked.into_iter().enumerate() {
            let (queries, keys) = (rows / group, problem.keys.len(sequence));
            for kv_head in 0..problem.kv_heads {
                for start in (0..rows).step_by(tile_rows) {
                    let tile = start..rows.min(start + tile_rows);
                    let asked = tile.start / group..tile.end.div_ceil(group);
                    let seen = problem.mask.visible_to_any(queries, keys, asked);
                    plan.add(sequence, kv_head, tile, seen, wanted_splits);
                }
            }
        }
        plan.items.sort_by_key(|item| std::cmp::Reverse(item.rows.len() * item.keys.len()));
        plan
    }

    fn add(
        &mut self,
        sequence: usize,
        kv_head: usize,
        rows: Range<usize>,
        keys: Range<usize>,
        wanted_splits: usize,
    ) {
        let splits = wanted_splits.min(keys.len() / SPLIT_KEYS).max(1);
        let step = keys.len().div_ceil(splits).next_multiple_of(SPLIT_STEP);
        if keys.len() <= step {
            self.items.push(Item { sequence, kv_head, rows, keys, partial: None });
            return;
        }
        let first = self.partial_rows;
        for start in keys.clone().step_by(step) {
            let keys = start..keys.end.min(start + step);
            let partial = Some(self.partial_rows);
            self.partial_rows += rows.len();
            self.items.push(Item { sequence, kv_head, rows: rows.clone(), keys, partial });
        }
        let splits = (self.partial_rows - first) / rows.len();
        self.merges.push(Merge { sequence, kv_head, rows, partial: first, splits });
    }
}
