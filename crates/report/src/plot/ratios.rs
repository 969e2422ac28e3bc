use super::scale::Scale;
use super::svg::{Anchor, Svg, WIDTH, width_of};

/// A column: a name, and a ratio for each row that has one.
pub(crate) struct RatioColumn {
    pub(crate) label: String,
    pub(crate) ratios: Vec<Option<f64>>,
}

const ROW: f64 = 21.0;
/// Minimum distance from 1 that the axis of each column covers.
const MIN_DISTANCE: f64 = 0.05;
/// Ratios further from 1 are drawn at the edge with another mark.
const MAX_DISTANCE: f64 = 0.5;
/// A ratio above this is marked as bad, as in the finding.
const BAD: f64 = 1.05;

/// Small multiples: a column for each GPU, a row for each op, a dot for each ratio around a line at 1.
pub(crate) fn ratios(id: &str, title: &str, rows: &[String], columns: &[RatioColumn]) -> String {
    let said = |column: &RatioColumn| {
        let each = rows.iter().zip(&column.ratios);
        let each = each.filter_map(|(row, ratio)| Some(format!("{row} {:.3}", (*ratio)?)));
        format!("{}: {}", column.label, each.collect::<Vec<_>>().join(", "))
    };
    let described: Vec<String> = columns.iter().map(said).collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));
    let off = columns.iter().flat_map(|column| &column.ratios).flatten();
    let reach =
        off.map(|ratio| (ratio - 1.0).abs() * 1.1).fold(MIN_DISTANCE, f64::max).min(MAX_DISTANCE);
    let left = rows.iter().map(|row| width_of(row)).fold(40.0, f64::max).min(130.0) + 10.0;
    let each = (WIDTH - left) / columns.len().max(1) as f64;
    let (top, bottom) = (46.0, 46.0 + ROW * rows.len() as f64);
    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    for (at, row) in rows.iter().enumerate() {
        let y = top + ROW * (at as f64 + 1.0);
        svg.line((0.0, y), (WIDTH, y), "grid");
        svg.label(0.0, y - ROW / 2.0 + 4.5, left - 10.0, "", row);
    }
    for (at, column) in columns.iter().enumerate() {
        let from = left + each * at as f64;
        let scale = Scale::linear(1.0 - reach, 1.0 + reach, from + 5.0, from + each - 5.0);
        let middle = scale.at(1.0);
        svg.text(middle, 34.0, Anchor::Middle, "", &column.label);
        svg.line((middle, top), (middle, bottom), "axis");
        for (row, ratio) in column.ratios.iter().enumerate() {
            let Some(ratio) = ratio.filter(|ratio| ratio.is_finite()) else { continue };
            let y = top + ROW * (row as f64 + 0.5);
            let tip = format!("{} {}: {ratio:.3}", column.label, rows[row]);
            let x = scale.at(ratio.clamp(1.0 - reach, 1.0 + reach));
            match ratio > BAD {
                true => svg.diamond(x, y, 5.0, "bad", &tip),
                false => svg.circle(x, y, 3.2, "s1", &tip),
            }
        }
    }
    let words = format!(
        "time by the siblings' time, from {:.2} to {:.2}; diamond: over {BAD}",
        1.0 - reach,
        1.0 + reach
    );
    svg.text(WIDTH, bottom + 18.0, Anchor::End, "muted", &words);
    svg.finish(bottom + 26.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ratio_has_a_mark_and_slow_ones_differ() {
        let column = |label: &str, ratios: [Option<f64>; 2]| RatioColumn {
            label: label.into(),
            ratios: ratios.into(),
        };
        let columns = [
            column("GPU 0", [Some(0.99), None]),
            column("GPU 1", [Some(1.2), Some(1.0)]),
            column("GPU 2", [Some(f64::INFINITY), Some(9.0)]),
        ];
        let svg = ratios("x", "ratios", &["kda".into(), "ssd".into()], &columns);
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"bad\" d=").count(), 2, "{svg}");
        assert!(svg.contains("GPU 1: kda 1.200, ssd 1.000"), "{svg}");
        assert!(!svg.contains("NaN\"") && !svg.contains("inf\""), "{svg}");
    }
}
