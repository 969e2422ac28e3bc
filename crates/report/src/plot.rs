//! Pictures as inline SVG.
//!
//! Each is 440 units wide and shown at about as many pixels, so that its text stays readable on a phone; wider screens show
//! several side by side. Colours come from the page's style, so a picture follows light, dark and print. Every mark is a number
//! in the data: a value that was not measured has text and no mark.

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
