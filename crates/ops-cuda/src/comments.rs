//! Strips comments from CUDA sources for `build.rs`; the program embeds, hashes and compiles the result.

/// The text without comments and trailing spaces. Line numbers are unchanged, so that compiler messages stay correct.
pub(crate) fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' if kept.ends_with(|letter: char| letter.is_ascii_digit()) => 1, // A digit separator.
            '"' | '\'' => literal(rest, first),
            '/' if rest.starts_with("//") => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '/' if rest.starts_with("/*") => {
                let end = rest[2..].find("*/").map_or(rest.len(), |end| end + 4);
                let lines = rest[..end].matches('\n').count();
                // A comment separates tokens.
                kept.push(' ');
                kept.extend(std::iter::repeat_n('\n', lines));
                rest = &rest[end..];
                continue;
            }
            '\n' => {
                kept.truncate(kept.trim_end_matches([' ', '\t']).len());
                1
            }
            other => other.len_utf8(),
        };
        let (copied, next) = rest.split_at(length);
        kept.push_str(copied);
        rest = next;
    }
    kept
}

/// Length in bytes of the literal at the start of the text; 1 for a quote without a closing quote on its line.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' if !escaped => break,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return at + 1,
            _ => {}
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_comments_and_keeps_literals_and_lines() {
        for (text, expect) in [
            ("int a; // b\nint c;\n", "int a;\nint c;\n"),
            ("int/* a\n b */c;", "int \nc;"),
            ("/// Docs.\n\nvoid f();", "\n\nvoid f();"),
            ("asm(\"// not one /* */ \\\" //\"); // one", "asm(\"// not one /* */ \\\" //\"); "),
            ("char c = '\"'; // \"", "char c = '\"'; "),
            ("int million = 1'000'000; // a", "int million = 1'000'000; "),
            ("int odd = 1'000; // it's", "int odd = 1'000; "),
            ("a / b * c", "a / b * c"),
            ("a; /* open", "a;  "),
            ("/**/ / /*/ x */ y", "  /   y"),
        ] {
            assert_eq!(without_comments(text), expect, "{text}");
        }
    }
}
