//! Tables: cells are wrapped between words; a table that does not fit even so is shown as lists.

use super::Style;
use super::layout::NARROWEST;
use crate::document::Tone;
use crate::escape;
use facts::CompactSort;
use std::fmt::Write as _;

/// A cell: text and its tone.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    words: String,
    tone: Tone,
}

impl Cell {
    /// The cell for comfy_table.
    pub(super) fn coloured(&self) -> comfy_table::Cell {
        use comfy_table::{Attribute, Color};
        let cell = comfy_table::Cell::new(&self.words);
        match self.tone {
            Tone::Good => cell.fg(Color::Green),
            Tone::Bad => cell.fg(Color::Red).add_attribute(Attribute::Bold),
            Tone::Warn => cell.fg(Color::Yellow),
            Tone::Plain => cell,
        }
    }
}

/// A cell in the colour of its tone.
pub(super) fn cell(tone: Tone, words: &str) -> Cell {
    Cell { words: escape::terminal(words), tone }
}

/// A cell without a colour.
pub(super) fn plain(words: impl AsRef<str>) -> Cell {
    cell(Tone::Plain, words.as_ref())
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    head: String,
    right: bool,
    /// Whether its cells are wrapped first if the line is too long.
    wraps: bool,
}

impl Column {
    /// A column of words that is not wrapped.
    pub(super) fn word(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: false, wraps: false }
    }

    /// A column of text that is wrapped if the line is too long.
    pub(super) fn wrapped(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: false, wraps: true }
    }

    /// A column of numbers, which stay next to their units.
    pub(super) fn number(head: impl Into<String>) -> Self {
        Self { head: head.into(), right: true, wraps: false }
    }
}

