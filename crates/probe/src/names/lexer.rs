//! A tokenizer for Python source, grouped into logical lines, with only what the statement parser needs: operators keep
//! their text, and a string is one token. Most of a file is bodies of functions, which an import does not run:
//! [`outline`] skips them.

mod bodies;

use bodies::Bodies;
use std::cell::Cell;

/// A piece of a logical line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    start: u32,
    end: u32,
    /// Line, counted from 1.
    pub(super) line: u32,
}

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier or a keyword.
    Name,
    Number,
    /// A string literal with its prefix and quotes.
    Text,
    /// An operator or delimiter of up to three characters.
    Operator,
}

/// One logical line: its tokens, and its indentation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) indent: u32,
    first: u32,
    last: u32,
}

/// The tokens of one file.
pub(super) struct Lines<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    pub(super) lines: Vec<Line>,
    /// Whether the file has none of the words that `dynamic::scan` looks for.
    pub(super) plain: bool,
}

thread_local! {
    /// The memory of tokens, which thousands of files use one after the other.
    static TOKENS: Cell<Vec<Token>> = const { Cell::new(Vec::new()) };
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.clear();
        TOKENS.set(tokens);
    }
}

impl<'a> Lines<'a> {
    pub(super) fn of(&self, line: Line) -> &[Token] {
        &self.tokens[line.first as usize..line.last as usize]
    }

    pub(super) fn text(&self, token: &Token) -> &'a str {
        &self.text[token.start as usize..token.end as usize]
    }

    /// Change of the bracket depth by a token.
    pub(super) fn nesting(&self, token: &Token) -> i32 {
        if token.kind != Kind::Operator || token.end - token.start != 1 {
            return 0;
        }
        match self.text.as_bytes()[token.start as usize] {
            b'(' | b'[' | b'{' => 1,
            b')' | b']' | b'}' => -1,
            _ => 0,
        }
    }

    /// Every token of the file.
    pub(super) fn all(&self) -> &[Token] {
        &self.tokens
    }
}

/// Splits a file; an invalid file gives some lines, and never a panic.
pub(super) fn lex(text: &str) -> Lines<'_> {
    let mut lexer = Lexer::new(text);
    lexer.tokens.reserve(text.len() / 6);
    let mut lines = Vec::new();
    while lexer.at < lexer.bytes.len() {
        lines.extend(lexer.next_line());
    }
    Lines { text, tokens: lexer.tokens, lines, plain: false }
}

