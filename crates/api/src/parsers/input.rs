//! Buffers text that is not parsed yet.

/// The unparsed end of an answer. A reader consumes only text that later text cannot change.
#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    at: usize,
    /// The text is complete.
    pub(super) ended: bool,
}

/// Text up to a marker, and which of the markers followed it.
pub(super) struct MarkerSplit {
    pub(super) text: String,
    pub(super) mark: Option<usize>,
}

impl Input {
    pub(super) fn add(&mut self, more: &str) {
        self.text.drain(..self.at);
        self.at = 0;
        self.text.push_str(more);
    }

    pub(super) fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    pub(super) fn first(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn take(&mut self, bytes: usize) -> String {
        let taken = self.rest()[..bytes].to_owned();
        self.at += bytes;
        taken
    }

    /// Puts back the last bytes taken since the last [`Input::add`].
    pub(super) fn put_back(&mut self, bytes: usize) {
        self.at -= bytes;
    }

    pub(super) fn take_blank(&mut self) -> String {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start_matches(is_blank).len())
    }

    /// Whether the rest starts with a marker; `None` if more text is needed.
    pub(super) fn starts(&self, mark: &str) -> Option<bool> {
        let rest = self.rest();
        match rest.starts_with(mark) {
            false if !self.ended && mark.starts_with(rest) => None,
            starts => Some(starts),
        }
    }

    /// Takes the text before the earliest marker, and the marker. Without one it takes everything except an end that
    /// may start a marker. No marker may be a prefix of another one.
    pub(super) fn until(&mut self, marks: &[&str]) -> MarkerSplit {
        let rest = self.rest();
        for (at, byte) in rest.bytes().enumerate() {
            let matches = |mark: &str| {
                mark.as_bytes()[0] == byte && rest.as_bytes()[at..].starts_with(mark.as_bytes())
            };
            if let Some(mark) = marks.iter().position(|mark| matches(mark)) {
                let text = self.take(at);
                self.at += marks[mark].len();
                return MarkerSplit { text, mark: Some(mark) };
            }
        }
        let held = if self.ended { 0 } else { self.held(marks) };
        MarkerSplit { text: self.take(self.rest().len() - held), mark: None }
    }

    /// Length of an end that may start a marker.
    fn held(&self, marks: &[&str]) -> usize {
        let rest = self.rest();
        let longest = marks.iter().map(|mark| mark.len() - 1).max().unwrap_or(0).min(rest.len());
        let begins = |length: &usize| {
            let end = &rest.as_bytes()[rest.len() - length..];
            marks.iter().any(|mark| mark.len() > *length && mark.as_bytes().starts_with(end))
        };
        (1..=longest).rev().find(begins).unwrap_or(0)
    }
}

/// JSON's white space, which models write between the parts of a call.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}
