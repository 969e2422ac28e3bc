use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::format;
use crate::together::{loads, matrix, rate, sentences, sizes};
use facts::{Collective, CollectiveKind, FabricReport, SustainedReport};

/// Columns of a name, and of each GPU.
const NAME: usize = 10;
const EACH: usize = 9;

/// Transfers between GPUs: rates of copies, collectives by size, and sentences.
pub fn fabric(report: &FabricReport, style: Style) -> String {
    let mut out = String::new();
    if !report.copies.is_empty() {
        let per_table = (style.width.saturating_sub(NAME) / EACH).max(1);
        let lines = matrix(report, |copy| copy.gbps);
        for first in (0..report.gpus.len()).step_by(per_table) {
            let some = first..(first + per_table).min(report.gpus.len());
            let mut columns = vec![Column::word("GB/s")];
            let heads = report.gpus[some.clone()].iter();
            columns.extend(heads.map(|gpu| Column::word(format!("to {gpu}"))));
            let mut table = table(style, &columns);
            for (gpu, line) in report.gpus.iter().zip(&lines) {
                let values = line[some.clone()].iter().map(plain);
                table.add_row(
                    std::iter::once(plain(format!("from {gpu}"))).chain(values).collect::<Vec<_>>(),
                );
            }
            out.push_str(&render(&table));
            out.push('\n');
        }
    }
    if !report.collectives.is_empty() {
        let mut columns = vec![Column::word("µs, bus GB/s")];
        columns.extend(CollectiveKind::ALL.map(|kind| Column::wrapped(kind.as_str())));
        let mut table = table(style, &columns);
        for (size, values) in sizes(report) {
            let value = |of: Option<&Collective>| match of {
                Some(of) if of.wrong > 0 => plain("wrong"),
                of => plain(format!(
                    "{}, {}",
                    rate(of.and_then(|of| of.micros)),
                    rate(of.and_then(|of| of.bus_gbps))
                )),
            };
            let cells = values.into_iter().map(value);
            table.add_row(
                std::iter::once(plain(format::cache_size(size))).chain(cells).collect::<Vec<_>>(),
            );
        }
        out.push_str(&render(&table));
        out.push('\n');
    }
    for sentence in sentences(report) {
        out.push_str(&paragraph(style, &sentence));
    }
    out
}

/// One sentence on each GPU under load.
pub fn sustained(report: &SustainedReport, style: Style) -> String {
    loads(report).iter().map(|sentence| paragraph(style, sentence)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::together::records;

    #[test]
    fn fabric_of_eight_gpus_fits_80_columns() {
        let text = fabric(&records::fabric(8), Style::default());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expect in ["from 1 389 X wrong", "4 MiB 12.0, 350", "takes 4.25 µs", "from 7"] {
            assert!(words.contains(expect), "no {expect} in\n{text}");
        }
        assert!(sustained(&records::sustained(2), Style::default()).contains("GPU 1 keeps"));
    }
}
