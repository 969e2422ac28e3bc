//! Output streams and their styles.

use report::terminal::Style;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};

/// Maximum width of lines, and the width for a pipe.
const WIDEST: usize = 120;
const PIPE: usize = 80;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
    color: bool,
    color_errors: bool,
    width: usize,
    /// The width of standard error.
    notice_width: usize,
    /// Whether standard error is a terminal, whose lines are wrapped between words.
    error_terminal: bool,
    /// Whether notices are suppressed.
    quiet: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let allowed = may_color(|name| std::env::var_os(name));
        let terminal = std::io::stdout().is_terminal();
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let measured = terminal.then(|| width_of(&console::Term::stdout())).flatten();
        let errors_on_terminal = std::io::stderr().is_terminal();
        let of_errors = errors_on_terminal.then(|| width_of(&console::Term::stderr())).flatten();
        let width = |measured: Option<usize>| columns.or(measured).unwrap_or(PIPE).min(WIDEST);
        Self {
            json,
            color: allowed && terminal,
            color_errors: allowed && errors_on_terminal,
            width: width(measured),
            notice_width: width(of_errors),
            error_terminal: errors_on_terminal,
            quiet: json,
        }
    }

    /// Suppresses notices if `quiet`.
    pub(crate) fn quiet(self, quiet: bool) -> Self {
        Self { quiet: self.quiet || quiet, ..self }
    }

    /// Prints a notice on standard error, so that standard output has only the result. Suppressed with --quiet and
    /// --json.
    pub(crate) fn notice(&self, text: impl FnOnce(Style) -> String) {
        if self.quiet {
            return;
        }
        let text = text(Style { color: self.color_errors, width: self.notice_width });
        let text = self.wrap_error(&text);
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        // A closed standard error does not affect the result.
        let _ = write!(std::io::stderr().lock(), "{text}{end}");
    }

    pub(crate) fn style(&self) -> Style {
        Style { color: self.color, width: self.width }
    }

    /// Prints text unchanged.
    pub(crate) fn text(&self, text: &str) -> anyhow::Result<()> {
        match text.is_empty() || text.ends_with('\n') {
            true => write(text),
            false => write(&format!("{text}\n")),
        }
    }

    /// Prints one JSON document.
    pub(crate) fn document(&self, document: &impl Serialize) -> anyhow::Result<()> {
        self.text(&serde_json::to_string_pretty(document)?)
    }

    /// Prints the document with `--json`, the text without.
    pub(crate) fn either(
        &self,
        document: &impl Serialize,
        text: impl FnOnce(Style) -> String,
    ) -> anyhow::Result<()> {
        if self.json { self.document(document) } else { self.text(&text(self.style())) }
    }

    /// Text for standard error: on a terminal, long lines are wrapped between words. Elsewhere a line stays whole.
    pub(crate) fn wrap_error(&self, text: &str) -> String {
        match self.error_terminal {
            true => {
                let lines = text.split('\n').map(|line| wrapped(line, self.notice_width));
                lines.collect::<Vec<_>>().join("\n")
            }
            false => text.to_owned(),
        }
    }

    pub(crate) fn paint_error(&self, word: &str) -> String {
        if self.color_errors { format!("\u{1b}[1;31m{word}\u{1b}[0m") } else { word.to_owned() }
    }

    pub(crate) fn paint_hint(&self, word: &str) -> String {
        if self.color_errors { format!("\u{1b}[1;36m{word}\u{1b}[0m") } else { word.to_owned() }
    }
}

/// Wraps a line between words. Further lines are indented by as much as the second column of a line `name    value`, or
/// else by two.
pub(crate) fn wrapped(line: &str, width: usize) -> String {
    let value = line.find("  ").map(|at| at + line[at..].len() - line[at..].trim_start().len());
    let indent = value.filter(|value| *value > 2 && *value <= width / 3).unwrap_or(2);
    let mut text = String::new();
    let mut column = 0;
    for (at, word) in line.split(' ').enumerate() {
        let wide = console::measure_text_width(word);
        if wide > 0 && column > indent && column + 1 + wide > width {
            text.truncate(text.trim_end().len());
            text = text + "\n" + &" ".repeat(indent);
            column = indent;
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += wide;
    }
    text
}

/// An error of writing to standard output.
#[derive(Debug)]
pub(crate) struct OutputError(pub(crate) std::io::Error);

impl std::fmt::Display for OutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// Writes text to standard output and flushes it.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(written.map_err(OutputError)?)
}

/// An empty NO_COLOR does not count, as its specification defines. A dumb terminal would show the escape codes as text.
fn may_color(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let dumb = variable("TERM").is_some_and(|term| term == "dumb");
    !dumb && variable("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn width_of(terminal: &console::Term) -> Option<usize> {
    terminal.size_checked().map(|(_, columns)| usize::from(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_between_words_under_their_column() {
        for (line, expect) in [
            ("", ""),
            ("short", "short"),
            ("error: no model of that name is here", "error: no model of\n  that name is here"),
            ("launches   linear 1, read 2", "launches   linear 1,\n  read 2"),
            ("memory  1 MB peak, 2 MB here", "memory  1 MB peak, 2\n  MB here"),
            ("  a b c d e f g h i j k l m", "  a b c d e f g h i\n  j k l m"),
            ("a_word_that_is_longer_than_the_line", "a_word_that_is_longer_than_the_line"),
            ("a x_word_that_is_longer_than_the_line", "a x_word_that_is_longer_than_the_line"),
        ] {
            assert_eq!(wrapped(line, 20), expect, "{line}");
        }
        assert_eq!(
            wrapped("memory     1 MB peak, 2 MB predicted", 33),
            "memory     1 MB peak, 2 MB\n           predicted"
        );
    }

    #[test]
    fn colour_is_for_terminals_that_show_it() {
        for (variables, allowed) in [
            (&[][..], true),
            (&[("TERM", "xterm-256color")], true),
            (&[("TERM", "dumb")], false),
            (&[("NO_COLOR", "1")], false),
            (&[("NO_COLOR", "")], true),
        ] {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
            let color = may_color(|name| found(name).map(|(_, value)| OsString::from(value)));
            assert_eq!(color, allowed, "{variables:?}");
        }
    }
}
