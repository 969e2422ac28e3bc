use super::{Also, Rule, Text};
use crate::remedy::quote;
pub(super) const RULE: Rule = Rule {
    id: "kernel-syntax-error",
    title: "a syntax error in a Python module",
    about: "\
Python rejects a whole module because of one syntax error, at its first import: a test run that imports it late fails
late, and a package that catches the error around the import continues without its kernels. Usual causes are a missing
`except` after `try`, an unclosed bracket or a half-resolved merge.

It shows as
  File \"nsa/kernels.py\", line 212
  SyntaxError: expected 'except' or 'finally' block

The lines above it name the file and the line; no code of the module has run.

Compile every module before any test runs: `python -m compileall -q` reports each file and line and imports nothing.",
    links: &[
        "https://docs.python.org/3/library/compileall.html",
    ],
    texts: &[
        Text::new("SyntaxError: expected 'except' or 'finally' block", "  File \"nsa/kernels/triton_sel.py\", line 212
    return out
SyntaxError: expected 'except' or 'finally' block"),
        Text::new("SyntaxError: invalid syntax", "  File \"nsa/core.py\", line 40
    <<<<<<< HEAD
    ^^
SyntaxError: invalid syntax"),
        Text::new("IndentationError: unexpected indent", "  File \"nsa/core.py\", line 41
    x = 1
IndentationError: unexpected indent"),
        Text::new("IndentationError: expected an indented block", "  File \"nsa/core.py\", line 42
IndentationError: expected an indented block after 'try' statement on line 41"),
        Text::new("SyntaxError: '*' was never closed", "  File \"nsa/core.py\", line 42
    out = f(
SyntaxError: '(' was never closed"),
    ],
    also: &[
        Also {
            cause: "The running Python is older than the package's syntax (`match`, `:=`, f-strings of 3.12).",
            check: &["python --version; # Requires-Python on the package's page"],
        },
    ],
    remedy: |seen| {
        let python = seen.installer().python();
        match place(seen.text) {
            Some((file, line)) => vec![
                format!("# {file}, line {line}:"),
                format!("{python} -m py_compile {}", quote(file)),
                format!("{python} -m compileall -q ."),
            ],
            None => vec![format!("{python} -m compileall -q .")],
        }
    },
    ..Rule::BLANK
};

/// The last file and line that the traceback names before the error.
fn place(text: &str) -> Option<(&str, u32)> {
    // `seen.text` has only single quotes.
    let before = &text[..text.find("SyntaxError:").or_else(|| text.find("IndentationError:"))?];
    let (_, last) = before.rsplit_once("File '")?;
    let (file, rest) = last.split_once("', line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    Some((file, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use crate::test_support::machines;

    #[test]
    fn names_file_and_line() {
        let text = "Traceback (most recent call last):\n  File \"run.py\", line 3, in <module>\n    import kernels\n  \
                    File \"nsa/kernels.py\", line 212\n    return out\nSyntaxError: expected 'except' or 'finally' block";
        let found = crate::explain(text, &machines::x86(), &[]).remove(0);
        assert_eq!(found.rule.id, "kernel-syntax-error");
        assert_eq!(
            found.fix[..2],
            ["# nsa/kernels.py, line 212:", "python -m py_compile nsa/kernels.py"]
        );
    }
}