/// Splits a file like [`lex`], without the bodies of functions that cannot change a name of the module.
pub(super) fn outline(text: &str) -> Lines<'_> {
    let mut lexer = Lexer::new(text);
    lexer.tokens = TOKENS.take();
    let bodies = Bodies::new(text);
    let mut lines = Vec::new();
    // The end of a body that was kept.
    let mut kept = 0;
    while lexer.at < lexer.bytes.len() {
        let Some(line) = lexer.next_line() else { continue };
        lines.push(line);
        let header = &lexer.tokens[line.first as usize..line.last as usize];
        if lexer.at < kept || !Bodies::can_skip(text, header) {
            continue;
        }
        let start = (lexer.at, lexer.line);
        lexer.skip_block(line.indent);
        if bodies.have_effects(start.0..lexer.at) {
            kept = lexer.at;
            (lexer.at, lexer.line) = start;
        }
    }
    Lines { text, tokens: lexer.tokens, lines, plain: bodies.are_plain() }
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u32,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Self {
        let at = if text.starts_with('\u{feff}') { 3 } else { 0 };
        Self { bytes: text.as_bytes(), at, line: 1, tokens: Vec::new() }
    }

    /// Reads one logical line; `None` if it has no tokens.
    fn next_line(&mut self) -> Option<Line> {
        let indent = self.indentation();
        let first = self.tokens.len();
        self.logical_line();
        let last = self.tokens.len();
        (last > first).then_some(Line { indent, first: first as u32, last: last as u32 })
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Measures indentation: a tab advances to the next multiple of 8, a form feed resets it.
    fn indentation(&mut self) -> u32 {
        let mut indent = 0;
        loop {
            match self.peek(0) {
                b' ' => indent += 1,
                b'\t' => indent = (indent / 8 + 1) * 8,
                b'\x0c' => indent = 0,
                _ => return indent,
            }
            self.at += 1;
        }
    }

    fn logical_line(&mut self) {
        let mut depth = 0_u32;
        while self.at < self.bytes.len() {
            let byte = self.bytes[self.at];
            match byte {
                b'\n' | b'\r' => {
                    self.newline();
                    if depth == 0 {
                        return;
                    }
                }
                b' ' | b'\t' | b'\x0c' => self.at += 1,
                b'#' => self.comment(),
                b'\\' if matches!(self.peek(1), b'\n' | b'\r') => {
                    self.at += 1;
                    self.newline();
                }
                b'"' | b'\'' => self.string(self.at),
                b'0'..=b'9' => self.number(),
                b'.' if self.peek(1).is_ascii_digit() => self.number(),
                _ if is_name(byte) => self.name(),
                _ => {
                    match byte {
                        b'(' | b'[' | b'{' => depth += 1,
                        b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    self.operator();
                }
            }
        }
    }

    /// Skips a comment up to the end of its line.
    fn comment(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
    }

    /// Skips one line end of any system.
    fn newline(&mut self) {
        self.at += if self.bytes[self.at..].starts_with(b"\r\n") { 2 } else { 1 };
        self.line += 1;
    }

    fn push(&mut self, kind: Kind, start: usize, line: u32) {
        let (start, end) = (start as u32, self.at as u32);
        self.tokens.push(Token { kind, start, end, line });
    }

    fn name(&mut self) {
        let start = self.at;
        let rest = &self.bytes[start..];
        self.at += rest.iter().position(|byte| !is_in_name(*byte)).unwrap_or(rest.len());
        let quote = matches!(self.peek(0), b'"' | b'\'');
        if quote && is_string_prefix(&self.bytes[start..self.at]) {
            self.string(start);
        } else {
            self.push(Kind::Name, start, self.line);
        }
    }

    fn number(&mut self) {
        let start = self.at;
        loop {
            let exponent = matches!(self.bytes[self.at.saturating_sub(1)], b'e' | b'E')
                && !self.bytes[start..].starts_with(b"0x")
                && !self.bytes[start..].starts_with(b"0X");
            match self.peek(0) {
                b'+' | b'-' if exponent && self.at > start => self.at += 1,
                byte if byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' => {
                    self.at += 1;
                }
                _ => break,
            }
        }
        self.push(Kind::Number, start, self.line);
    }

    fn operator(&mut self) {
        const LONG: [&[u8]; 25] = [
            b"**=", b"//=", b">>=", b"<<=", b"...", b"**", b"//", b">>", b"<<", b"<=", b">=",
            b"==", b"!=", b"->", b"+=", b"-=", b"*=", b"/=", b"%=", b"&=", b"|=", b"^=", b"@=",
            b":=", b"<>",
        ];
        let start = self.at;
        let rest = &self.bytes[start..];
        let long = || LONG.iter().find(|long| rest.starts_with(long)).map(|long| long.len());
        self.at += match self.peek(1) {
            b'=' | b'*' | b'/' | b'>' | b'<' | b'.' => long().unwrap_or(1),
            _ => 1,
        };
        // An unknown character ends at the next UTF-8 boundary.
        while self.at < self.bytes.len() && self.bytes[self.at] & 0xc0 == 0x80 {
            self.at += 1;
        }
        self.push(Kind::Operator, start, self.line);
    }

    /// Reads a string literal that starts at `start`, with `at` on its first quote.
    fn string(&mut self, start: usize) {
        let line = self.line;
        self.skip_prefixed(start);
        self.push(Kind::Text, start, line);
    }

    /// Skips a string literal that starts at `start`, with `at` on its first quote.
    fn skip_prefixed(&mut self, start: usize) {
        let prefix = &self.bytes[start..self.at];
        let has = |letters: &[u8]| prefix.iter().any(|byte| letters.contains(byte));
        let (formatted, raw) = (has(b"fFtT"), has(b"rR"));
        self.skip_string(formatted, raw);
    }

    fn skip_string(&mut self, formatted: bool, raw: bool) {
        let quote = self.bytes[self.at];
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        let width = if triple { 3 } else { 1 };
        self.at += width;
        while self.at < self.bytes.len() {
            if !formatted {
                // A lone carriage return ends a line too, and only then one that a newline does not end.
                let rest = &self.bytes[self.at..];
                let next = memchr::memchr3(quote, b'\\', b'\n', rest).unwrap_or(rest.len());
                let line_end = memchr::memchr(b'\r', &rest[..next]);
                self.at += line_end.unwrap_or(next);
                if self.at == self.bytes.len() {
                    break;
                }
            }
            let byte = self.bytes[self.at];
            if byte == quote && (!triple || (self.peek(1) == quote && self.peek(2) == quote)) {
                self.at += width;
                return;
            }
            match byte {
                b'\n' | b'\r' => {
                    if !triple {
                        return;
                    }
                    self.newline();
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek(0) {
                        b'\n' | b'\r' => self.newline(),
                        b'N' if formatted && !raw && self.peek(1) == b'{' => {
                            let rest = &self.bytes[self.at..];
                            self.at += memchr::memchr(b'}', rest).map_or(rest.len(), |end| end + 1);
                        }
                        b'{' | b'}' if formatted => {}
                        _ => self.at += 1,
                    }
                }
                b'{' if formatted && self.peek(1) == b'{' => self.at += 2,
                b'{' if formatted => {
                    self.at += 1;
                    self.replacement_field(quote, triple, raw);
                }
                _ => self.at += 1,
            }
        }
        self.at = self.bytes.len();
    }

    /// Skips the expression of an f-string with its format, up to the closing brace.
    fn replacement_field(&mut self, quote: u8, triple: bool, raw: bool) {
        let mut depth = 0_u32;
        while self.at < self.bytes.len() {
            match self.bytes[self.at] {
                b'}' if depth == 0 => {
                    self.at += 1;
                    return;
                }
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                b':' if depth == 0 => {
                    self.at += 1;
                    return self.format_spec(quote, triple, raw);
                }
                b'#' if triple => {
                    self.comment();
                    continue;
                }
                b'"' | b'\'' => {
                    let prefix = self.bytes[..self.at]
                        .iter()
                        .rev()
                        .take(2)
                        .take_while(|byte| b"rRbBuUfFtT".contains(byte));
                    let prefix: Vec<u8> = prefix.copied().collect();
                    let has = |letters: &[u8]| prefix.iter().any(|byte| letters.contains(byte));
                    self.skip_string(has(b"fFtT"), has(b"rR"));
                    continue;
                }
                b'\n' | b'\r' => {
                    self.newline();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn format_spec(&mut self, quote: u8, triple: bool, raw: bool) {
        while self.at < self.bytes.len() {
            let byte = self.bytes[self.at];
            match byte {
                b'}' => {
                    self.at += 1;
                    return;
                }
                b'{' => {
                    self.at += 1;
                    self.replacement_field(quote, triple, raw);
                    continue;
                }
                // A string that ends here was not closed.
                _ if byte == quote
                    && (!triple || (self.peek(1) == quote && self.peek(2) == quote)) =>
                {
                    return;
                }
                b'\n' | b'\r' => {
                    self.newline();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_in_name(byte: u8) -> bool {
    is_name(byte) || byte.is_ascii_digit()
}

/// Whether a name before a quote is the prefix of a string literal.
fn is_string_prefix(name: &[u8]) -> bool {
    name.len() <= 2 && name.iter().all(|byte| b"rRbBuUfFtT".contains(byte))
}
