//! Patterns of error messages, and their search in texts that a terminal or logger wrapped, coloured or prefixed.

mod escapes;
mod log;

use escapes::uncoloured;
use memchr::memmem;

/// A pattern of an error message, with a sample.
#[derive(Debug)]
pub struct Text {
    /// The words of the message. `*` matches a short stretch of anything, and `{name}` one word that the remedy uses.
    /// White space, letter case, colours, frames and the kind of quotes are ignored. `^` at the start and `$` at the
    /// end anchor the words to the start and end of a line; `*` at the end lets the last word continue.
    pub pattern: &'static str,
    /// Lines with the message, as they were printed.
    pub sample: &'static str,
}

impl Text {
    /// A pattern with a sample. A constant with an empty sample does not compile.
    pub(crate) const fn new(pattern: &'static str, sample: &'static str) -> Self {
        assert!(!sample.is_empty(), "a text needs a sample");
        Self { pattern, sample }
    }
}

/// Longest match of a `*`, in bytes without white space: a list of names or a path, not another message.
const REACH: usize = 300;
/// Longest word that a `{name}` matches, in bytes: mangled C++ names are long.
const LONGEST_WORD: usize = 400;
/// Fewest bytes of a pattern that match if the pasted text ends within the pattern.
const CUT_OFF: usize = 24;

/// A pasted text without the additions of terminals and loggers: colours, frames, and the prefixes of lines.
#[derive(Debug)]
pub(crate) struct Pasted {
    /// The bytes without white space, in lower case, with all quotes made equal.
    squeezed: Vec<u8>,
    /// The same bytes in their original case.
    written: Vec<u8>,
    /// The white space or line end before each byte, and one entry for the end of the text.
    before: Vec<Spacing>,
    /// The runs of four bytes that occur, as bits by their hash. They exclude most of the hundreds of patterns without
    /// a search of a log of megabytes.
    runs: Vec<u64>,
}

/// The number of bits of [`Pasted::runs`], a power of two.
const RUNS: usize = 1 << 20;

/// The bit of a run of four bytes.
fn run(letters: &[u8]) -> usize {
    run_of(letters.iter().fold(0_u32, |word, letter| word << 8 | u32::from(*letter)))
}

/// The bit of a run of four bytes as one number.
fn run_of(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> 12) as usize
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Spacing {
    None,
    Blank,
    Line,
}

/// A match of a pattern. Positions are bytes, without white space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PatternMatch {
    /// The first byte.
    pub(crate) start: usize,
    /// One past the last byte.
    pub(crate) end: usize,
    /// The number of matched bytes of the pattern itself: how specific the match is.
    pub(crate) weight: usize,
    /// The word that each `{name}` matched.
    pub(crate) words: Vec<(String, String)>,
}

impl Pasted {
    pub(crate) fn new(text: &str) -> Self {
        let mut pasted = Self {
            squeezed: Vec::with_capacity(text.len()),
            written: Vec::with_capacity(text.len()),
            before: Vec::with_capacity(text.len() + 1),
            runs: vec![0; RUNS / 64],
        };
        let mut space = Spacing::Line;
        let text = uncoloured(text);
        for letter in text.split_inclusive('\n').flat_map(|line| log::message(line).chars()) {
            match letter {
                '\n' | '\r' => space = Spacing::Line,
                // Frames of rich tracebacks are at a line's edge, where they hide that the line continues.
                '\u{2500}'..='\u{257f}' => space = space.max(Spacing::Blank),
                ' ' => space = space.max(Spacing::Blank),
                '!'..='~' => {
                    let byte = plain(letter) as u8;
                    pasted.squeezed.push(byte.to_ascii_lowercase());
                    pasted.written.push(byte);
                    pasted.before.push(space);
                    space = Spacing::None;
                }
                letter if letter.is_whitespace() || letter.is_control() => {
                    space = space.max(Spacing::Blank);
                }
                letter => {
                    let mut buffer = [0; 4];
                    for byte in plain(letter).encode_utf8(&mut buffer).bytes() {
                        pasted.squeezed.push(byte.to_ascii_lowercase());
                        pasted.written.push(byte);
                        pasted.before.push(space);
                        space = Spacing::None;
                    }
                }
            }
        }
        pasted.before.push(Spacing::Line);
        let mut word = 0_u32;
        for (at, letter) in pasted.squeezed.iter().enumerate() {
            word = word << 8 | u32::from(*letter);
            if at >= 3 {
                let bit = run_of(word);
                pasted.runs[bit / 64] |= 1 << (bit % 64);
            }
        }
        pasted
    }

