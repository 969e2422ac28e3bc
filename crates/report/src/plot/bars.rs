use super::scale::{Scale, steps};
use super::svg::{Anchor, Svg, WIDTH, width_of};
use crate::format;

/// One bar of a percentage.
pub(crate) struct Bar {
    /// Its label within the group.
    pub(crate) label: String,
    /// Index of the colour, from 1.
    pub(crate) series: usize,
    /// Percent; `None` has text and no bar.
    pub(crate) percent: Option<f64>,
    /// Text after the number, or instead of it.
    pub(crate) note: String,
}

/// Bars with a common label.
pub(crate) struct BarGroup {
    pub(crate) label: String,
    pub(crate) bars: Vec<Bar>,
}

const ROW: f64 = 21.0;
const NUMBER_WIDTH: f64 = 128.0;
/// Maximum width of bar labels, for `fla.fused_recurrent_kda`: truncated names would not be distinguishable.
const MAX_LABEL_WIDTH: f64 = 165.0;

/// Grouped horizontal bars of percentages. The axis ends at 100 %, or higher if a number exceeds it.
pub(crate) fn bars(id: &str, title: &str, groups: &[BarGroup]) -> String {
    let all = || groups.iter().flat_map(|group| &group.bars);
    let described: Vec<String> = groups
        .iter()
        .flat_map(|group| {
            group
                .bars
                .iter()
                .map(move |bar| format!("{} {}: {}", group.label, bar.label, value(bar)))
        })
        .collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));

    let longest = all().map(|bar| width_of(&bar.label)).fold(28.0, f64::max);
    let label_width = longest.min(MAX_LABEL_WIDTH);
    let left = label_width + 10.0;
    let highest =
        all().filter_map(|bar| bar.percent).filter(|value| value.is_finite()).fold(100.0, f64::max);
    let ticks = steps(highest, 4);
    let scale = Scale::linear(0.0, *ticks.last().unwrap_or(&100.0), left, WIDTH - NUMBER_WIDTH);

    let top = 30.0;
    let rows: f64 = groups.iter().map(|group| 24.0 + ROW * group.bars.len() as f64 + 6.0).sum();
    let bottom = top + rows;
    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    for tick in &ticks {
        let x = scale.at(*tick);
        svg.line(
            (x, top),
            (x, bottom),
            if *tick == 100.0 || *tick == 0.0 { "axis" } else { "grid" },
        );
        svg.text(x, bottom + 17.0, Anchor::Middle, "muted", &format!("{tick}"));
    }
    svg.text(WIDTH - NUMBER_WIDTH + 22.0, bottom + 17.0, Anchor::Start, "muted", "% of ceiling");

    let mut y = top;
    for group in groups {
        svg.label(0.0, y + 16.0, WIDTH, "", &group.label);
        y += 24.0;
        for bar in &group.bars {
            svg.label(0.0, y + 13.5, label_width, "muted", &bar.label);
            let words = value(bar);
            let tip = format!("{} {}: {words}", group.label, bar.label);
            let mut after = left + 4.0;
            if let Some(percent) = bar.percent.filter(|value| value.is_finite()) {
                let end = scale.at(percent.max(0.0));
                svg.rect(
                    left,
                    y + 2.5,
                    (end - left).max(0.75),
                    ROW - 7.0,
                    &format!("s{}", bar.series),
                    &tip,
                );
                after = end + 6.0;
            }
            svg.text(after, y + 13.5, Anchor::Start, "", &words);
            y += ROW;
        }
        y += 6.0;
    }
    svg.finish(bottom + 24.0)
}

fn value(bar: &Bar) -> String {
    match (bar.percent, bar.note.as_str()) {
        (None, "") => "ceiling not measured".to_owned(),
        (None, note) => note.to_owned(),
        (Some(percent), "") => format::percent(percent),
        (Some(percent), note) => format!("{} {note}", format::percent(percent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_have_bars() {
        let note = |percent: Option<f64>| percent.map_or("", |_| "of copy").to_owned();
        let bar = |percent| Bar { label: "f32".into(), series: 1, percent, note: note(percent) };
        let check = |percents: &[Option<f64>], rects: usize, says: &str| {
            let groups = [BarGroup {
                label: "prefill <b>".into(),
                bars: percents.iter().map(|p| bar(*p)).collect(),
            }];
            let svg = bars("x", "kda", &groups);
            assert_eq!(svg.matches("<rect").count(), rects, "{svg}");
            assert!(svg.contains(says), "{svg}");
            assert!(!svg.contains("<b>") && !svg.contains("NaN\""), "{svg}");
        };
        check(&[Some(61.44)], 1, ">61.4 % of copy</text>");
        check(&[None], 0, ">ceiling not measured</text>");
        check(&[Some(f64::NAN)], 0, ">NaN % of copy</text>");
        check(&[Some(130.0), Some(0.0)], 2, ">150</text>");
    }
}
