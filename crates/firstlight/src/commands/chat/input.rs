//! Messages from a terminal or a pipe.

use crate::failure::Failure;
use rustyline::Editor;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use std::io::{BufRead, ErrorKind, IsTerminal};

/// An input event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputEvent {
    /// A message of one or several lines.
    Message(String),
    /// Ctrl-C: the typed text is discarded.
    Interrupted,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// The source of messages.
pub(super) enum Input {
    /// A terminal, with a line editor whose history lasts as long as the command.
    Terminal { editor: Box<Editor<(), MemHistory>>, _mode: TypeAhead },
    /// A pipe or file, with one message per line.
    Pipe(Box<dyn BufRead>),
}

/// The terminal's mode between two lines, until it is dropped: what is typed while an answer is written stays for the
/// line editor. In canonical mode, the terminal itself would take Ctrl-D and the keys that edit.
pub(super) struct TypeAhead {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

impl TypeAhead {
    #[cfg(unix)]
    fn start() -> Self {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
        let input = std::io::stdin();
        let before = tcgetattr(&input).ok().filter(|before| {
            let mut changed = before.clone();
            changed.local_modes.remove(LocalModes::ICANON);
            tcsetattr(&input, OptionalActions::Now, &changed).is_ok()
        });
        Self { before }
    }

    #[cfg(not(unix))]
    fn start() -> Self {
        Self {}
    }
}

impl Drop for TypeAhead {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(before) = &self.before {
            use rustix::termios::{OptionalActions, tcsetattr};
            // A terminal that is gone has no mode.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// A line or another event.
enum Line {
    Text(String),
    Interrupted,
    End,
}

/// Delimits a message of several lines.
const QUOTES: &str = "\"\"\"";

impl Input {
    /// The terminal, if both input and output are one; otherwise standard input, as with `plain`.
    pub(super) fn open(plain: bool) -> anyhow::Result<Self> {
        let person = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if plain || !person {
            return Ok(Self::Pipe(Box::new(std::io::stdin().lock())));
        }
        let config = Config::builder().build();
        let editor = Editor::with_history(config.clone(), MemHistory::with_config(&config));
        let editor = Box::new(editor.map_err(terminal)?);
        Ok(Self::Terminal { editor, _mode: TypeAhead::start() })
    }

    /// Whether the input is interactive.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// The next message.
    pub(super) fn read(&mut self) -> anyhow::Result<InputEvent> {
        let read = gather(|first| self.line(if first { "> " } else { ". " }))?;
        if let (Self::Terminal { editor, .. }, InputEvent::Message(text)) = (self, &read) {
            editor.add_history_entry(text).map_err(terminal)?;
        }
        Ok(read)
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self {
            Self::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(text) => Ok(Line::Text(text)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(terminal(error)),
            },
            Self::Pipe(pipe) => {
                let mut text = String::new();
                match pipe.read_line(&mut text) {
                    Ok(0) => Ok(Line::End),
                    Ok(_) => {
                        let line = text.strip_suffix('\n').unwrap_or(&text);
                        Ok(Line::Text(line.strip_suffix('\r').unwrap_or(line).to_owned()))
                    }
                    Err(error) if error.kind() == ErrorKind::InvalidData => {
                        let what = "a line of standard input is not UTF-8";
                        Err(Failure::hinted(what, "convert the text, with iconv for instance"))
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

fn terminal(error: ReadlineError) -> anyhow::Error {
    let hint = "pipe the messages into the command, one per line";
    Failure::hinted(format!("the terminal cannot be read: {error}"), hint)
}

/// Joins the lines of a message; `next` gets whether the line is the first of a message.
fn gather(mut next: impl FnMut(bool) -> anyhow::Result<Line>) -> anyhow::Result<InputEvent> {
    let mut text = match next(true)? {
        Line::Text(text) => text,
        Line::Interrupted => return Ok(InputEvent::Interrupted),
        Line::End => return Ok(InputEvent::End),
    };
    let begun = text.trim_start();
    let quoted = begun.starts_with(QUOTES);
    if quoted {
        text = begun[QUOTES.len()..].to_owned();
    }
    loop {
        let end = text.trim_end();
        if quoted && end.ends_with(QUOTES) {
            text.truncate(end.len() - QUOTES.len());
            return Ok(InputEvent::Message(text));
        }
        if !quoted && !text.ends_with('\\') {
            return Ok(InputEvent::Message(text));
        }
        if !quoted {
            text.pop();
        }
        match next(false)? {
            Line::Text(more) => {
                text.push('\n');
                text += &more;
            }
            Line::Interrupted => return Ok(InputEvent::Interrupted),
            Line::End => return Ok(InputEvent::Message(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &'static str) -> Vec<String> {
        let mut input = Input::Pipe(Box::new(text.as_bytes()));
        let next = || match input.read().unwrap() {
            InputEvent::Message(text) => Some(text),
            InputEvent::Interrupted | InputEvent::End => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn quoted_lines_form_one_message() {
        for (text, want) in [
            ("", &[][..]),
            ("one\ntwo\r\n\nthree", &["one", "two", "", "three"]),
            ("one \\\n  two\nthree", &["one \n  two", "three"]),
            ("\"\"\"one\n\\\n\ntwo\"\"\"\nthree", &["one\n\\\n\ntwo", "three"]),
            ("  \"\"\"one\"\"\" \n", &["one"]),
            ("\"\"\"\none\n\"\"\"", &["\none\n"]),
            ("one\\", &["one"]),
            ("\"\"\"one\ntwo", &["one\ntwo"]),
            ("say \"\"\"x\"\"\"", &["say \"\"\"x\"\"\""]),
        ] {
            assert_eq!(messages(text), want, "{text:?}");
        }
    }

    #[test]
    fn rejects_input_that_is_not_utf8() {
        let mut input = Input::Pipe(Box::new(&b"a\xff\n"[..]));
        let error = input.read().unwrap_err().to_string();
        assert_eq!(error, "a line of standard input is not UTF-8");
    }
}
