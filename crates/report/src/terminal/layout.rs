//! Colours, field lists and tables.

use super::Style;
use crate::document::Tone;
use crate::escape;
use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table,
    TableComponent, Width, presets,
};

/// The narrowest line that still reads as a table.
const NARROWEST: usize = 40;

/// The width that every table is made for.
const USUAL: usize = 80;

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

/// A cell in the colour of its meaning.
pub(super) fn cell(tone: Tone, words: &str) -> Cell {
    let cell = Cell::new(escape::terminal(words));
    match tone {
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        Tone::Warn => cell.fg(Color::Yellow),
        Tone::Plain => cell,
    }
}

/// A cell without a colour.
pub(super) fn plain(words: impl AsRef<str>) -> Cell {
    Cell::new(escape::terminal(words.as_ref()))
}

/// A column of a table.
pub(super) struct Column {
    head: String,
    right: bool,
    wraps: bool,
}

impl Column {
    /// A column of words that keeps its width.
    pub(super) fn word(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: false, wraps: false }
    }

    /// A column of words that gives way when the line is too long.
    pub(super) fn wrapped(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: false, wraps: true }
    }

    /// A column of numbers, which are never broken.
    pub(super) fn number(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: true, wraps: false }
    }
}

/// A table with a rule under its heads.
pub(super) fn table(style: Style, columns: &[Column]) -> Table {
    let mut table = bare(style);
    table
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, ' ');
    table.set_header(
        columns.iter().map(|column| Cell::new(&column.head).add_attribute(Attribute::Bold)),
    );
    for (i, wanted) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(i) {
            column.set_padding((0, 1));
            if wanted.right {
                column.set_cell_alignment(CellAlignment::Right);
            }
            // Numbers stay whole on any usual terminal; a narrower one has to break them.
            if !wanted.wraps && style.width >= USUAL {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
    }
    table
}

/// Sentences behind a status word each.
pub(super) fn tagged(style: Style, items: Vec<(Cell, String)>) -> String {
    let mut table = bare(style);
    for (tag, words) in items {
        table.add_row(vec![tag, plain(words)]);
    }
    for (i, padding) in [(0, 2), (0, 0)].into_iter().enumerate() {
        if let Some(column) = table.column_mut(i) {
            column.set_padding(padding);
        }
    }
    if let Some(column) = table.column_mut(0) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    render(&table)
}

fn bare(style: Style) -> Table {
    let mut table = Table::new();
    let width = u16::try_from(style.width.max(NARROWEST)).unwrap_or(u16::MAX);
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    // The room is told about colour; it must not ask the terminal.
    if style.color {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    table
}

/// A table as text whose lines end where their words do.
pub(super) fn render(table: &Table) -> String {
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
        table.add_row(vec![plain(name), plain(value)]);
    }
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(10);
    if let Some(column) = table.column_mut(0) {
        let width = u16::try_from(longest + 4).unwrap_or(14);
        column.set_padding((2, 2)).set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
    }
    if let Some(column) = table.column_mut(1) {
        column.set_padding((0, 0));
    }
    render(&table)
}

/// A sentence wrapped to the width.
pub fn paragraph(style: Style, words: &str) -> String {
    let mut table = bare(style);
    table.add_row(vec![plain(words)]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    render(&table)
}
