//! Addresses that stay out of what a run writes down.
//!
//! `firstlight remote` knows by which address and port a machine was reached; a run folder is passed on and published.
//! What the machine itself tells may hold that address, as a process's command line does, so it is taken out before
//! anything is hashed or written.

/// The variable by which `remote` tells the run what to leave out, words apart by blanks. No argument: that would be recorded.
pub(crate) const VARIABLE: &str = "FIRSTLIGHT_REDACT";
/// What stands in the place of an address.
const MARK: &str = "[address]";

/// What is taken out.
#[derive(Debug, Default)]
pub(crate) struct Redaction {
    words: Vec<String>,
}

impl Redaction {
    /// As the environment says.
    pub(crate) fn from_environment() -> Self {
        Self::new(&std::env::var(VARIABLE).unwrap_or_default())
    }

    fn new(words: &str) -> Self {
        let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        // `host:port` goes before `host`, of which it would leave the port.
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        Self { words }
    }

    /// The text without them.
    pub(crate) fn of(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, word| without(&text, word))
    }
}

/// The mark in the place of each `word` that is not a part of a longer one.
fn without(text: &str, word: &str) -> String {
    let inner = |character: char| character.is_alphanumeric();
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for (at, found) in text.match_indices(word) {
        let end = at + found.len();
        let parted = !text[..at].ends_with(inner) && !text[end..].starts_with(inner);
        kept.push_str(&text[from..at]);
        kept.push_str(if parted { MARK } else { found });
        from = end;
    }
    kept + &text[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_21_an_address_is_taken_out_and_nothing_that_looks_like_a_part_of_it() {
        let redaction = Redaction::new("203.0.113.7 203.0.113.7:22014");
        let check = |text: &str, expect: &str| assert_eq!(redaction.of(text), expect);
        check(
            "serve --to 203.0.113.7:22014 --from 203.0.113.7",
            "serve --to [address] --from [address]",
        );
        check("\"root@203.0.113.7\"", "\"root@[address]\"");
        check("203.0.113.77 and 1203.0.113.7", "203.0.113.77 and 1203.0.113.7");
        check("203.0.113.8", "203.0.113.8");
        assert_eq!(Redaction::new("").of("203.0.113.7"), "203.0.113.7");
    }
}
