use ops::attention::AttentionProblem;
use std::ops::Range;

/// Calls with fewer blocks split long key ranges (split-KV), so that few heads still use many cores. A constant instead
/// of the number of threads, because results must not depend on that.
const ENOUGH_BLOCKS: usize = 64;
/// Bytes of a token's neighbouring heads that a streaming block reads together: one page. Reading one head at a time
/// would touch every page of the KV cache once per head.
const STREAM_BYTES: usize = 4096;

/// Tile sizes of an instruction set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    /// Stacked query rows of a panel.
    pub(super) panel_rows: usize,
    /// Maximum number of panels of a block.
    pub(super) most_panels: usize,
    /// Stacked query rows up to which keys and values are streamed straight from memory, see [`super::stream`].
    pub(super) stream_rows: usize,
}

/// The work of one block: attention of some query rows of some key heads to some keys.
///
/// The rows of a key head's group are stacked: row `r` is query `r / G`, head `kv_head * G + r % G`, so the group
/// shares every read of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) sequence: usize,
    /// One head, or neighbours when streaming.
    pub(super) kv_heads: Range<usize>,
    pub(super) rows: Range<usize>,
    /// Keys that some row may see.
    pub(super) keys: Range<usize>,
    /// First row of this split's partial results; `None` when this is the only split.
    pub(super) partial: Option<usize>,
}

/// Rows of one key head whose splits are merged afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    /// The first split's partial results of these rows, in rows.
    pub(super) partial: usize,
    /// Distance between splits, in rows.
    pub(super) stride: usize,
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
    /// Maximum number of panels of query rows in a block.
    pub(super) panels: usize,
    /// Maximum number of key heads in a block.
    pub(super) heads: usize,
}

/// Rows and heads of a block before its keys are split.
struct Unit {
    sequence: usize,
    kv_heads: Range<usize>,
    rows: Range<usize>,
    keys: Range<usize>,
}

impl Plan {
    /// Blocks for a problem.
    pub(super) fn new(problem: &AttentionProblem, tiling: Tiling) -> Self {
        let Tiling { panel_rows, most_panels, stream_rows } = tiling;
        let group = problem.group();
        let stacked: Vec<usize> = problem.queries.iter().map(|rows| rows.len() * group).collect();
        let all_panels: usize =
            stacked.iter().map(|rows| rows.div_ceil(panel_rows)).sum::<usize>() * problem.kv_heads;
        let panels = (all_panels / ENOUGH_BLOCKS).clamp(1, most_panels.max(1));
        let head_bytes = problem.head_dim.max(problem.value_dim) * problem.dtype.bytes();
        let heads = (STREAM_BYTES / head_bytes).clamp(1, problem.kv_heads);

        let mut units = Vec::new();
        for (sequence, rows) in stacked.into_iter().enumerate() {
            let (queries, keys) = (rows / group, problem.keys.len(sequence));
            let tile_rows = panels * panel_rows;
            for start in (0..rows).step_by(tile_rows) {
                let rows = start..rows.min(start + tile_rows);
                let asked = rows.start / group..rows.end.div_ceil(group);
                let keys = problem.mask.visible_to_any(queries, keys, asked);
                let step = if rows.len() <= stream_rows { heads } else { 1 };
                for head in (0..problem.kv_heads).step_by(step) {
                    let kv_heads = head..problem.kv_heads.min(head + step);
                    units.push(Unit { sequence, kv_heads, rows: rows.clone(), keys: keys.clone() });
                }
            }
        }
        let mut plan = Self { panels, heads, ..Self::default() };
        let wanted_splits = ENOUGH_BLOCKS.div_ceil(units.len().max(1));
        units.into_iter().for_each(|unit| plan.add(unit, wanted_splits));
        let work = |item: &Item| item.kv_heads.len() * item.rows.len() * item.keys.len();
        plan.items.sort_by_key(|item| std::cmp::Reverse(work(item)));
        plan
    }

    fn add(&mut self, unit: Unit, wanted_splits: usize) {
        let Unit { sequence, kv_heads, rows, keys } = unit;
        // With fewer keys per split, merging costs more than the split saves.
        let fewest = (1024 / kv_heads.len()).max(128);
        let splits = wanted_splits.min(keys.len() / fewest).max(1);
        // A multiple of both key tiles, so that they stay whole.
        let step = keys.len().div_ceil(splits).next_multiple_of(96);
        if keys.len() <= step {
            self.items.push(Item { sequence, kv_heads, rows, keys, partial: None });
            return;
        }
        let first = self.partial_rows;
        let stride = kv_heads.len() * rows.len();
        for start in keys.clone().step_by(step) {
            let keys = start..keys.end.min(start + step);
            let (kv_heads, rows) = (kv_heads.clone(), rows.clone());
            self.items.push(Item {
                sequence,
                kv_heads,
                rows,
                keys,
                partial: Some(self.partial_rows),
            });
            self.partial_rows += stride;
        }
        let splits = (self.partial_rows - first) / stride;
        for (index, kv_head) in kv_heads.enumerate() {
            let partial = first + index * rows.len();
            let rows = rows.clone();
            self.merges.push(Merge { sequence, kv_head, rows, partial, stride, splits });
        }
    }
}

#[cfg(test)]
mod tests;
