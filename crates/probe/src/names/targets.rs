//! Names that statements bind, and attributes that expressions read.

use super::lexer::{Kind, Lines, Token};
use super::module::{Alias, Call, Statement};
use std::collections::HashMap;

/// The target of an assignment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BoundTarget<'a> {
    /// A name of the module.
    Name(&'a str),
    /// An attribute of another object.
    Attribute(&'a str),
}

/// Words that cannot be names or targets.
const KEYWORDS: [&str; 14] = [
    "and", "await", "else", "for", "from", "if", "in", "is", "lambda", "not", "or", "yield",
    "async", "as",
];

/// The targets of an assignment. Returns the start of an annotated assignment's value.
pub(super) fn of_assignment<'a>(
    lines: &Lines<'a>,
    tokens: &[Token],
    bound: &mut Vec<BoundTarget<'a>>,
) -> Option<usize> {
    let (mut depth, mut lambdas) = (0_i32, 0_u32);
    let mut start = 0;
    for (index, token) in tokens.iter().enumerate() {
        let text = lines.text(token);
        depth += lines.nesting(token);
        if depth != 0 {
            continue;
        }
        match text {
            "lambda" => lambdas += 1,
            ":" if lambdas > 0 => lambdas -= 1,
            // Defaults of a lambda's parameters.
            "=" if lambdas > 0 => {}
            ":" if start == 0 => {
                let Some(equal) = outer(lines, &tokens[index..], "=") else {
                    // Without a value, no name is bound.
                    return Some(tokens.len());
                };
                target(lines, &tokens[..index], bound);
                return Some(index + equal + 1);
            }
            "=" => {
                target(lines, &tokens[start..index], bound);
                start = index + 1;
            }
            "+=" | "-=" | "*=" | "/=" | "//=" | "%=" | "**=" | ">>=" | "<<=" | "&=" | "^="
            | "|=" | "@=" => {
                target(lines, &tokens[start..index], bound);
                return None;
            }
            _ => {}
        }
    }
    None
}

/// The index of a token outside of brackets.
fn outer(lines: &Lines<'_>, tokens: &[Token], wanted: &str) -> Option<usize> {
    let mut depth = 0_i32;
    tokens.iter().position(|token| {
        depth += lines.nesting(token);
        depth == 0 && lines.text(token) == wanted
    })
}

/// The targets of `for .. in`.
pub(super) fn of_for<'a>(lines: &Lines<'a>, head: &[Token], bound: &mut Vec<BoundTarget<'a>>) {
    let end = outer(lines, head, "in").unwrap_or(0);
    target(lines, &head[..end], bound);
}

/// The targets of `with .. as`.
pub(super) fn of_with<'a>(lines: &Lines<'a>, head: &[Token], bound: &mut Vec<BoundTarget<'a>>) {
    for (index, _) in head.iter().enumerate().filter(|(_, token)| lines.text(token) == "as") {
        let mut depth = 0_i32;
        let rest = &head[index + 1..];
        let end = rest.iter().position(|token| {
            depth += lines.nesting(token);
            depth < 0 || (depth == 0 && lines.text(token) == ",")
        });
        target(lines, &rest[..end.unwrap_or(rest.len())], bound);
    }
}

/// One target: names, tuples and lists of targets, attributes and subscripts.
fn target<'a>(lines: &Lines<'a>, tokens: &[Token], bound: &mut Vec<BoundTarget<'a>>) {
    let text = |index: usize| tokens.get(index).map_or("", |token| lines.text(token));
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        let before = if index == 0 { "" } else { text(index - 1) };
        let after_operand = index > 0
            && (matches!(before, ")" | "]" | "}") || tokens[index - 1].kind == Kind::Name);
        let next = text(index + 1);
        match text(index) {
            "(" | "[" if after_operand => {
                let mut depth = 0_i32;
                let close = tokens[index..].iter().position(|token| {
                    depth += lines.nesting(token);
                    depth == 0
                });
                index += close.unwrap_or(tokens.len());
            }
            name if token.kind == Kind::Name && !matches!(next, "." | "(" | "[") => {
                match before {
                    // Attributes that a method sets on its object are not module attributes.
                    "." if index == 2 && matches!(text(0), "self" | "cls") => {}
                    "." => bound.push(BoundTarget::Attribute(name)),
                    _ if KEYWORDS.contains(&name) => {}
                    _ => bound.push(BoundTarget::Name(name)),
                }
            }
            _ => {}
        }
        index += 1;
    }
}

