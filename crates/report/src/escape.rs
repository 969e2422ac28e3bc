//! Escapes untrusted text (package names, paths, error messages) for HTML, Markdown and terminals.

/// Text for an HTML element or a quoted attribute. Control characters, which HTML does not allow, are shown as U+FFFD.
pub(crate) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// Text in a Markdown line. Line breaks become spaces, because a table cell or a heading is one line.
///
/// An underscore between two alphanumeric characters is not escaped, because GitHub's Markdown does not read it as
/// emphasis and `avx512_bf16` should stay readable in the source.
pub(crate) fn markdown(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    for (i, &letter) in letters.iter().enumerate() {
        let word = |at: Option<usize>| {
            at.and_then(|at| letters.get(at)).is_some_and(|other| other.is_alphanumeric())
        };
        match letter {
            '_' if word(i.checked_sub(1)) && word(Some(i + 1)) => out.push('_'),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '~' | '&' | '#' => {
                out.push('\\');
                out.push(letter);
            }
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// A Markdown code span: its fence is longer than any run of backticks inside. Pipes are escaped, because table rows
/// are split at pipes before code spans are parsed.
pub(crate) fn markdown_code(text: &str) -> String {
    let text: String =
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let text = text.replace('|', "\\|");
    let fence = "`".repeat(longest_run(&text, '`') + 1);
    let pad =
        if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// Length of the longest run of `wanted`.
pub(crate) fn longest_run(text: &str, wanted: char) -> usize {
    let (mut longest, mut here) = (0, 0);
    for letter in text.chars() {
        here = if letter == wanted { here + 1 } else { 0 };
        longest = longest.max(here);
    }
    longest
}

/// A path in the run folder as a relative reference: bytes other than RFC 3986's unreserved characters and `/` are
/// percent-encoded, so that no file name can become a scheme, a query or markup. A path that leaves the folder is
/// changed to one inside it.
pub(crate) fn href(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for part in path.split('/').filter(|part| !matches!(*part, "" | "." | "..")) {
        if !out.is_empty() {
            out.push('/');
        }
        for byte in part.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                    out.push(byte as char)
                }
                byte => out.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    out
}

/// A URL that may be linked: http or https, without characters that could end the link early.
pub(crate) fn web(address: &str) -> Option<&str> {
    let safe = address.starts_with("https://") || address.starts_with("http://");
    let clean = !address.chars().any(|letter| {
        letter.is_whitespace()
            || letter.is_control()
            || matches!(letter, '<' | '>' | '"' | '\\' | '`')
    });
    (safe && clean).then_some(address)
}

/// Text for a terminal: control characters are shown as escapes, so that untrusted text cannot move the cursor.
pub(crate) fn terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => out.push(' '),
            letter if letter.is_control() => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_format_escapes_its_special_characters() {
        let check = |escape: fn(&str) -> String, cases: &[(&str, &str)]| {
            for (input, expect) in cases {
                assert_eq!(escape(input), *expect, "{input:?}");
            }
        };
        check(
            super::html,
            &[
                ("<script>alert('x')</script>", "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"),
                ("a & b \"c\"", "a &amp; b &quot;c&quot;"),
                ("a\u{1b}[31mb\0", "a\u{fffd}[31mb\u{fffd}"),
            ],
        );
        check(
            super::markdown,
            &[
                ("a|b", "a\\|b"),
                ("avx512_bf16 _x_", "avx512_bf16 \\_x\\_"),
                ("<img> [x](y) `z` *w*", "\\<img\\> \\[x\\](y) \\`z\\` \\*w\\*"),
                ("two\nlines", "two lines"),
            ],
        );
        check(
            super::markdown_code,
            &[("x", "`x`"), ("a|b", "`a\\|b`"), ("a`b", "``a`b``"), ("`a", "`` `a ``")],
        );
        check(
            super::href,
            &[
                ("logs/verify.log", "logs/verify.log"),
                ("javascript:alert(1)", "javascript%3Aalert%281%29"),
                ("../../etc/passwd", "etc/passwd"),
                ("//host/x", "host/x"),
                ("a b\"c?d#e", "a%20b%22c%3Fd%23e"),
            ],
        );
        check(super::terminal, &[("a\u{1b}[31mb\nc", "a\\u{1b}[31mb c")]);
    }

    #[test]
    fn only_valid_web_addresses_become_links() {
        let check =
            |address, expect| assert_eq!(super::web(address).is_some(), expect, "{address}");
        check("https://github.com/pytorch/pytorch/issues/1", true);
        check("http://example.org", true);
        check("javascript:alert(1)", false);
        check("https://example.org/\"onclick=x", false);
        check("https://example.org/a b", false);
        check("file:///etc/passwd", false);
    }
}
