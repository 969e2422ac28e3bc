use super::scale::{Scale, decades};
use super::svg::{Anchor, Svg, WIDTH, width_of};
use crate::format;
use facts::CompactSort;

/// One compared row.
pub(crate) struct Dot {
    /// Relative error; 0 and non-finite values are drawn outside the axis.
    pub(crate) error: f64,
    /// Whether it passed with evidence.
    pub(crate) passed: bool,
    /// Its name, in the tooltip.
    pub(crate) name: String,
}

/// Dots in one row.
pub(crate) struct DotRow {
    pub(crate) label: String,
    /// Index of the colour, from 1.
    pub(crate) series: usize,
    /// The tolerances of this row.
    pub(crate) tolerances: Vec<f64>,
    pub(crate) dots: Vec<Dot>,
}

const ROW: f64 = 27.0;
const ZERO_WIDTH: f64 = 40.0;
const NON_FINITE_WIDTH: f64 = 66.0;

/// Relative errors on a logarithmic axis, each row with its tolerances.
pub(crate) fn dots(id: &str, title: &str, rows: &[DotRow]) -> String {
    let all = || rows.iter().flat_map(|row| &row.dots);
    let described: Vec<String> = rows.iter().map(describe).collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));

    let label_width = rows.iter().map(|row| width_of(&row.label)).fold(40.0, f64::max).min(150.0);
    let zeros = all().any(|dot| dot.error == 0.0);
    let non_finite = all().any(|dot| !dot.error.is_finite());
    let left = label_width + 12.0 + if zeros { ZERO_WIDTH } else { 0.0 };
    let right = WIDTH - 14.0 - if non_finite { NON_FINITE_WIDTH } else { 0.0 };
    let (low, high) = decades(
        all()
            .map(|dot| dot.error)
            .chain(rows.iter().flat_map(|row| row.tolerances.iter().copied())),
    );
    let scale = Scale::log(10f64.powi(low), 10f64.powi(high), left, right);

    let top = 28.0;
    let bottom = top + ROW * rows.len() as f64;
    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    // Labels need about 40 units each: with many decades only every second or third is labelled.
    let every = ((high - low) as f64 * 40.0 / (right - left)).ceil().max(1.0) as i32;
    for power in low..=high {
        let x = scale.at(10f64.powi(power));
        svg.line((x, top), (x, bottom), "grid");
        if (power - low) % every == 0 {
            svg.text(x, bottom + 16.0, Anchor::Middle, "muted", &format!("1e{power}"));
        }
    }
    let (zero_x, non_finite_x) = (left - ZERO_WIDTH * 0.7, right + NON_FINITE_WIDTH * 0.6);
    if zeros {
        svg.text(zero_x, bottom + 16.0, Anchor::Middle, "muted", "0");
    }
    if non_finite {
        svg.text(non_finite_x, bottom + 16.0, Anchor::Middle, "bad", "NaN/inf");
    }

    for (i, row) in rows.iter().enumerate() {
        let middle = top + ROW * (i as f64 + 0.5);
        svg.line((0.0, middle + ROW / 2.0), (WIDTH, middle + ROW / 2.0), "grid");
        svg.label(0.0, middle + 4.5, label_width, "", &row.label);
        for tolerance in row.tolerances.iter().filter(|value| value.is_finite() && **value > 0.0) {
            let x = scale.at(*tolerance);
            svg.line((x, middle - ROW * 0.4), (x, middle + ROW * 0.4), "limit");
        }
        let place = |dot: &Dot| match dot.error {
            0.0 => zero_x,
            error if error.is_finite() && error > 0.0 => scale.at(error),
            _ => non_finite_x,
        };
        let mut marks: Vec<(f64, &Dot)> = row.dots.iter().map(|dot| (place(dot), dot)).collect();
        marks.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
        // Marks that would overlap are placed at the first of three heights that is free.
        let mut ends = [f64::NEG_INFINITY; 3];
        for (x, dot) in marks {
            let level = ends.iter().position(|end| x - end >= 6.5).unwrap_or(0);
            ends[level] = x;
            let y = middle + [0.0, -6.5, 6.5][level];
            let tip = format!("{}: {}", dot.name, format::error(dot.error));
            if dot.passed {
                svg.circle(x, y, 3.2, &format!("s{}", row.series), &tip);
            } else {
                svg.diamond(x, y, 5.0, "bad", &tip);
            }
        }
    }
    svg.text(
        WIDTH,
        bottom + 34.0,
        Anchor::End,
        "muted",
        "relative error; bar: limit; diamond: not a pass",
    );
    svg.finish(bottom + 40.0)
}

fn describe(row: &DotRow) -> String {
    let worst = row
        .dots
        .iter()
        .map(|dot| dot.error)
        .fold(0.0, |a: f64, b| if b.is_nan() || a.is_nan() { f64::NAN } else { a.max(b) });
    let limits: Vec<String> = row.tolerances.iter().map(|value| format::error(*value)).collect();
    format!(
        "{}: {}, largest error {}, allowed {}",
        row.label,
        format::count(row.dots.len(), "row"),
        format::error(worst),
        limits.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dot_has_one_mark() {
        let check = |errors: &[(f64, bool)], circles: usize, diamonds: usize, says: &str| {
            let dots_of_row = errors
                .iter()
                .map(|(error, passed)| Dot { error: *error, passed: *passed, name: "a<b".into() })
                .collect();
            let svg = dots(
                "x",
                "kda",
                &[DotRow {
                    label: "fla f32".into(),
                    series: 1,
                    tolerances: vec![5e-3],
                    dots: dots_of_row,
                }],
            );
            assert_eq!(svg.matches("<circle").count(), circles, "{svg}");
            assert_eq!(svg.matches("class=\"bad\" d=").count(), diamonds, "{svg}");
            assert_eq!(svg.matches("class=\"limit\"").count(), 1);
            assert!(svg.contains(says), "{svg}");
            assert!(
                !svg.contains("NaN\"") && !svg.contains("inf\"") && !svg.contains("a<b"),
                "{svg}"
            );
        };
        check(&[(1e-6, true), (2e-6, true)], 2, 0, "2 rows, largest error 2.0e-6, allowed 5.0e-3");
        check(&[(0.0, true)], 1, 0, ">0</text>");
        check(&[(f64::NAN, false), (1e-2, false)], 0, 2, ">NaN/inf</text>");
    }
}