/// Names that assignment expressions bind.
pub(super) fn walrus<'a, 't>(
    lines: &'t Lines<'a>,
    tokens: &'t [Token],
) -> impl Iterator<Item = &'a str> + use<'a, 't> {
    tokens
        .windows(2)
        .filter(|pair| lines.text(&pair[1]) == ":=" && pair[0].kind == Kind::Name)
        .map(|pair| lines.text(&pair[0]))
}

/// Names that a `case` pattern may bind.
pub(super) fn captures<'a, 't>(
    lines: &'t Lines<'a>,
    tokens: &'t [Token],
) -> impl Iterator<Item = &'a str> + use<'a, 't> {
    let guard = tokens.iter().position(|token| lines.text(token) == "if");
    let pattern = &tokens[..guard.unwrap_or(tokens.len())];
    pattern.iter().enumerate().filter_map(move |(index, token)| {
        let next = pattern.get(index + 1).map_or("", |token| lines.text(token));
        let before = index.checked_sub(1).map_or("", |index| lines.text(&pattern[index]));
        let name = lines.text(token);
        let is_name = token.kind == Kind::Name
            && !matches!(next, "." | "(" | "=")
            && before != "."
            && !matches!(name, "as" | "_" | "None" | "True" | "False");
        is_name.then_some(name)
    })
}

/// Words after which a part of an expression may not be evaluated, or only later.
const LAZY: [&str; 7] = ["lambda", "if", "else", "and", "or", "for", "yield"];

/// `a.b.c` in an expression that is completely evaluated, for each imported `a`, and keyword arguments of calls of
/// imported functions.
pub(super) fn uses(
    lines: &Lines<'_>,
    tokens: &[Token],
    imported: &HashMap<Box<str>, Alias>,
    body: &mut Vec<Statement>,
) {
    let lazy = |token: &Token| token.kind == Kind::Name && LAZY.contains(&lines.text(token));
    if tokens.iter().any(lazy) {
        return;
    }
    let text = |index: usize| tokens.get(index).map_or("", |token| lines.text(token));
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        let before = if index == 0 { "" } else { text(index - 1) };
        if token.kind != Kind::Name || before == "." {
            index += 1;
            continue;
        }
        let mut end = index + 1;
        // A name that is imported later in the file is not yet bound.
        if !imported.contains_key(text(index)) {
            while text(end) == "." && tokens.get(end + 1).is_some_and(|it| it.kind == Kind::Name) {
                end += 2;
            }
            index = end;
            continue;
        }
        let mut chain = vec![Box::from(text(index))];
        while text(end) == "." && tokens.get(end + 1).is_some_and(|it| it.kind == Kind::Name) {
            chain.push(Box::from(text(end + 1)));
            end += 2;
        }
        // A target is set and not read.
        let is_set = matches!(text(end), "=" | ":=");
        if is_set {
            chain.pop();
        }
        let called = text(end) == "(";
        let keywords = if called { keywords(lines, &tokens[end..]) } else { Vec::new() };
        if chain.len() > 1 {
            body.push(Statement::Attribute(token.line, chain.clone()));
        }
        if !keywords.is_empty() {
            body.push(Statement::Call(Call { line: token.line, chain, keywords }));
        }
        index = end;
    }
}

/// The names of keyword arguments, from the parenthesis that opens a call.
fn keywords(lines: &Lines<'_>, tokens: &[Token]) -> Vec<Box<str>> {
    let mut depth = 0_i32;
    let mut found = Vec::new();
    for three in tokens.windows(3) {
        depth += lines.nesting(&three[0]);
        if depth == 0 {
            break;
        }
        let begins = depth == 1 && matches!(lines.text(&three[0]), "(" | ",");
        if begins && three[1].kind == Kind::Name && lines.text(&three[2]) == "=" {
            found.push(lines.text(&three[1]).into());
        }
    }
    found
}
