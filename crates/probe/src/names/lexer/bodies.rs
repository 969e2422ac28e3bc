//! Skips the bodies of functions: their bytes are only searched for words that change names of the module.

use super::{Lexer, Token, is_in_name, is_string_prefix};
use memchr::memmem::Finder;
use std::ops::Range;
use std::sync::LazyLock;

/// Words by which a function changes names of its module or attributes of other objects: `global`, and those of
/// `dynamic::scan`.
const EFFECTS: [&str; 14] = [
    "_LazyModule",
    "vars",
    "locals",
    "global",
    "globals",
    "exec",
    "execfile",
    "modules",
    "extend_path",
    "meta_path",
    "declare_namespace",
    "__path__",
    "__dict__",
    "setattr",
];

/// The places in a file at which bodies of functions have effects.
pub(super) struct Bodies<'a> {
    text: &'a [u8],
    /// Positions of words in [`EFFECTS`], sorted.
    effects: Vec<usize>,
}

impl<'a> Bodies<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        static FINDERS: LazyLock<Vec<Finder<'static>>> =
            LazyLock::new(|| EFFECTS.iter().map(|word| Finder::new(*word)).collect());
        let text = text.as_bytes();
        let is_part =
            |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(|it| is_in_name(*it));
        let mut effects = Vec::new();
        for finder in FINDERS.iter() {
            let found = finder.find_iter(text);
            effects.extend(found.filter(|at| {
                !is_part(at.checked_sub(1)) && !is_part(Some(at + finder.needle().len()))
            }));
        }
        effects.sort_unstable();
        Self { text, effects }
    }

    /// Whether no statement of the file has an effect.
    pub(super) fn are_plain(&self) -> bool {
        self.effects.is_empty()
    }

    /// Whether a line is the header of a function whose block can be skipped. The block of `__getattr__` decides which
    /// names the module has.
    pub(super) fn can_skip(text: &str, header: &[Token]) -> bool {
        let word = |token: Option<&Token>| {
            token.map_or("", |token| &text[token.start as usize..token.end as usize])
        };
        let start = usize::from(word(header.first()) == "async");
        word(header.get(start)) == "def"
            && word(header.last()) == ":"
            && word(header.get(start + 1)) != "__getattr__"
    }

    /// Whether a body changes names, or compares versions and raises, as `guards::in_function` finds.
    pub(super) fn have_effects(&self, body: Range<usize>) -> bool {
        static GUARDS: LazyLock<[Finder<'static>; 3]> =
            LazyLock::new(|| ["!=", "import", "raise"].map(Finder::new));
        let next = self.effects.partition_point(|at| *at < body.start);
        self.effects.get(next).is_some_and(|at| *at < body.end)
            || GUARDS.iter().all(|word| word.find(&self.text[body.clone()]).is_some())
    }
}

/// Bytes that decide where a logical line ends.
static STOPS: [bool; 256] = {
    let mut stops = [false; 256];
    let bytes = b"\n\r#\\\"'([{)]}";
    let mut index = 0;
    while index < bytes.len() {
        stops[bytes[index] as usize] = true;
        index += 1;
    }
    stops
};

impl Lexer<'_> {
    /// Skips the logical lines with more indentation than this.
    pub(super) fn skip_block(&mut self, indent: u32) {
        while self.at < self.bytes.len() {
            let start = self.at;
            let own = self.indentation();
            match self.peek(0) {
                b'\n' | b'\r' => self.newline(),
                b'#' => self.comment(),
                _ if own <= indent => {
                    self.at = start;
                    return;
                }
                _ => self.skip_logical_line(),
            }
        }
    }

    fn skip_logical_line(&mut self) {
        let mut depth = 0_u32;
        let first = self.at;
        loop {
            let rest = &self.bytes[self.at..];
            let Some(next) = rest.iter().position(|byte| STOPS[usize::from(*byte)]) else {
                self.at = self.bytes.len();
                return;
            };
            self.at += next;
            match self.bytes[self.at] {
                b'\n' | b'\r' => {
                    self.newline();
                    if depth == 0 {
                        return;
                    }
                }
                b'#' => self.comment(),
                b'\\' => {
                    self.at += 1;
                    if matches!(self.peek(0), b'\n' | b'\r') {
                        self.newline();
                    }
                }
                b'"' | b'\'' => self.skip_prefixed(self.string_start(first)),
                b'(' | b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                _ => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
            }
        }
    }

    /// The start of a string literal's prefix, with `at` on its first quote and in a line that starts at `first`.
    fn string_start(&self, first: usize) -> usize {
        let before = &self.bytes[first..self.at];
        let letters = before.iter().rev().take(3).take_while(|byte| is_in_name(**byte)).count();
        let start = self.at - letters;
        if is_string_prefix(&self.bytes[start..self.at]) { start } else { self.at }
    }
}
