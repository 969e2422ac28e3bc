//! Renders a chart as PNG. Text is converted to outlines of a built-in font, so that all machines render the same
//! pixels, even without fonts.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::fmt::Write as _;
use ttf_parser::{Face, OutlineBuilder};

/// DejaVu Sans, reduced to ASCII and a few symbols; its licence is in the same folder.
const FONT: &[u8] = include_bytes!("dejavu/DejaVuSans-reduced.ttf");

/// Renders the output of [`super::standalone`] at the pixel size that it has.
///
/// # Errors
/// One sentence, if it is not such a file or its size is zero.
pub(super) fn rasterize(svg: &str) -> Result<Vec<u8>, String> {
    let face = Face::parse(FONT, 0).map_err(|error| error.to_string())?;
    let paths = with_text_as_paths(svg, &face).ok_or("a text of the chart has no position")?;
    let tree = Tree::from_str(&paths, &Options::default()).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size();
    let of_no_size = || format!("the size is {} by {}", size.width(), size.height());
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or_else(of_no_size)?;
    // The file's size is in pixels; its viewBox has other units.
    resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| error.to_string())
}

/// The same file with a path for each text; `None` if a text lacks an attribute that this crate writes.
fn with_text_as_paths(svg: &str, face: &Face<'_>) -> Option<String> {
    let font_size: f32 = attribute(svg, "font-size")?.parse().ok()?;
    let scale = font_size / f32::from(face.units_per_em());
    let (mut out, mut rest) = (String::new(), svg);
    while let Some((before, after)) = rest.split_once("<text ") {
        let (text, tail) = after.split_once("</text>")?;
        let (attributes, words) = text.split_once('>')?;
        let place = |name| attribute(attributes, name)?.parse::<f32>().ok();
        let words = unescape(words);
        let width: f32 = words.chars().map(|letter| advance(face, letter)).sum::<f32>() * scale;
        let before_place = match attribute(attributes, "text-anchor")? {
            "start" => 0.0,
            "middle" => width / 2.0,
            _ => width,
        };
        let mut pen = PathWriter {
            path: String::new(),
            x: place("x")? - before_place,
            y: place("y")?,
            scale,
        };
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

/// The advance width of a character, in font units; a missing character is as wide as a digit.
fn advance(face: &Face<'_>, letter: char) -> f32 {
    let glyph = face.glyph_index(letter).or_else(|| face.glyph_index('0'));
    glyph.and_then(|glyph| face.glyph_hor_advance(glyph)).map_or(0.0, f32::from)
}

/// The value of an element's attribute.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split_once(&format!("{name}=\""))?.1.split_once('"').map(|(value, _)| value)
}

/// Reverses [`crate::escape::html`].
fn unescape(words: &str) -> String {
    // Ampersands last, because the others start with one.
    let plain = words.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    plain.replace("&#39;", "'").replace("&amp;", "&")
}

/// Writes outlines as path data. The y axis of fonts points up, that of SVG down.
struct PathWriter {
    path: String,
    x: f32,
    y: f32,
    scale: f32,
}

impl PathWriter {
    fn to(&mut self, command: char, points: &[(f32, f32)]) {
        self.path.push(command);
        for (x, y) in points {
            let (x, y) = (self.x + x * self.scale, self.y - y * self.scale);
            let _ = write!(self.path, "{x:.3} {y:.3} ");
        }
    }
}

impl OutlineBuilder for PathWriter {
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

    /// A sweep as a standalone file.
    fn sample(label: &str) -> String {
        let points = vec![(320.0, 500.0), (512.0, 450.0), (1024.0, 400.0)];
        let series = [Series { label: label.to_owned(), points }];
        super::super::standalone(&lines_with("x", "a sweep", "D", "TFLOP/s", &series, &[]))
    }

    #[test]
    fn png_has_the_size_background_line_and_text_of_the_svg() {
        let svg = sample("firstlight <1> & co");
        let png = rasterize(&svg).unwrap();
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
        assert!(count([255; 3]) > all / 2, "white background: {} of {all}", count([255; 3]));
        assert!(count([0x2f, 0x6d, 0xb5]) > 1000, "the line's blue");
        // Only titles and labels have this colour.
        let text_pixels = count([0x1c, 0x21, 0x27]);
        assert!(text_pixels > 300, "{text_pixels} pixels of text");
        let longer = rasterize(&sample("firstlight <1> & co, and a longer name")).unwrap();
        assert_ne!(longer, png, "text is drawn");
        assert_eq!(rasterize(&svg).unwrap(), png, "the same bytes");
    }

    #[test]
    fn outlines_are_placed_by_text_anchor() {
        let face = Face::parse(FONT, 0).unwrap();
        let check = |anchor: &str, words: &str, expect: &str| {
            let svg = format!(
                "<svg font-size=\"12.5\">\n<text x=\"10\" y=\"20\" text-anchor=\"{anchor}\" class=\"muted\">{words}</text>\n</svg>"
            );
            let paths = with_text_as_paths(&svg, &face).unwrap();
            let path = attribute(&paths, " d").unwrap();
            assert!(path.starts_with(expect), "{anchor} {words}: {path}");
            assert!(paths.contains("<path class=\"muted\"") && !paths.contains("<text"));
        };
        // An l is a bar from 0.094 of the font size on, and 0.278 wide.
        check("start", "l", "M11.178 ");
        check("middle", "l", "M9.442 ");
        check("end", "l", "M7.705 ");
        check("end", "&lt;&amp;", "M");
        check("start", " ", "");
        assert!(with_text_as_paths("<svg font-size=\"1\"><text x=\"\">a</text>", &face).is_none());
    }
}