    /// Whether the text may contain all words of a pattern; false positives are rare.
    fn may_have(&self, pattern: &Pattern) -> bool {
        pattern.runs.iter().all(|bit| self.runs[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// The text with single spaces for white space, without a terminal's additions.
    pub(crate) fn spaced(&self) -> String {
        let mut out = Vec::with_capacity(self.written.len() * 5 / 4);
        for (letter, space) in self.written.iter().zip(&self.before) {
            if *space != Spacing::None && !out.is_empty() {
                out.push(b' ');
            }
            out.push(*letter);
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The start and end of each line, in bytes without white space; empty lines are left out.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let starts = |from: usize| {
            let rest = &self.before[from..];
            rest.iter().position(|space| *space == Spacing::Line).map(|at| from + at)
        };
        let mut from = 0;
        std::iter::from_fn(move || {
            (from < self.squeezed.len()).then_some(())?;
            let start = from;
            from = starts(start + 1).unwrap_or(self.squeezed.len());
            Some((start, from))
        })
    }

    /// The bytes of a range in lower case, without white space.
    pub(crate) fn squeezed(&self, start: usize, end: usize) -> &[u8] {
        &self.squeezed[start..end]
    }

    /// A range in its original case, with single spaces.
    pub(crate) fn written_line(&self, start: usize, end: usize) -> String {
        let mut out = Vec::with_capacity((end - start) * 5 / 4);
        for at in start..end {
            if self.before[at] != Spacing::None && at > start {
                out.push(b' ');
            }
            out.push(self.written[at]);
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The first match of a pattern that begins with words.
    pub(crate) fn find(&self, pattern: &Pattern) -> Option<PatternMatch> {
        let Some(Piece::Words(first)) = pattern.pieces.first() else { return None };
        if !self.may_have(pattern) {
            return self.cut_off(first);
        }
        let mut from = 0;
        while let Some(start) = pattern.finder.find(&self.squeezed[from..]).map(|at| from + at) {
            from = start + 1;
            if let Some(found) = self.fits_at(pattern, start, first) {
                return Some(found);
            }
        }
        self.cut_off(first)
    }

    /// Every match of a pattern in text order, at most `most`.
    pub(crate) fn find_all(&self, pattern: &Pattern, most: usize) -> Vec<PatternMatch> {
        if !self.may_have(pattern) {
            return Vec::new();
        }
        let Some(Piece::Words(first)) = pattern.pieces.first() else {
            return self.find_by_second(pattern, most);
        };
        let mut all = Vec::new();
        let mut from = 0;
        while let Some(start) = pattern.finder.find(&self.squeezed[from..]).map(|at| from + at) {
            from = start + 1;
            if let Some(found) = self.fits_at(pattern, start, first) {
                from = found.end.max(from);
                all.push(found);
            }
            if all.len() == most {
                break;
            }
        }
        all
    }

    /// Matches a pattern that begins with a `{name}`: the word directly before the words that follow it.
    fn find_by_second(&self, pattern: &Pattern, most: usize) -> Vec<PatternMatch> {
        let [Piece::Word(name), Piece::Words(words), rest @ ..] = pattern.pieces.as_slice() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let mut from = 0;
        while let Some(at) = pattern.finder.find(&self.squeezed[from..]).map(|at| from + at) {
            from = at + 1;
            let start = self.word_start(at);
            if start == at {
                continue;
            }
            let mut named = vec![(name.clone(), self.written(start, at))];
            let end = at + words.len();
            let Some(end) = self.follow(rest, end, &mut named) else { continue };
            if !pattern.open && !self.ends_word(end) {
                continue;
            }
            let weight = pattern.pieces.iter().map(Piece::weight).sum();
            all.push(PatternMatch { start, end, weight, words: named });
            if all.len() == most {
                break;
            }
        }
        all
    }

    /// The start of the word that ends before byte `end`; white space separates words.
    fn word_start(&self, end: usize) -> usize {
        let in_word = |index: usize| {
            let letter = self.squeezed[index];
            letter.is_ascii_alphanumeric() || b"_.+-/:~=<>!,".contains(&letter)
        };
        let mut start = end;
        while start > 0 && end - start < LONGEST_WORD && in_word(start - 1) {
            // White space directly before the words that follow belongs to the pattern.
            if start < end && self.before[start] != Spacing::None {
                break;
            }
            start -= 1;
        }
        start
    }

    /// The match of a pattern at one position.
    fn fits_at(&self, pattern: &Pattern, start: usize, first: &[u8]) -> Option<PatternMatch> {
        let begins = !pattern.at_line || self.before[start] == Spacing::Line;
        if !begins || !self.begins_word(start, first) {
            return None;
        }
        let mut words = Vec::new();
        let end = self.follow(&pattern.pieces[1..], start + first.len(), &mut words)?;
        let ends = !pattern.to_line || self.before[end] == Spacing::Line;
        if !ends || !pattern.open && !self.ends_word(end) {
            return None;
        }
        let weight = pattern.pieces.iter().map(Piece::weight).sum();
        Some(PatternMatch { start, end, weight, words })
    }

    /// The match of a pattern's beginning at the end of a text that was cut off. The rules differ in the ends of
    /// mangled C++ names, so a pattern with such a name does not match by its beginning.
    fn cut_off(&self, first: &[u8]) -> Option<PatternMatch> {
        if first.contains(&b'_') {
            return None;
        }
        let least = CUT_OFF.max(first.len() * 3 / 5);
        let shown = (least..first.len()).rev().find(|n| self.squeezed.ends_with(&first[..*n]))?;
        let start = self.squeezed.len() - shown;
        let end = self.squeezed.len();
        let found = PatternMatch { start, end, weight: shown, words: Vec::new() };
        self.begins_word(start, first).then_some(found)
    }

    /// Matches the remaining pieces from `at` on; returns the end.
    fn follow(
        &self,
        pieces: &[Piece],
        at: usize,
        words: &mut Vec<(String, String)>,
    ) -> Option<usize> {
        let (gap, name) = match pieces.first() {
            None => return Some(at),
            Some(Piece::Words(literal)) => {
                let fits = self.squeezed[at..].starts_with(literal);
                return if fits {
                    self.follow(&pieces[1..], at + literal.len(), words)
                } else {
                    None
                };
            }
            Some(Piece::Gap) => (REACH, None),
            Some(Piece::Word(name)) => (LONGEST_WORD, Some(name)),
        };
        let longest = match name {
            None => (at + gap).min(self.squeezed.len()),
            // Words after a name end it: it may be a requirement such as `requests>=2.32,<3` that a terminal has broken
            // into lines.
            Some(_) if pieces.len() > 1 => self.word_end(at, gap, b"_.+-/:~=<>!,", Spacing::Blank),
            Some(_) => self.word_end(at, gap, b"_.+-/:~", Spacing::Line),
        };
        let Some(Piece::Words(next)) = pieces.get(1) else {
            // A name at the pattern's end takes the whole word; a gap at the end does not match.
            let name = name.filter(|_| longest > at)?;
            words.push((name.clone(), self.written(at, longest)));
            return Some(longest);
        };
        let least = at + usize::from(name.is_some());
        let mut from = least;
        // The search ends where the next words can no longer begin: a long text would be read to its end each time.
        let limit = (longest + next.len()).min(self.squeezed.len());
        while let Some(step) =
            self.squeezed.get(from..limit).and_then(|rest| memmem::find(rest, next))
        {
            let place = from + step;
            let known = words.len();
            if let Some(name) = name {
                words.push((name.clone(), self.written(at, place)));
            }
            if let Some(end) = self.follow(&pieces[1..], place, words) {
                return Some(end);
            }
            words.truncate(known);
            from = place + 1;
        }
        None
    }

    /// The end of the word that begins at `at`: a byte that is no part of a word, or white space up to `parted_by`.
    fn word_end(&self, at: usize, most: usize, marks: &[u8], parted_by: Spacing) -> usize {
        let in_word = |index: &usize| {
            let letter = self.squeezed[*index];
            letter.is_ascii_alphanumeric() || marks.contains(&letter)
        };
        let limit = (at + most).min(self.squeezed.len());
        let apart = |index: &usize| {
            *index > at && self.before[*index] != Spacing::None && self.before[*index] <= parted_by
        };
        (at..limit)
            .take_while(|index| in_word(index) && !apart(index))
            .last()
            .map_or(at, |last| last + 1)
    }

    fn written(&self, start: usize, end: usize) -> String {
        String::from_utf8_lossy(&self.written[start..end]).into_owned()
    }

    /// Whether a match does not begin inside another word: `skilled` does not contain `Killed`.
    fn begins_word(&self, start: usize, words: &[u8]) -> bool {
        let joins = |letter: u8| letter.is_ascii_alphanumeric();
        !words.first().copied().is_some_and(joins)
            || self.before[start] != Spacing::None
            || !start.checked_sub(1).is_some_and(|before| joins(self.squeezed[before]))
    }

    fn ends_word(&self, end: usize) -> bool {
        let joins = |letter: &u8| letter.is_ascii_alphanumeric();
        let last = end.checked_sub(1).and_then(|last| self.squeezed.get(last));
        !last.is_some_and(joins)
            || self.before[end] != Spacing::None
            || !self.squeezed.get(end).is_some_and(joins)
    }
}

/// A parsed pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Whether the words begin a line.
    at_line: bool,
    /// Whether the words end a line.
    to_line: bool,
    /// Whether the last word may continue: the beginning of a mangled name is enough.
    open: bool,
    pieces: Vec<Piece>,
    /// The bits of the four-byte runs of its words.
    runs: Vec<usize>,
    /// Searches for the first words.
    finder: memmem::Finder<'static>,
}

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Self {
        let unbound = pattern.strip_prefix('^').unwrap_or(pattern);
        let words = unbound.strip_suffix('$').unwrap_or(unbound);
        let closed = words.strip_suffix('*').unwrap_or(words);
        let (to_line, open) = (words.len() < unbound.len(), closed.len() < words.len());
        let pieces = pieces(closed);
        let words = pieces.iter().find_map(|piece| match piece {
            Piece::Words(words) => Some(words.as_slice()),
            _ => None,
        });
        let finder = memmem::Finder::new(words.unwrap_or_default()).into_owned();
        let runs = pieces.iter().flat_map(|piece| match piece {
            Piece::Words(words) => words.windows(4).map(run).collect(),
            _ => Vec::new(),
        });
        let runs = runs.collect();
        Self { at_line: unbound.len() < pattern.len(), to_line, open, pieces, runs, finder }
    }
}

/// A part of a pattern.
#[derive(Debug)]
enum Piece {
    Words(Vec<u8>),
    Gap,
    Word(String),
}

impl Piece {
    fn weight(&self) -> usize {
        if let Self::Words(words) = self { words.len() } else { 0 }
    }
}

fn pieces(pattern: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = pattern;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('*') {
            pieces.push(Piece::Gap);
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
            pieces.push(Piece::Word(name.to_owned()));
            rest = after;
        } else {
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let end = rest[first..].find(['*', '{']).map_or(rest.len(), |at| at + first);
            let words = squeezed(&rest[..end]);
            if !words.is_empty() {
                pieces.push(Piece::Words(words));
            }
            rest = &rest[end..];
        }
    }
    pieces
}

/// The bytes of a pattern's words, as [`Pasted`] stores a text.
fn squeezed(words: &str) -> Vec<u8> {
    let letters = words.chars().filter(|letter| !letter.is_whitespace()).map(plain);
    letters.collect::<String>().to_ascii_lowercase().into_bytes()
}

/// A character, with all quotes made equal.
fn plain(letter: char) -> char {
    match letter {
        '\u{2018}' | '\u{2019}' | '`' | '\u{b4}' | '"' | '\u{201c}' | '\u{201d}' => '\'',
        letter => letter,
    }
}

#[cfg(test)]
mod tests;
