//! Collects the rows and columns of parameters that a rank has while its layers are built.

use super::ShardRank;
use crate::params::{ParamId, Params, Projection, RowRange, TensorSlice};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) struct Cutter {
    pub(crate) params: Params,
    kept: BTreeMap<ParamId, SelectedPart>,
}

/// The selected part of a parameter so far.
#[derive(Default)]
struct SelectedPart {
    /// Values per row, if they differ from the last dimension.
    width: Option<usize>,
    rows: Vec<Range<usize>>,
    /// `None` for all.
    columns: Option<Range<usize>>,
}

impl Cutter {
    pub(crate) fn new(params: Params) -> Self {
        Self { params, kept: BTreeMap::new() }
    }

    /// Selects nothing of a parameter, unless rows of it are kept.
    pub(crate) fn drop_param(&mut self, param: ParamId) {
        self.kept.entry(param).or_default();
    }

    /// Selects rows.
    pub(super) fn keep(&mut self, RowRange { param, first, count }: &RowRange) {
        self.kept.entry(*param).or_default().rows.push(*first..first + count);
    }

    /// Selects values of a vector, or rows of `width` values of a parameter.
    pub(super) fn values(&mut self, param: ParamId, width: usize, ranges: &[Range<usize>]) {
        let kept = self.kept.entry(param).or_default();
        kept.width = Some(width);
        kept.rows.extend_from_slice(ranges);
    }

    /// The projection to some of its outputs, in order.
    pub(super) fn outputs(&mut self, of: &Projection, ranges: &[Range<usize>]) -> Projection {
        let pieces = of.pieces(ranges.iter().map(|range| (range.start, range.len())));
        // All of its parameters are cut, even those of which no row is left.
        of.rows.iter().for_each(|rows| self.drop_param(rows.param));
        pieces.rows.iter().for_each(|rows| self.keep(rows));
        let mut start = 0;
        for bias in &of.bias {
            let own = start..start + self.params.get(*bias).len();
            let both = |range: &Range<usize>| {
                let (from, to) = (range.start.max(own.start), range.end.min(own.end));
                (from < to).then(|| from - own.start..to - own.start)
            };
            let ranges: Vec<_> = ranges.iter().filter_map(both).collect();
            self.values(*bias, 1, &ranges);
            start = own.end;
        }
        pieces
    }

    /// The projection from some of its inputs, a part of an all-reduce: the first rank adds its bias.
    pub(super) fn inputs(
        &mut self,
        of: &Projection,
        columns: Range<usize>,
        place: ShardRank,
    ) -> Projection {
        for rows in &of.rows {
            self.keep(rows);
            self.kept.entry(rows.param).or_default().columns = Some(columns.clone());
        }
        let mut bias = of.bias.clone();
        if place.rank > 0 {
            bias.drain(..).for_each(|bias| self.drop_param(bias));
        }
        Projection { rows: of.rows.clone(), inputs: columns.len(), bias }
    }

    /// Cuts the parameters, and renumbers rows within the remaining parts.
    pub(crate) fn end<'a>(&mut self, all: impl Iterator<Item = &'a mut RowRange>) {
        let mut cuts = BTreeMap::new();
        for (param, SelectedPart { width, rows, columns }) in std::mem::take(&mut self.kept) {
            let width = width.unwrap_or_else(|| self.params.get(param).sides()[1]);
            let cut = TensorSlice::new(width, rows, columns.unwrap_or(0..width));
            self.params.cut(param, cut.clone());
            cuts.insert(param, cut);
        }
        for rows in all {
            if let Some(cut) = cuts.get(&rows.param) {
                rows.first = cut.rows_before(rows.first);
            }
        }
    }
}
