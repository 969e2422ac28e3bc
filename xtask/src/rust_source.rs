//! Rust code for the checks, without comments and strings, and without tests.

/// Replaces every comment and string by spaces. Lines and columns stay the same, so that a match in the result has the
/// position of the original.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => block_comment_end(&chars, at),
            '"' => string_end(&chars, at),
            'r' if !follows_word(&chars, at) => raw_string_end(&chars, at),
            // In `br"..."` and `cr"..."` a letter precedes the `r`.
            'b' | 'c' if !follows_word(&chars, at) && chars.get(at + 1) == Some(&'r') => {
                // If the end does not advance, it is a name such as `cross` or `break`.
                Some(raw_string_end(&chars, at + 1)).filter(|&end| end > at + 1).unwrap_or(at)
            }
            '\'' => char_end(&chars, at),
            _ => at,
        };
        if end > at {
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// [`code_only`] without the items under `#[cfg(test)]`.
pub(crate) fn code_without_tests(text: &str) -> String {
    let mut code: Vec<char> = code_only(text).chars().collect();
    let marker: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut at = 0;
    while at + marker.len() <= code.len() {
        if code[at..at + marker.len()] != marker[..] {
            at += 1;
            continue;
        }
        let end = item_end(&code, at + marker.len());
        for c in &mut code[at..end] {
            if *c != '\n' {
                *c = ' ';
            }
        }
        at = end;
    }
    code.into_iter().collect()
}

/// Whether a file is a test or an example, by its path.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/examples/") || path.ends_with("/tests.rs")
}

/// Line numbers, from 1, of the lines that contain `word` as a whole word.
pub(crate) fn find_word(code: &str, word: &str) -> Vec<usize> {
    // `rules::` may precede a name: only a word that ends in a letter needs a boundary after it.
    let ends_in_word = word.chars().next_back().is_some_and(is_word);
    let mut lines = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let found = line.match_indices(word).any(|(start, _)| {
            let before = line[..start].chars().next_back();
            let after = line[start + word.len()..].chars().next();
            let joined = before.is_some_and(is_word) || ends_in_word && after.is_some_and(is_word);
            !joined
        });
        if found {
            lines.push(index + 1);
        }
    }
    lines
}

/// A path of two or more names, with its line number from 1: `crate::op::Key`. A `use` of several gives one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsedPath {
    pub(crate) line: usize,
    pub(crate) names: Vec<String>,
}

/// The paths that code without comments and strings names.
pub(crate) fn used_paths(code: &str) -> Vec<UsedPath> {
    let mut tokens = Tokens { all: tokens(code), at: 0 };
    let mut paths = Vec::new();
    while let Some((line, token)) = tokens.next() {
        if token == "use" {
            tree(&mut tokens, &[], &mut paths);
        } else if is_name(&token) {
            let mut names = vec![token];
            while let Some(name) = tokens.name_after_colons() {
                names.push(name);
            }
            paths.push(UsedPath { line, names });
        }
    }
    paths.retain(|path| path.names.len() > 1);
    paths
}

/// Names, `::` and single signs, each with its line.
struct Tokens {
    all: Vec<(usize, String)>,
    at: usize,
}

impl Tokens {
    fn next(&mut self) -> Option<(usize, String)> {
        self.at += 1;
        self.all.get(self.at - 1).cloned()
    }

    fn is(&self, token: &str) -> bool {
        self.all.get(self.at).is_some_and(|(_, here)| here == token)
    }

    /// The name after `::`, if these come next.
    fn name_after_colons(&mut self) -> Option<String> {
        let (_, name) = self.all.get(self.at + 1).filter(|_| self.is("::"))?;
        let name = is_name(name).then(|| name.clone())?;
        self.at += 2;
        Some(name)
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn tokens(code: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            // `$crate` is the crate.
            if first != '$' {
                all.push((index + 1, rest[..length].to_owned()));
            }
            rest = rest[length..].trim_start();
        }
    }
    all
}

