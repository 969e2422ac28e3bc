//! Conditions that are constant for one Python: `TYPE_CHECKING`, `sys.version_info`, `sys.platform`.

use super::lexer::{Kind, Lines, Token};
use super::module::Python;
use std::cmp::Ordering;

/// The value of a condition; `None` if it depends on the program.
pub(super) fn value(lines: &Lines<'_>, tokens: &[Token], python: Python) -> Option<bool> {
    Conditions { lines, python }.any(tokens)
}

struct Conditions<'a> {
    lines: &'a Lines<'a>,
    python: Python,
}

impl<'a> Conditions<'a> {
    fn text(&self, token: &Token) -> &'a str {
        self.lines.text(token)
    }

    /// `a or b`.
    fn any(&self, tokens: &[Token]) -> Option<bool> {
        let parts: Vec<_> = self.split(tokens, "or").iter().map(|part| self.all(part)).collect();
        match parts.contains(&Some(true)) {
            true => Some(true),
            false => parts.iter().all(|part| *part == Some(false)).then_some(false),
        }
    }

    /// `a and b`.
    fn all(&self, tokens: &[Token]) -> Option<bool> {
        let parts: Vec<_> = self.split(tokens, "and").iter().map(|part| self.not(part)).collect();
        match parts.contains(&Some(false)) {
            true => Some(false),
            false => parts.iter().all(|part| *part == Some(true)).then_some(true),
        }
    }

    fn not(&self, tokens: &[Token]) -> Option<bool> {
        match tokens.split_first() {
            Some((first, rest)) if self.text(first) == "not" => self.not(rest).map(|it| !it),
            _ => self.atom(tokens),
        }
    }

    /// Tokens between those of an operator, outside of brackets.
    fn split<'t>(&self, tokens: &'t [Token], operator: &str) -> Vec<&'t [Token]> {
        let mut depth = 0_i32;
        tokens
            .split(|token| {
                depth += self.lines.nesting(token);
                depth == 0 && token.kind == Kind::Name && self.text(token) == operator
            })
            .collect()
    }

    fn atom(&self, tokens: &[Token]) -> Option<bool> {
        let words: Vec<&str> = tokens.iter().map(|token| self.text(token)).collect();
        match words.as_slice() {
            ["True" | "1" | "__debug__"] => Some(true),
            ["False" | "0" | "None"] | [.., "TYPE_CHECKING"] => Some(false),
            ["(", .., ")"] if self.closes_at_end(tokens) => self.any(&tokens[1..tokens.len() - 1]),
            ["__name__", operator @ ("==" | "!="), literal] => {
                (unquoted(literal)? == "__main__").then_some(*operator == "!=")
            }
            ["sys", ".", "platform", operator @ ("==" | "!="), literal] => {
                self.platform(operator, unquoted(literal)? == self.sys_platform())
            }
            ["sys", ".", "platform", ".", "startswith", "(", literal, ")"] => {
                Some(self.sys_platform().starts_with(unquoted(literal)?))
            }
            ["os", ".", "name", operator @ ("==" | "!="), literal] => {
                self.platform(operator, unquoted(literal)? == "posix")
            }
            ["platform", ".", "system", "(", ")", operator @ ("==" | "!="), literal] => {
                let system = if self.python.linux { "Linux" } else { "Darwin" };
                self.platform(operator, unquoted(literal)? == system)
            }
            ["sys", ".", "version_info", rest @ ..] => self.version(rest),
            _ => None,
        }
    }

    fn closes_at_end(&self, tokens: &[Token]) -> bool {
        let mut depth = 0_i32;
        for (index, token) in tokens.iter().enumerate() {
            depth += self.lines.nesting(token);
            if depth == 0 {
                return index + 1 == tokens.len();
            }
        }
        false
    }

    fn sys_platform(&self) -> &'static str {
        if self.python.linux { "linux" } else { "darwin" }
    }

    fn platform(&self, operator: &str, equal: bool) -> Option<bool> {
        Some((operator == "==") == equal)
    }

    /// `>= (3, 12)`, `[:2] == (3, 11)`, `[0] < 3`, `.major == 3`, `.minor >= 12`.
    fn version(&self, words: &[&str]) -> Option<bool> {
        let (own, rest): (Vec<u32>, &[&str]) = match words {
            ["[", "0", "]", rest @ ..] | [".", "major", rest @ ..] => {
                (vec![self.python.major], rest)
            }
            ["[", "1", "]", rest @ ..] | [".", "minor", rest @ ..] => {
                (vec![self.python.minor], rest)
            }
            ["[", ":", "2", "]", rest @ ..] => (vec![self.python.major, self.python.minor], rest),
            // Followed by the patch release, which decides if only two numbers are compared for equality.
            rest => (vec![self.python.major, self.python.minor, u32::MAX], rest),
        };
        let (operator, other) = rest.split_first()?;
        let other: Vec<u32> = match other {
            [number] => vec![number.parse().ok()?],
            ["(", numbers @ .., ")"] => numbers
                .iter()
                .filter(|word| **word != ",")
                .map(|word| word.parse().ok())
                .collect::<Option<_>>()?,
            _ => return None,
        };
        // For (3, 12, 1) and longer the patch release is not known.
        if own.len() == 3 && other.len() > 2 && other[..2] == own[..2] {
            return None;
        }
        let order = own.cmp(&other);
        Some(match *operator {
            ">=" => order != Ordering::Less,
            ">" => order == Ordering::Greater,
            "<" => order == Ordering::Less,
            "<=" => order != Ordering::Greater,
            "==" => order == Ordering::Equal,
            "!=" => order != Ordering::Equal,
            _ => return None,
        })
    }
}

/// The contents of a string literal without escapes.
pub(super) fn unquoted(literal: &str) -> Option<&str> {
    let text = literal.trim_start_matches(['r', 'R', 'b', 'B', 'u', 'U']);
    let quotes = ["\"\"\"", "'''", "\"", "'"];
    let inner = quotes.iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))?;
    (!inner.contains('\\')).then_some(inner)
}
