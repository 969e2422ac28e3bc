use crate::escape;

/// Width of every chart in its units.
pub(super) const WIDTH: f64 = 440.0;

/// Font size in the chart's units.
const FONT_SIZE: f64 = 12.5;

/// The point of a text that x refers to.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An `<svg>` element being drawn, with a description for screen readers.
pub(super) struct Svg {
    id: String,
    title: String,
    description: String,
    body: String,
}

impl Svg {
    pub(super) fn new(id: &str, title: &str, description: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            description: description.to_owned(),
            body: String::new(),
        }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.body.push_str(&format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\"{class}>{}</text>\n",
            number(x),
            number(y),
            escape::html(words)
        ));
    }

    /// Text within a width: smaller if it is longer, and truncated if it would be smaller than [`SMALLEST`], with the
    /// full text in a tooltip.
    pub(super) fn label(&mut self, x: f64, y: f64, available: f64, class: &str, words: &str) {
        let scale = (available / width_of(words) * 100.0).floor() / 100.0;
        let shown = fit(words, available);
        if shown == words {
            self.text(x, y, Anchor::Start, class, words);
        } else if scale >= SMALLEST {
            let (x, y) = (number(x), number(y));
            let place = format!("translate({x} {y}) scale({})", number(scale));
            self.body.push_str(&format!("<g transform=\"{place}\">"));
            self.text(0.0, 0.0, Anchor::Start, class, words);
            self.body.push_str("</g>\n");
        } else {
            self.body.push_str(&format!("<g><title>{}</title>", escape::html(words)));
            self.text(x, y, Anchor::Start, class, &shown);
            self.body.push_str("</g>\n");
        }
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str, tip: &str) {
        self.body.push_str(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"1.5\" class=\"{class}\">{}</rect>\n",
            number(x),
            number(y),
            number(width),
            number(height),
            tooltip(tip)
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.body.push_str(&format!(
            "<path class=\"{class}\" d=\"M{} {}L{} {}\"/>\n",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        ));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let steps: Vec<String> =
            points.iter().map(|(x, y)| format!("{} {}", number(*x), number(*y))).collect();
        self.body.push_str(&format!("<path class=\"{class}\" d=\"M{}\"/>\n", steps.join("L")));
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, radius: f64, class: &str, tip: &str) {
        self.body.push_str(&format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{class}\">{}</circle>\n",
            number(x),
            number(y),
            number(radius),
            tooltip(tip)
        ));
    }

    /// A diamond, which is distinguishable from a circle without colour.
    pub(super) fn diamond(&mut self, x: f64, y: f64, radius: f64, class: &str, tip: &str) {
        let at =
            |dx: f64, dy: f64| format!("{} {}", number(x + dx * radius), number(y + dy * radius));
        self.body.push_str(&format!(
            "<path class=\"{class}\" d=\"M{}L{}L{}L{}Z\">{}</path>\n",
            at(0.0, -1.0),
            at(1.0, 0.0),
            at(0.0, 1.0),
            at(-1.0, 0.0),
            tooltip(tip)
        ));
    }

    pub(super) fn finish(self, height: f64) -> String {
        let Self { id, title, description, body } = self;
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\" font-size=\"{FONT_SIZE}\">\n\
             <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-desc\">{}</desc>\n{body}</svg>",
            number(WIDTH),
            number(height),
            escape::html(&title),
            escape::html(&description)
        )
    }
}

fn tooltip(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("<title>{}</title>", escape::html(words)) }
}

/// A coordinate with at most two decimals, so that the bytes are the same on every machine.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// An upper bound of a text's width, since text cannot be measured before the page is shown.
pub(super) fn width_of(words: &str) -> f64 {
    words.chars().count() as f64 * FONT_SIZE * 0.56
}

/// Minimum font size of a label, as a share of the normal one.
const SMALLEST: f64 = 0.7;

/// Truncates text with an ellipsis so that it fits.
fn fit(words: &str, available: f64) -> String {
    if width_of(words) <= available {
        return words.to_owned();
    }
    let keep = (available / (FONT_SIZE * 0.56)).floor().max(2.0) as usize - 1;
    let mut short: String = words.chars().take(keep).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_shrink_before_they_are_truncated() {
        let drawn = |length: usize| {
            let mut svg = Svg::new("x", "t", "d");
            let words = "w".repeat(length);
            svg.label(3.0, 5.0, width_of(&"w".repeat(40)), "", &words);
            (svg.body.contains(&format!(">{words}</text>")), svg.body)
        };
        for (length, whole, scale) in [
            (40, true, None),
            (44, true, Some("scale(0.9)")),
            (57, true, Some("scale(0.7)")),
            (60, false, None),
        ] {
            let (is_whole, body) = drawn(length);
            assert_eq!(is_whole, whole, "{length}: {body}");
            match scale {
                Some(scale) => assert!(body.contains(&format!("translate(3 5) {scale}")), "{body}"),
                None => assert!(!body.contains("scale("), "{body}"),
            }
        }
    }
}
