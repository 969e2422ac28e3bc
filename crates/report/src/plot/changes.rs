use super::scale::Scale;
use super::svg::{Anchor, Svg, WIDTH, width_of};
use crate::format;

/// The ratio of two times.
pub(crate) struct ChangeBar {
    /// The case and kernel.
    pub(crate) label: String,
    /// New time over old time.
    pub(crate) ratio: f64,
    /// Minimum and maximum ratio within the two confidence intervals.
    pub(crate) range: (f64, f64),
    /// The CSS class of the mark: `bad`, `good`, `s1`.
    pub(crate) class: &'static str,
}

const ROW: f64 = 19.0;
const NUMBER_WIDTH: f64 = 70.0;
/// Larger ratios are drawn at this one; the number next to them has the value.
const MAX_RATIO: f64 = 4.0;

/// Ratios of times with their confidence intervals on a logarithmic axis around 1: twice as long is as far to the right
/// as half as long is to the left. Ratios within `tolerance_pct` are not changes.
pub(crate) fn changes(id: &str, title: &str, bars: &[ChangeBar], tolerance_pct: f64) -> String {
    let described: Vec<String> =
        bars.iter().map(|bar| format!("{}: {}", bar.label, words(bar))).collect();
    let mut svg = Svg::new(id, title, &format!("{}.", described.join("; ")));
    let label_width = bars.iter().map(|bar| width_of(&bar.label)).fold(60.0, f64::max).min(210.0);
    let farthest = bars
        .iter()
        .flat_map(|bar| [bar.ratio, bar.range.0, bar.range.1])
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .map(|ratio| ratio.max(1.0 / ratio))
        .fold(1.0 + 2.0 * tolerance_pct / 100.0, f64::max)
        .min(MAX_RATIO);
    let scale = Scale::log(1.0 / farthest, farthest, label_width + 10.0, WIDTH - NUMBER_WIDTH);
    let at = |ratio: f64| scale.at(ratio.clamp(1.0 / farthest, farthest));
    let (top, bottom) = (28.0, 28.0 + ROW * bars.len() as f64);
    svg.text(0.0, 14.0, Anchor::Start, "title", title);
    let edge = 1.0 + tolerance_pct / 100.0;
    for (ratio, class) in [(1.0 / edge, "limit"), (1.0, "axis"), (edge, "limit")] {
        svg.line((at(ratio), top), (at(ratio), bottom), class);
    }
    let percent = |ratio: f64| format!("{:+.0} %", (ratio - 1.0) * 100.0);
    for ratio in [1.0 / farthest, farthest] {
        svg.text(at(ratio), bottom + 16.0, Anchor::Middle, "muted", &percent(ratio));
    }
    svg.text(at(1.0), bottom + 16.0, Anchor::Middle, "muted", "same time");
    for (i, bar) in bars.iter().enumerate() {
        let middle = top + ROW * (i as f64 + 0.5);
        svg.label(0.0, middle + 4.5, label_width, "", &bar.label);
        let number = format::signed_percent((bar.ratio - 1.0) * 100.0);
        svg.text(WIDTH, middle + 4.5, Anchor::End, "muted", &number);
        if !bar.ratio.is_finite() || bar.ratio <= 0.0 {
            continue;
        }
        if bar.range.0.is_finite() && bar.range.1.is_finite() && bar.range.0 > 0.0 {
            svg.line((at(bar.range.0), middle), (at(bar.range.1), middle), "axis");
        }
        let tip = format!("{}: {}", bar.label, words(bar));
        svg.circle(at(bar.ratio), middle, 3.6, bar.class, &tip);
    }
    svg.text(
        WIDTH,
        bottom + 33.0,
        Anchor::End,
        "muted",
        "change of the median; line: confidence interval; bars: tolerance",
    );
    svg.finish(bottom + 39.0)
}

fn words(bar: &ChangeBar) -> String {
    let percent = |ratio: f64| format::signed_percent((ratio - 1.0) * 100.0);
    format!("{} ({} to {})", percent(bar.ratio), percent(bar.range.0), percent(bar.range.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finite_ratio_has_one_mark_within_the_chart() {
        let bar = |ratio: f64| ChangeBar {
            label: "ssd a<b".into(),
            ratio,
            range: (ratio * 0.9, ratio * 1.1),
            class: "s1",
        };
        let svg = changes("x", "times", &[bar(1.0), bar(900.0), bar(0.001), bar(f64::NAN)], 5.0);
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
        assert!(svg.contains("+89900.0 %") && !svg.contains("a<b"), "{svg}");
        assert!(!svg.contains("NaN\"") && !svg.contains("inf\""), "{svg}");
        for part in svg.split("cx=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((0.0..=WIDTH).contains(&x), "{x}");
        }
    }
}
