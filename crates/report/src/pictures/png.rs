//! Renders a picture to PNG, for viewers that show no SVG. Text becomes outlines of a built-in font, so that every machine draws
//! the same pixels, with or without installed fonts.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::fmt::Write as _;
use ttf_parser::{Face, OutlineBuilder};

/// DejaVu Sans, reduced to ASCII and a few signs; its licence is in the same folder.
const FONT: &[u8] = include_bytes!("dejavu/DejaVuSans-reduced.ttf");

/// Draws a file of [`super::standalone`] at the size that it names.
///
/// # Errors
/// One sentence: it is no such file, or has no size.
pub(super) fn drawn(svg: &str) -> Result<Vec<u8>, String> {
    let face = Face::parse(FONT, 0).map_err(|error| error.to_string())?;
    let outlined = outlined(svg, &face).ok_or("a text of the picture has no place")?;
    let tree = Tree::from_str(&outlined, &Options::default()).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size();
    let of_no_size = || format!("a picture of {} by {}", size.width(), size.height());
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(of_no_size)?;
    // The tree already maps the view box to the size in pixels.
    resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| error.to_string())
}

/// The same file with a path for each text; `None` if a text element has another form than those that `plot` writes.
fn outlined(svg: &str, face: &Face<'_>) -> Option<String> {
    let font_size: f32 = attribute(svg, "font-size")?.parse().ok()?;
    let scale = font_size / f32::from(face.units_per_em());
    let (mut out, mut rest) = (String::new(), svg);
    while let Some((before, after)) = rest.split_once("<text ") {
        let (text, tail) = after.split_once("</text>")?;
        let (attributes, words) = text.split_once('>')?;
        let place = |name| attribute(attributes, name)?.parse::<f32>().ok();
        let words = unescaped(words);
        let width: f32 = words.chars().map(|letter| advance(face, letter)).sum::<f32>() * scale;
        let before_place = match attribute(attributes, "text-anchor")? {
            "start" => 0.0,
            "middle" => width / 2.0,
            _ => width,
        };
        let mut pen =
            Pen { path: String::new(), x: place("x")? - before_place, y: place("y")?, scale };
        for letter in words.chars() {
            if let Some(glyph) = face.glyph_index(letter) {
                // A space has no outline.
                let _ = face.outline_glyph(glyph, &mut pen);
            }
            pen.x += advance(face, letter) * scale;
        }
        let class = attribute(attributes, "class").unwrap_or_default();
        // Writing to a String cannot fail, here and below.
        let _ = write!(out, "{before}<path class=\"{class}\" d=\"{}\"/>", pen.path);
        rest = tail;
    }
    out.push_str(rest);
    Some(out)
}

/// The advance width of a character in font units; a character without a glyph is as wide as a digit.
fn advance(face: &Face<'_>, character: char) -> f32 {
    let glyph = face.glyph_index(character).or_else(|| face.glyph_index('0'));
    glyph.and_then(|glyph| face.glyph_hor_advance(glyph)).map_or(0.0, f32::from)
}

/// The value of an element's attribute.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split_once(&format!("{name}=\""))?.1.split_once('"').map(|(value, _)| value)
}

/// The inverse of [`crate::escape::html`].
fn unescaped(words: &str) -> String {
    // Ampersands last: every escape begins with one.
    let plain = words.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    plain.replace("&#39;", "'").replace("&amp;", "&")
}

/// Writes outlines as path data. Fonts count upwards, pictures downwards.
struct Pen {
    path: String,
    x: f32,
    y: f32,
    scale: f32,
}

impl Pen {
    fn to(&mut self, command: char, points: &[(f32, f32)]) {
        self.path.push(command);
        for (x, y) in points {
            let (x, y) = (self.x + x * self.scale, self.y - y * self.scale);
            let _ = write!(self.path, "{x:.3} {y:.3} ");
        }
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        self.to('M', &[(x, y)]);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.to('L', &[(x, y)]);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.to('Q', &[(x1, y1), (x, y)]);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.to('C', &[(x1, y1), (x2, y2), (x, y)]);
    }

    fn close(&mut self) {
        self.path.push('Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Series, lines_with};

    /// A sweep as a separate file.
    fn sample(label: &str) -> String {
        let points = vec![(320.0, 500.0), (512.0, 450.0), (1024.0, 400.0)];
        let series = [Series { label: label.to_owned(), points }];
        super::super::standalone(&lines_with("x", "a sweep", "D", "TFLOP/s", &series, &[]))
    }

    #[test]
    fn a_picture_has_its_size_a_white_background_its_line_and_its_text() {
        let svg = sample("firstlight <1> & co");
        let png = drawn(&svg).unwrap();
        let pixels = Pixmap::decode_png(&png).unwrap();
        let side = |name| attribute(&svg, name).unwrap().parse::<u32>().unwrap();
        assert_eq!((pixels.width(), pixels.height()), (side("width"), side("height")));
        let count = |colour: [u8; 3]| {
            let of = |pixel: &&resvg::tiny_skia::PremultipliedColorU8| {
                [pixel.red(), pixel.green(), pixel.blue()] == colour && pixel.alpha() == 255
            };
            pixels.pixels().iter().filter(of).count()
        };
        let all = (pixels.width() * pixels.height()) as usize;
        assert!(count([255; 3]) > all / 2, "white paper: {} of {all}", count([255; 3]));
        assert!(count([0x2f, 0x6d, 0xb5]) > 1000, "the line's blue");
        // Only titles and labels have this colour.
        let text = count([0x1c, 0x21, 0x27]);
        assert!(text > 300, "pixels of text: {text}");
        let longer = drawn(&sample("firstlight <1> & co, and a longer name")).unwrap();
        assert_ne!(longer, png, "words are drawn");
        assert_eq!(drawn(&svg).unwrap(), png, "the same bytes again");
    }

    #[test]
    fn outlines_start_at_the_position_of_their_text() {
        let face = Face::parse(FONT, 0).unwrap();
        let check = |anchor: &str, words: &str, expect: &str| {
            let svg = format!(
                "<svg font-size=\"12.5\">\n<text x=\"10\" y=\"20\" text-anchor=\"{anchor}\" class=\"muted\">{words}</text>\n</svg>"
            );
            let outlined = outlined(&svg, &face).unwrap();
            let path = attribute(&outlined, " d").unwrap();
            assert!(path.starts_with(expect), "{anchor} {words}: {path}");
            assert!(outlined.contains("<path class=\"muted\"") && !outlined.contains("<text"));
        };
        // The glyph of l is a bar that starts at 0.094 em; its advance is 0.278 em.
        check("start", "l", "M11.178 ");
        check("middle", "l", "M9.442 ");
        check("end", "l", "M7.705 ");
        check("end", "&lt;&amp;", "M");
        check("start", " ", "");
        assert!(outlined("<svg font-size=\"1\"><text x=\"\">a</text>", &face).is_none());
    }
}
