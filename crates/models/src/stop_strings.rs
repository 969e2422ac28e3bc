//! Ends a streamed text at the first stop string.

/// Buffers the end of a text that may be the beginning of a stop string.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    matched: Option<String>,
}

impl StopStrings {
    /// Stops at the first of these strings; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), matched: None }
    }

    /// Adds text; returns the text that is certain, and whether a stop string was found, which is not included.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        // If several stop strings match, the one that begins first counts.
        let found = |stop: &String| Some((self.held.find(stop)?, stop.clone()));
        if let Some((at, stop)) = self.stops.iter().filter_map(found).min_by_key(|found| found.0) {
            let shown = self.held[..at].to_owned();
            self.matched = Some(stop);
            self.held.clear();
            return (shown, true);
        }
        let whole = self.held.len();
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let keep = starts.find(begins).unwrap_or(whole);
        let held = self.held.split_off(keep);
        (std::mem::replace(&mut self.held, held), false)
    }

    /// The stop string that was found.
    pub fn matched(&self) -> Option<&str> {
        self.matched.as_deref()
    }

    /// The buffered text, when the text ends.
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stops: &[&str], pieces: &[&str], shown: &[&str], stopped: bool, rest: &str) {
        let mut stream = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()));
        for (index, (piece, want)) in pieces.iter().zip(shown).enumerate() {
            let last = index + 1 == pieces.len();
            let (got, ended) = stream.push(piece);
            assert_eq!((got.as_str(), ended), (*want, stopped && last), "{stops:?} {pieces:?}");
        }
        assert_eq!(stream.matched().is_some_and(|stop| stops.contains(&stop)), stopped);
        assert_eq!(stream.finish(), rest);
    }

    #[test]
    fn text_is_emitted_once_it_cannot_be_a_stop_string() {
        check(&[], &["a", "b"], &["a", "b"], false, "");
        check(&["END"], &["one E", "N", "Q"], &["one ", "", "ENQ"], false, "");
        check(&["END"], &["one E", "ND two"], &["one ", ""], true, "");
        check(&["END"], &["EEND"], &["E"], true, "");
        check(&["\n\n", "."], &["a\n", ". b"], &["a", "\n"], true, "");
        check(&["中文"], &["中", "国"], &["", "中国"], false, "");
        check(&["aab"], &["aaa", "b"], &["a", ""], true, "");
        check(&["", "xy"], &["ax"], &["a"], false, "x");
    }
}
