//! Colours, field lists and tables.

use super::Style;
use crate::document::Tone;
use crate::escape;
use comfy_table::{ColumnConstraint, ContentArrangement, Width, presets};

pub(super) use super::table::{Cell, Column, cell, plain, render, table};

/// The narrowest line that still reads as a table.
pub(super) const NARROWEST: usize = 40;

/// Words in the colour of their meaning.
pub(super) fn paint(style: Style, tone: Tone, words: &str) -> String {
    let words = escape::terminal(words);
    let code = match tone {
        Tone::Good => "32",
        Tone::Bad => "1;31",
        Tone::Warn => "33",
        Tone::Plain => "1",
    };
    if style.color { format!("\u{1b}[{code}m{words}\u{1b}[0m") } else { words }
}

fn bare_cell(words: &str) -> comfy_table::Cell {
    comfy_table::Cell::new(escape::terminal(words))
}

/// Sentences, each after a status word.
pub(super) fn tagged(style: Style, items: Vec<(Cell, String)>) -> String {
    let mut table = bare(style);
    for (tag, words) in items {
        table.add_row(vec![tag.coloured(), bare_cell(&words)]);
    }
    for (i, padding) in [(0, 2), (0, 0)].into_iter().enumerate() {
        if let Some(column) = table.column_mut(i) {
            column.set_padding(padding);
        }
    }
    if let Some(column) = table.column_mut(0) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    lines(&table)
}

fn bare(style: Style) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    let width = u16::try_from(style.width.max(NARROWEST)).unwrap_or(u16::MAX);
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    // The caller decides on colour; comfy_table must not ask the terminal.
    if style.color {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    table
}

/// A table as text whose lines end where their words do.
fn lines(table: &comfy_table::Table) -> String {
    let mut out = String::new();
    for line in table.to_string().lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Names and values under each other, the values wrapped at their own edge.
pub(super) fn fields(style: Style, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = bare(style);
    for (name, value) in rows {
        table.add_row(vec![bare_cell(name), bare_cell(value)]);
    }
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(10);
    if let Some(column) = table.column_mut(0) {
        let width = u16::try_from(longest + 4).unwrap_or(14);
        column.set_padding((2, 2)).set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    if let Some(column) = table.column_mut(1) {
        column.set_padding((0, 0));
    }
    lines(&table)
}

/// A sentence wrapped to the width.
pub fn paragraph(style: Style, words: &str) -> String {
    let mut table = bare(style);
    table.add_row(vec![bare_cell(words)]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    lines(&table)
}
