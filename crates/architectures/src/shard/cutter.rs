//! Which rows and columns of parameters a rank has, collected while its layers are made.

use super::Place;
use crate::params::{Cut, ParamId, Params, Projection, Rows};
use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) struct Cutter {
    pub(crate) params: Params,
    kept: BTreeMap<ParamId, Kept>,
}

/// What is kept of a parameter so far.
#[derive(Default)]
struct Kept {
    /// Values of a row, where they are not those of the last dimension.
    width: Option<usize>,
    rows: Vec<Range<usize>>,
    /// None: all.
    columns: Option<Range<usize>>,
}

impl Cutter {
    pub(crate) fn new(params: Params) -> Self {
        Self { params, kept: BTreeMap::new() }
    }

    /// Notes that nothing is kept of a parameter, unless rows of it are.
    pub(crate) fn leave(&mut self, param: ParamId) {
        self.kept.entry(param).or_default();
    }

    /// Notes that rows are kept.
    pub(super) fn keep(&mut self, Rows { param, first, count }: &Rows) {
        self.kept.entry(*param).or_default().rows.push(*first..first + count);
    }

    /// Some values of a vector, or rows of so many values of a parameter.
    pub(super) fn values(&mut self, param: ParamId, width: usize, ranges: &[Range<usize>]) {
        let kept = self.kept.entry(param).or_default();
        kept.width = Some(width);
        kept.rows.extend_from_slice(ranges);
    }

    /// A projection to some of its outputs, in their order.
    pub(super) fn outputs(&mut self, of: &Projection, ranges: &[Range<usize>]) -> Projection {
        let pieces = of.pieces(ranges.iter().map(|range| (range.start, range.len())));
        // What all of its parameters lose, even those of which no row is left.
        of.rows.iter().for_each(|rows| self.leave(rows.param));
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

    /// A projection from some of its inputs, which is a part of a sum: the first rank adds its bias.
    pub(super) fn inputs(
        &mut self,
        of: &Projection,
        columns: Range<usize>,
        place: Place,
    ) -> Projection {
        for rows in &of.rows {
            self.keep(rows);
            self.kept.entry(rows.param).or_default().columns = Some(columns.clone());
        }
        let mut bias = of.bias.clone();
        if place.rank > 0 {
            bias.drain(..).for_each(|bias| self.leave(bias));
        }
        Projection { rows: of.rows.clone(), inputs: columns.len(), bias }
    }

    /// Cuts the parameters, and lets rows count what is left of them.
    pub(crate) fn end<'a>(&mut self, all: impl Iterator<Item = &'a mut Rows>) {
        let mut cuts = BTreeMap::new();
        for (param, Kept { width, rows, columns }) in std::mem::take(&mut self.kept) {
            let width = width.unwrap_or_else(|| self.params.get(param).sides()[1]);
            let cut = Cut::new(width, rows, columns.unwrap_or(0..width));
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
