use super::scale::{Scale, steps};
use super::svg::{Anchor, Svg, WIDTH};
use crate::format;
use facts::CompactSort;

/// One line of a chart.
pub(crate) struct Series {
    pub(crate) label: String,
    /// Points in ascending order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

const HEIGHT: f64 = 190.0;
const COLOURS: usize = 8;

/// A range of values over a range of x: a published measurement.
pub(crate) struct Band {
    pub(crate) label: String,
    /// The range of x.
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// The range of values.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Lines over one dimension of a shape. The y axis starts at 0; the x axis is logarithmic if the largest x is at least
/// eight times the smallest. Non-finite points are omitted.
pub(crate) fn lines(
    id: &str,
    title: &str,
    x_name: &str,
    y_name: &str,
    series: &[Series],
) -> String {
    lines_with(id, title, x_name, y_name, series, &[])
}

/// [`lines`] with bands.
pub(crate) fn lines_with(
    id: &str,
    title: &str,
    x_name: &str,
    y_name: &str,
    series: &[Series],
    bands: &[Band],
) -> String {
    draw(id, title, (x_name, y_name), (series, bands), false)
}

/// Lines over seconds, from 0.
pub(crate) fn over_time(id: &str, title: &str, y_name: &str, series: &[Series]) -> String {
    draw(id, title, ("seconds", y_name), (series, &[]), true)
}

fn draw(
    id: &str,
    title: &str,
    (x_name, y_name): (&str, &str),
    (series, bands): (&[Series], &[Band]),
    time: bool,
) -> String {
    let points = || series.iter().flat_map(shown);
    let described: Vec<String> =
        series.iter().map(|series| describe(series, x_name, y_name)).collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));

    let (low, high) = points()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (x, _)| (low.min(x), high.max(x)));
    let (low, high) = match time {
        _ if !low.is_finite() || high <= 0.0 => (1.0, 2.0),
        true => (0.0, high),
        false if low < high => (low, high),
        false => (1.0, 2.0),
    };
    let highest = points().map(|(_, y)| y).chain(bands.iter().map(|band| band.high));
    let ticks = steps(highest.fold(0.0, f64::max), 4);
    let (left, right, top, bottom) = (52.0, WIDTH - 20.0, 50.0, 50.0 + HEIGHT);
    let x_at = if !time && high / low >= 8.0 {
        Scale::log(low, high, left, right)
    } else {
        Scale::linear(low, high, left, right)
    };
    let y_at = Scale::linear(0.0, *ticks.last().unwrap_or(&1.0), bottom, top);

    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    svg.text(0.0, 32.0, Anchor::Start, "muted", y_name);
    for tick in &ticks {
        svg.line(
            (left, y_at.at(*tick)),
            (right, y_at.at(*tick)),
            if *tick == 0.0 { "axis" } else { "grid" },
        );
        svg.text(left - 7.0, y_at.at(*tick) + 4.0, Anchor::End, "muted", &tick_label(*tick));
    }
    for (i, band) in bands.iter().enumerate() {
        let colour = (series.len() + i) % COLOURS + 1;
        let (from, to) = (x_at.at(band.from.clamp(low, high)), x_at.at(band.to.clamp(low, high)));
        let (top, bottom) = (y_at.at(band.high), y_at.at(band.low));
        let class = format!("band s{colour}");
        svg.rect(from, top, to - from, bottom - top, &class, &band.label);
    }
    // Sizes are labelled if there is space for the digits.
    let mut sizes: Vec<f64> = match time {
        true => steps(high, 5).into_iter().filter(|second| *second <= high).collect(),
        false => points().map(|(x, _)| x).collect(),
    };
    sizes.compact_sort_by(f64::total_cmp);
    sizes.dedup();
    let mut last = f64::NEG_INFINITY;
    for size in sizes {
        if x_at.at(size) - last >= 42.0 {
            last = x_at.at(size);
            svg.text(last, bottom + 17.0, Anchor::Middle, "muted", &format!("{size}"));
        }
    }
    svg.text((left + right) / 2.0, bottom + 34.0, Anchor::Middle, "muted", x_name);

    let mut y = bottom + 56.0;
    for (i, line) in series.iter().enumerate() {
        let colour = i % COLOURS + 1;
        let places: Vec<(f64, f64)> = shown(line).map(|(x, y)| (x_at.at(x), y_at.at(y))).collect();
        if places.len() > 1 {
            svg.polyline(&places, &format!("line l{colour}"));
        }
        for ((x, y), (size, rate)) in places.iter().zip(shown(line)) {
            let tip = format!(
                "{}, {x_name} {size}: {} {y_name}",
                line.label,
                format::significant(rate, 4)
            );
            let radius = if time { 1.8 } else { 3.4 };
            svg.circle(*x, *y, radius, &format!("s{colour}"), &tip);
        }
        svg.circle(6.0, y - 4.5, 4.0, &format!("s{colour}"), "");
        svg.label(18.0, y, WIDTH - 18.0, "", &line.label);
        y += 19.0;
    }
    for (i, band) in bands.iter().enumerate() {
        let colour = (series.len() + i) % COLOURS + 1;
        svg.rect(1.0, y - 10.0, 10.0, 11.0, &format!("band s{colour}"), "");
        let words = format!("{}: {} to {}", band.label, band.low, band.high);
        svg.label(18.0, y, WIDTH - 18.0, "", &words);
        y += 19.0;
    }
    svg.finish(y - 10.0)
}

/// A tick's label without digits of rounding errors.
fn tick_label(tick: f64) -> String {
    let text = format::significant(tick, 3);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The points that can be drawn.
fn shown(series: &Series) -> impl Iterator<Item = (f64, f64)> {
    series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite() && *x > 0.0)
}

fn describe(series: &Series, x_name: &str, y_name: &str) -> String {
    let points: Vec<String> = series
        .points
        .iter()
        .map(|(x, y)| format!("{} at {x_name} {x}", format::significant(*y, 3)))
        .collect();
    format!("{}: {} {y_name}", series.label, points.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_axis_starts_at_zero_with_round_ticks() {
        let points = (1..=40).map(|half| (f64::from(half) / 2.0 + 0.013, 650.0)).collect();
        let svg = over_time("x", "power", "W", &[Series { label: "GPU 0".into(), points }]);
        assert_eq!(svg.matches("<circle").count(), 41, "{svg}");
        for tick in ["0", "5", "10", "15", "20"] {
            assert!(svg.contains(&format!(">{tick}</text>")), "no {tick} in {svg}");
        }
        assert!(!svg.contains("inf") && !over_time("x", "none", "W", &[]).contains("NaN"));
    }

    #[test]
    fn only_finite_points_have_marks() {
        let check = |points: &[(f64, f64)], circles: usize| {
            let svg = lines(
                "x",
                "sweep",
                "D",
                "GFLOP/s",
                &[Series { label: "f32".into(), points: points.to_vec() }],
            );
            // One more circle is the legend's.
            assert_eq!(svg.matches("<circle").count(), circles + 1, "{svg}");
            assert!(!svg.contains("NaN\"") && !svg.contains("inf"), "{svg}");
        };
        check(&[(320.0, 100.0), (384.0, 120.0), (448.0, 90.0)], 3);
        check(&[(1.0, 5.0), (1024.0, 50.0)], 2);
        check(&[(64.0, f64::NAN), (128.0, 7.0), (256.0, 9.0)], 2);
        check(&[(64.0, 5.0)], 1);
        check(&[], 0);
    }
}
