//! Buffers text that is not parsed yet.

/// The unparsed end of an answer. A reader consumes only text whose meaning does not depend on later text.
#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    /// Bytes of `text` that are consumed.
    at: usize,
    /// The text is complete.
    pub(super) ended: bool,
}

/// The result of a search: the text before a marker, and the index of the marker that follows it.
pub(super) struct MarkerSplit {
    pub(super) text: String,
    pub(super) marker: Option<usize>,
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

    /// Puts the last bytes back, which must have been taken after the last [`Input::add`].
    pub(super) fn put_back(&mut self, bytes: usize) {
        self.at -= bytes;
    }

    pub(super) fn take_whitespace(&mut self) -> String {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start_matches(is_json_whitespace).len())
    }

    /// Whether the rest starts with a marker; `None` if more text is needed.
    pub(super) fn starts(&self, marker: &str) -> Option<bool> {
        let rest = self.rest();
        match rest.starts_with(marker) {
            false if !self.ended && marker.starts_with(rest) => None,
            starts => Some(starts),
        }
    }

    /// Takes the text before the earliest marker, and the marker. Without a marker it takes all except a suffix that
    /// may start one. No marker may be a prefix of another one.
    pub(super) fn until(&mut self, markers: &[&str]) -> MarkerSplit {
        let rest = self.rest();
        for (at, byte) in rest.bytes().enumerate() {
            let matches = |marker: &str| {
                marker.as_bytes()[0] == byte && rest.as_bytes()[at..].starts_with(marker.as_bytes())
            };
            if let Some(marker) = markers.iter().position(|marker| matches(marker)) {
                let text = self.take(at);
                self.at += markers[marker].len();
                return MarkerSplit { text, marker: Some(marker) };
            }
        }
        let partial = if self.ended { 0 } else { self.partial_marker(markers) };
        MarkerSplit { text: self.take(self.rest().len() - partial), marker: None }
    }

    /// Length of the longest suffix of the text that is a prefix of a marker.
    fn partial_marker(&self, markers: &[&str]) -> usize {
        let rest = self.rest();
        let longest =
            markers.iter().map(|marker| marker.len() - 1).max().unwrap_or(0).min(rest.len());
        let begins = |length: &usize| {
            let end = &rest.as_bytes()[rest.len() - length..];
            markers
                .iter()
                .any(|marker| marker.len() > *length && marker.as_bytes().starts_with(end))
        };
        (1..=longest).rev().find(begins).unwrap_or(0)
    }
}

/// Whether a character is white space in JSON, which models write between the parts of a call.
pub(super) fn is_json_whitespace(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\r' | '\t')
}
