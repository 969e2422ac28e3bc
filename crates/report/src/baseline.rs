//! Published figures of other projects, for comparison: `baselines.csv`, each row with its source.

use crate::plot::Band;
use facts::{BaselineReport, BaselineRow, BenchReport, BenchRow, ReportedFigure};
use std::collections::BTreeMap;

const TABLE: &str = include_str!("baseline/baselines.csv");

/// The unit of rates; figures in other units are speedups.
pub(crate) const RATE: &str = "TFLOP/s";

/// The peer that speedups are relative to.
pub(crate) const BASIS: &str = "torch.sdpa.efficient";

/// A row of the table.
struct Figure {
    name: String,
    op: String,
    shape: BTreeMap<String, u64>,
    reported: ReportedFigure,
}

fn table() -> Vec<Figure> {
    let mut reader = csv::Reader::from_reader(TABLE.as_bytes());
    reader.records().map_while(Result::ok).filter_map(|row| figure(&row)).collect()
}

fn figure(row: &csv::StringRecord) -> Option<Figure> {
    let word = |at: usize| row.get(at).map(str::to_owned);
    let sizes = row.get(2)?.split(' ').map(|size| {
        let (name, size) = size.split_once('=')?;
        Some((name.to_owned(), size.parse().ok()?))
    });
    Some(Figure {
        name: word(0)?,
        op: word(1)?,
        shape: sizes.collect::<Option<_>>()?,
        reported: ReportedFigure {
            series: word(3)?,
            channels: [row.get(4)?.parse().ok()?, row.get(5)?.parse().ok()?],
            unit: word(6)?,
            values: [row.get(7)?.parse().ok()?, row.get(8)?.parse().ok()?],
            source: word(9)?,
        },
    })
}

impl Figure {
    /// Whether the baseline has this op and each size that it names has this value.
    fn fits(&self, op: &str, shape: &BTreeMap<String, u64>) -> bool {
        self.op == op && self.shape.iter().all(|(name, size)| shape.get(name) == Some(size))
    }
}

/// The baselines of an op at these sizes, as bands of a chart; empty if a size that a baseline names differs.
pub(crate) fn bands(op: &str, shape: &BTreeMap<String, u64>) -> Vec<Band> {
    let rates = table().into_iter().filter(|figure| figure.reported.unit == RATE);
    rates
        .filter(|figure| figure.fits(op, shape))
        .map(|Figure { reported, .. }| Band {
            label: format!("{} (field report)", reported.series),
            from: reported.channels[0] as f64,
            to: reported.channels[1] as f64,
            low: reported.values[0],
            high: reported.values[1],
        })
        .collect()
}

/// The shape that a baseline was measured at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaselineShape {
    /// The op.
    pub op: String,
    /// Sequences.
    pub batch: u64,
    /// Heads.
    pub heads: u64,
    /// Tokens.
    pub tokens: u64,
    /// Channels of a head.
    pub channels: Vec<u64>,
}

/// All baselines by name, each with the shape it was measured at.
pub fn baselines() -> BTreeMap<String, BaselineShape> {
    let mut known = BTreeMap::new();
    for Figure { name, op, shape, reported } in table() {
        let size = |name: &str| shape.get(name).copied().unwrap_or(1);
        let (batch, heads, tokens) = (size("B"), size("H"), size("Tq"));
        let entry = known.entry(name).or_insert(BaselineShape {
            op,
            batch,
            heads,
            tokens,
            channels: Vec::new(),
        });
        let [first, last] = reported.channels;
        if first == last && !entry.channels.contains(&first) {
            entry.channels.push(first);
        }
    }
    known
}

/// A run's rows at the shape of a baseline, with the figures of that baseline. `here` is empty without such rows;
/// `None` without such a baseline.
pub fn baseline(report: &BenchReport, name: &str) -> Option<BaselineReport> {
    let figures: Vec<Figure> = table().into_iter().filter(|figure| figure.name == name).collect();
    let first = figures.first()?;
    let rows: Vec<&BenchRow> =
        report.rows.iter().filter(|row| first.fits(&row.op, &row.shape)).collect();
    let basis = |of: &BenchRow| {
        let same = |row: &&&BenchRow| {
            row.variant == BASIS && (&row.shape, &row.dtype) == (&of.shape, &of.dtype)
        };
        rows.iter().find(same).map(|row| row.median_ms / of.median_ms)
    };
    let here = rows.iter().filter_map(|row| {
        Some(BaselineRow {
            channels: *row.shape.get("D")?,
            dtype: row.dtype.clone(),
            kernel: if row.peer.is_some() { row.variant.clone() } else { "firstlight".to_owned() },
            tflops: row.gflops / 1e3,
            speedup: basis(row).filter(|_| row.variant != BASIS),
        })
    });
    let shape: Vec<String> =
        first.shape.iter().map(|(name, size)| format!("{name}={size}")).collect();
    Some(BaselineReport {
        name: name.to_owned(),
        shape: shape.join(" "),
        here: here.collect(),
        there: figures.into_iter().map(|figure| figure.reported).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read_and_has_its_source() {
        assert_eq!(table().len(), TABLE.lines().count() - 1);
        for Figure { name, reported, .. } in table() {
            let ReportedFigure { channels, values, source, series, .. } = reported;
            assert!(channels[0] <= channels[1] && 0.0 < values[0] && values[0] <= values[1]);
            assert!(source.len() > 20, "{name} {series}");
        }
        let shape = &baselines()["gh200-ffpa"];
        assert_eq!((shape.batch, shape.heads, shape.tokens), (1, 48, 8192));
        assert_eq!(shape.channels, (5..=16).map(|step| 64 * step).collect::<Vec<u64>>());
    }
}
