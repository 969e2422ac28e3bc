use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::baseline::RATE;
use crate::format;
use facts::{BaselineReport, BaselineRow, ReportedFigure};

/// Timed kernels compared with the figures of a published report: a row for each width and kernel, then a summary of
/// each series.
pub fn baseline(report: &BaselineReport, style: Style) -> String {
    let BaselineReport { name, shape, here, there } = report;
    let mut out = paragraph(
        style,
        &format!("compared with {name}, published for another machine, at {shape}"),
    );
    if here.is_empty() {
        out.push_str(&paragraph(style, "no row of this run is of that shape"));
        return out;
    }
    let mut series: Vec<&str> = Vec::new();
    for figure in there.iter().filter(|figure| figure.unit != RATE) {
        if !series.contains(&figure.series.as_str()) {
            series.push(&figure.series);
        }
    }
    let mut columns = vec![Column::number("D"), Column::word("type"), Column::wrapped("kernel")];
    columns.extend([Column::number(RATE), Column::number("speed-up")]);
    // Column heads are single characters, because the names do not fit.
    columns.extend(HEADS.iter().take(series.len()).map(|head| Column::number(*head)));
    let mut lines = table(style, &columns);
    for row in here {
        let mut cells = vec![
            plain(row.channels.to_string()),
            plain(&row.dtype),
            plain(&row.kernel),
            plain(format::significant(row.tflops, 3)),
            plain(times(row.speedup)),
        ];
        cells.extend(series.iter().map(|series| plain(times(reported(there, series, row)))));
        lines.add_row(cells);
    }
    out.push_str(&render(&lines));
    for (series, letter) in series.iter().zip(HEADS) {
        out.push_str(&paragraph(style, &format!("{letter}: {series}, as reported")));
    }
    for figure in there.iter().filter(|figure| figure.unit == RATE) {
        let [first, last] = figure.channels;
        let words = format!(
            "reported: {} {} at D {first} to {last} ({})",
            figure.series,
            span(figure.values, RATE),
            figure.source
        );
        out.push_str(&paragraph(style, &words));
    }
    for words in sentences(here) {
        out.push_str(&paragraph(style, &words));
    }
    out
}

/// Heads of the published columns.
const HEADS: [&str; 4] = ["a", "b", "c", "d"];

fn times(speedup: Option<f64>) -> String {
    speedup.map_or_else(|| format::ABSENT.to_owned(), |times| format::significant(times, 3) + "×")
}

/// The published figure for the same width.
fn reported(there: &[ReportedFigure], series: &str, row: &BaselineRow) -> Option<f64> {
    let of = |figure: &&ReportedFigure| {
        figure.unit != RATE && figure.series == series && figure.channels == [row.channels; 2]
    };
    there.iter().find(of).map(|figure| figure.values[0])
}

/// The range of each kernel of this run over the widths.
fn sentences(here: &[BaselineRow]) -> Vec<String> {
    let mut kernels: Vec<&str> = Vec::new();
    for row in here {
        if !kernels.contains(&row.kernel.as_str()) {
            kernels.push(&row.kernel);
        }
    }
    let of = |kernel: &&str| {
        let rows = || here.iter().filter(move |row| row.kernel == *kernel);
        let range = |values: Vec<f64>| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            (low <= f64::MAX).then(|| [low, values.iter().copied().fold(low, f64::max)])
        };
        let rates = range(rows().map(|row| row.tflops).collect());
        let gains = range(rows().filter_map(|row| row.speedup).collect());
        let gains =
            gains.map(|gains| format!(", {}", span(gains, "times torch's efficient attention")));
        format!(
            "here: {kernel} {}{}",
            rates.map_or_else(String::new, |rates| span(rates, RATE)),
            gains.unwrap_or_default()
        )
    };
    kernels.iter().map(of).collect()
}

/// `92.0 to 110 TFLOP/s`.
fn span([low, high]: [f64; 2], unit: &str) -> String {
    let number = |value| format::significant(value, 3);
    if low == high {
        format!("{} {unit}", number(low))
    } else {
        format!("{} to {} {unit}", number(low), number(high))
    }
}