/// Rows and column heads.
#[derive(Debug)]
pub(super) struct Table {
    style: Style,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A table with a rule below its heads.
pub(super) fn table(style: Style, columns: &[Column]) -> Table {
    let copy = |column: &Column| Column { head: column.head.clone(), ..*column };
    Table { style, columns: columns.iter().map(copy).collect(), rows: Vec::new() }
}

impl Table {
    /// Adds a row; a row of a single cell is a title of the rows below.
    pub(super) fn add_row(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    fn is_title(&self, row: &[Cell]) -> bool {
        row.len() == 1 && self.columns.len() > 1
    }

    /// The widths of all columns and of the gap between them, if the rows fit in a line.
    fn widths(&self, line: usize) -> Option<(Vec<usize>, usize)> {
        let most: Vec<usize> = (0..self.columns.len()).map(|at| self.longest(at, whole)).collect();
        let words: Vec<usize> = (0..most.len()).map(|at| self.longest(at, longest_word)).collect();
        let parts: Vec<usize> = (0..most.len()).map(|at| self.longest(at, longest_part)).collect();
        let least = |of_wrapped: &[usize], of_others: &[usize]| -> Vec<usize> {
            let columns = self.columns.iter().enumerate();
            columns
                .map(|(at, column)| if column.wraps { of_wrapped[at] } else { of_others[at] })
                .collect()
        };
        // The order of wrapping: the longest texts between words, then names at their hyphens, then numbers from their
        // units.
        let tries = [
            (least(&words, &most), GAP),
            (least(&words, &most), NARROW_GAP),
            (least(&parts, &most), GAP),
            (least(&parts, &most), NARROW_GAP),
            (least(&parts, &parts), NARROW_GAP),
        ];
        tries.into_iter().find_map(|(mut widths, gap)| {
            let room = line.checked_sub(widths.len() * gap - 1)?;
            let mut left = room.checked_sub(widths.iter().sum())?;
            // The narrowest columns first, so that most columns get their full width.
            let mut order: Vec<usize> = (0..widths.len()).collect();
            order.compact_sort_by_key(|at| most[*at].saturating_sub(widths[*at]));
            for at in order {
                let more = most[at].saturating_sub(widths[at]).min(left);
                widths[at] += more;
                left -= more;
            }
            Some((widths, gap))
        })
    }

    /// The maximum of a measure over a column's cells and its head.
    fn longest(&self, at: usize, measure: fn(&str) -> usize) -> usize {
        let rows = self.rows.iter().filter(|row| !self.is_title(row));
        let cells = rows.filter_map(|row| Some(row.get(at)?.words.as_str()));
        let lines = cells.chain([self.columns[at].head.as_str()]).flat_map(str::lines);
        lines.map(measure).max().unwrap_or(0).max(1)
    }

    /// Rows as lists of their values, if the line is too short for a table.
    fn listed(&self) -> String {
        let widest = self.columns.iter().map(|column| width(&column.head)).max().unwrap_or(0) + 2;
        let mut out = String::new();
        for (nth, row) in self.rows.iter().enumerate() {
            if self.is_title(row) {
                // Writing to a String cannot fail, here and below.
                let _ = writeln!(out, "{}", row[0].words.trim());
                continue;
            }
            if nth > 0 && !self.is_title(&self.rows[nth - 1]) {
                out.push('\n');
            }
            for (column, cell) in self.columns.iter().zip(row) {
                let room = self.style.width.max(NARROWEST).saturating_sub(widest + 2);
                for (nth, line) in broken(cell.words.trim(), room).iter().enumerate() {
                    let head = if nth == 0 { column.head.as_str() } else { "" };
                    let _ = writeln!(out, "  {head:<widest$}{line}");
                }
            }
        }
        out
    }
}

/// Spaces between two columns.
const GAP: usize = 2;
/// Spaces between two columns if the line is short.
const NARROW_GAP: usize = 1;

/// The table as text.
pub(super) fn render(table: &Table) -> String {
    let Some((widths, gap)) = table.widths(table.style.width.max(NARROWEST)) else {
        return table.listed();
    };
    let mut out = String::new();
    let mut line = |cells: &[(Vec<String>, &str)]| {
        let height = cells.iter().map(|(lines, _)| lines.len()).max().unwrap_or(0);
        for nth in 0..height {
            let mut text = String::new();
            for ((column, (lines, code)), wanted) in table.columns.iter().zip(cells).zip(&widths) {
                let words = lines.get(nth).map_or("", String::as_str);
                let blanks = " ".repeat(wanted.saturating_sub(width(words)));
                let words = match table.style.color && !code.is_empty() && !words.is_empty() {
                    true => format!("\u{1b}[{code}m{words}\u{1b}[0m"),
                    false => words.to_owned(),
                };
                text += &if column.right { blanks + &words } else { words + &blanks };
                text += &" ".repeat(gap);
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    };
    let heads = table.columns.iter().zip(&widths);
    line(&heads.map(|(column, width)| (broken(&column.head, *width), "1")).collect::<Vec<_>>());
    let rules = widths.iter().map(|width| (vec!["─".repeat(*width)], ""));
    line(&rules.collect::<Vec<_>>());
    for row in &table.rows {
        if table.is_title(row) {
            line(&[(vec![row[0].words.clone()], code(row[0].tone))]);
            continue;
        }
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| (broken(&cell.words, *width), code(cell.tone)));
        line(&cells.collect::<Vec<_>>());
    }
    out
}

/// The ANSI code of a tone.
fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "32",
        Tone::Bad => "1;31",
        Tone::Warn => "33",
        Tone::Plain => "",
    }
}

fn width(words: &str) -> usize {
    words.chars().count()
}

fn whole(line: &str) -> usize {
    width(line.trim_end())
}

/// Spaces at the beginning of a line, which belong to its first word.
fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn longest_word(line: &str) -> usize {
    indent(line) + line.split_whitespace().map(width).max().unwrap_or(0)
}

fn longest_part(line: &str) -> usize {
    let parts = line.split_whitespace().flat_map(parts);
    indent(line) + parts.map(width).max().unwrap_or(0)
}

/// A long name may be wrapped after these.
const HYPHENS: &[char] = &['-', '/', '+', ','];

fn parts(word: &str) -> impl Iterator<Item = &str> {
    word.split_inclusive(HYPHENS)
}

/// A text in lines of at most `most` columns, wrapped between words, and within longer words at their hyphens.
fn broken(words: &str, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for text in words.lines() {
        let mut line = " ".repeat(indent(text).min(most / 2));
        let mut is_empty = true;
        for word in text.split_whitespace() {
            let long = width(word) > most.saturating_sub(if is_empty { width(&line) } else { 0 });
            let pieces: Vec<&str> = if long { parts(word).collect() } else { vec![word] };
            for (nth, piece) in pieces.into_iter().enumerate() {
                let blank = usize::from(nth == 0 && !is_empty);
                if !is_empty && width(&line) + blank + width(piece) > most {
                    lines.push(std::mem::take(&mut line));
                } else {
                    line += &" ".repeat(blank);
                }
                line += piece;
                is_empty = false;
            }
        }
        lines.push(line);
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: [&str; 7] = ["op, case", "type", "kernel", "median", "p95", "GB/s", "of ceiling"];

    fn shown(width: usize) -> String {
        let style = Style { color: false, width };
        let columns: Vec<Column> = HEADS
            .iter()
            .map(|head| match *head {
                "op, case" | "kernel" => Column::wrapped(*head),
                "type" => Column::word(*head),
                head => Column::number(head),
            })
            .collect();
        let mut table = table(style, &columns);
        table.add_row(vec![plain("selective_scan_of_a_long_name")]);
        for case in ["  prefill-2048", "  decode-b32"] {
            let row = [case, "bf16", "chunk.avx512 cpu", "37.2 ms", "44.2 ms", "0.709", "61% GEMM"];
            table.add_row(row.map(plain).to_vec());
        }
        render(&table)
    }

    #[test]
    fn words_are_not_split_at_any_width() {
        for columns in [120, 100, 80, 72, 60, 40, 10] {
            let text = shown(columns);
            let words: Vec<&str> = text.split_whitespace().collect();
            for word in ["selective_scan_of_a_long_name", "chunk.avx512", "37.2", "61%", "ceiling"]
            {
                assert!(words.contains(&word), "{word} is broken at {columns}\n{text}");
            }
            let longest = text.lines().map(width).max().unwrap();
            assert!(longest <= columns.max(NARROWEST), "{longest} columns at {columns}\n{text}");
        }
        for whole in ["37.2 ms", "prefill-2048"] {
            assert!(shown(80).contains(whole), "{}", shown(80));
        }
    }

    #[test]
    fn long_names_are_wrapped_at_hyphens() {
        assert_eq!(
            broken("causal-conv1d/varlen-padding-w2", 16),
            ["causal-conv1d/", "varlen-padding-", "w2"]
        );
        assert_eq!(broken("  one two", 5), ["  one", "two"]);
        assert_eq!(broken("", 5), [""]);
        assert_eq!(broken("unbroken", 5), ["unbroken"]);
    }
}
