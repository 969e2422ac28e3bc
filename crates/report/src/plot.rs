//! Pictures as inline SVG.
//!
//! Each is drawn 440 units wide and shown at about that many pixels, so that its letters stay readable on a phone; wider
//! screens set several side by side. Colours come from the page's style, so a picture follows light, dark and print. A mark
//! stands only for a number in the data: what was not measured has its words and no mark.

mod bars;
mod changes;
mod dots;
mod lines;
mod pairs;
mod ratios;
mod scale;
mod svg;

pub(crate) use bars::{Bar, BarGroup, bars};
pub(crate) use changes::{ChangeBar, changes};
pub(crate) use dots::{Dot, DotRow, dots};
pub(crate) use lines::{Band, Series, lines, lines_with, over_time};
pub(crate) use pairs::{PairRate, pairs};
pub(crate) use ratios::{RatioColumn, ratios};