/// Reads the tree of a `use` from its current token on, which begins with the names of `prefix`.
fn tree(tokens: &mut Tokens, prefix: &[String], into: &mut Vec<UsedPath>) {
    let mut names = prefix.to_vec();
    while let Some((line, token)) = tokens.next() {
        match token.as_str() {
            "::" => {}
            "{" => {
                while !tokens.is("}") && tokens.at < tokens.all.len() {
                    tree(tokens, &names, into);
                    if tokens.is(",") {
                        tokens.at += 1;
                    }
                }
                tokens.at += 1;
                return;
            }
            "as" => tokens.at += 1,
            "self" if !names.is_empty() => {}
            _ if is_name(&token) => names.push(token),
            // A glob is a path to what it takes from.
            _ => {}
        }
        if tokens.is(",") || tokens.is("}") || tokens.is(";") {
            into.push(UsedPath { line, names });
            return;
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |length| at + length)
}

/// Block comments nest in Rust.
fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of `r"..."` or `r#"..."#`, or `at` where an `r` only begins a name.
fn raw_string_end(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let mut close = open + 1;
    while close < chars.len() {
        let ends = chars[close] == '"'
            && chars.len() > close + hashes
            && chars[close + 1..=close + hashes].iter().all(|&c| c == '#');
        if ends {
            return close + hashes + 1;
        }
        close += 1;
    }
    chars.len()
}

/// The end of a character literal, or `at` where the quote begins a lifetime.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => {
            // The escaped character itself may be a quote; after it comes the closing one.
            let rest = &chars[at + 3..];
            rest.iter().position(|&c| c == '\'').map_or(chars.len(), |length| at + 4 + length)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// The end of the item after an attribute: its `;`, or the brace that closes its first one.
fn item_end(code: &[char], start: usize) -> usize {
    let mut depth = 0;
    for (index, c) in code.iter().enumerate().skip(start) {
        match c {
            ';' if depth == 0 => return index + 1,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth <= 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        for (text, expect) in [
            ("a // todo\nb", "a        \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            ("f(\"x\\\"y\") + 1", "f(      ) + 1"),
            ("r#\"a\"b\"# + r", "         + r"),
            ("br\"a\\\" + b", "       + b"),
            ("let c = '\"'; d", "let c =    ; d"),
            ("let c = '\\''; d", "let c =     ; d"),
            ("let c = '\\u{1F}'; d", "let c =         ; d"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("for r in rows", "for r in rows"),
            ("mod cross; break", "mod cross; break"),
            ("\"a\nb\" c", "  \n   c"),
        ] {
            assert_eq!(code_only(text), expect, "{text}");
        }
    }

    #[test]
    fn tests_are_blanked_and_later_items_stay() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { \"}\" }\n}\nfn c() {}\n#[cfg(test)]\nmod t;\nfn d() {}";
        let code = code_without_tests(text);
        let kept: Vec<&str> = code.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(kept, ["fn a() {}", "fn c() {}", "fn d() {}"]);
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn paths_are_read_from_trees_and_expressions() {
        let code = "use crate::{op::{self, Key as K}, Tensor};\npub(crate) use super::call::*;\nfn f() {\n    $crate::a::b::<u8>(c::D)\n}\n";
        let paths: Vec<String> = used_paths(code)
            .iter()
            .map(|path| format!("{}:{}", path.line, path.names.join("::")))
            .collect();
        let expect = [
            "1:crate::op",
            "1:crate::op::Key",
            "1:crate::Tensor",
            "2:super::call",
            "4:crate::a::b",
            "4:c::D",
        ];
        assert_eq!(paths, expect);
    }

    #[test]
    fn words_are_whole_words() {
        assert_eq!(find_word("unsafe_code\nx unsafe {\n", "unsafe"), [2]);
        assert_eq!(find_word("a::todo!()\nmytodo!()\n", "todo!"), [1]);
    }
}
