//! Functions with many parameters or wide tuples take a struct with named fields instead.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::{code_only, code_without_tests, find_word, is_test_file};

/// Maximum number of values of a tuple in a signature.
const MAX_FIELDS: usize = 3;

pub(super) const CHECK: Check = Check {
    name: "signatures",
    promise: "no function of a crate has over 7 parameters, or a tuple of over 3",
    hint: "give them names: a struct with a field for each",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_source = |path: &str| path.starts_with("crates/") && !is_test_file(path);
    for (path, text) in layout.texts(&[".rs"]).filter(|(path, _)| is_source(path)) {
        // Clippy counts parameters unless its lint is allowed.
        for line in find_word(&code_only(text), "too_many_arguments") {
            problems.push(Problem::line(path, line, "lets a function take over 7 parameters"));
        }
        let code = code_without_tests(text);
        let mut at = 0;
        while let Some(start) = code[at..].find("fn ").map(|found| at + found) {
            let signature = signature(&code[start..]);
            let tuple = widest_tuple(signature);
            // A property test may take its inputs as a wide tuple.
            let is_test = code[..start].trim_end().ends_with("#[test]");
            if tuple > MAX_FIELDS && !is_test {
                let line = code[..start].matches('\n').count() + 1;
                problems.push(Problem::line(
                    path,
                    line,
                    format!("takes or gives a tuple of {tuple}"),
                ));
            }
            at = start + signature.len().max(3);
        }
    }
    problems
}

/// A function up to its body or semicolon; a semicolon in brackets belongs to an array type.
fn signature(code: &str) -> &str {
    let mut brackets = 0;
    let end = code.find(|c| {
        match c {
            '[' => brackets += 1,
            ']' => brackets -= 1,
            _ => {}
        }
        c == '{' || c == ';' && brackets == 0
    });
    &code[..end.unwrap_or(code.len())]
}

/// Number of values of the widest tuple, as a type or a pattern. A parenthesis after a name or after generic parameters opens
/// a parameter list; one after an arrow opens a tuple.
fn widest_tuple(signature: &str) -> usize {
    let (mut widest, mut open) = (0, Vec::new());
    let mut before = [' '; 2];
    for c in signature.chars().filter(|c| !c.is_whitespace()) {
        let arrow = before == ['-', '>'];
        match c {
            '(' => {
                let list = before[1].is_alphanumeric() || before[1] == '_';
                open.push((!list && (before[1] != '>' || arrow), 0));
            }
            '<' | '[' => open.push((false, 0)),
            '>' if before[1] == '-' => {}
            ',' => {
                if let Some((_, commas)) = open.last_mut() {
                    *commas += 1;
                }
            }
            ')' | '>' | ']' => {
                if let Some((true, commas)) = open.pop() {
                    widest = widest.max(commas + usize::from(before[1] != ','));
                }
            }
            _ => {}
        }
        before = [before[1], c];
    }
    widest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    fn holds(text: &str, problems: &[&str]) {
        check(&CHECK, &Layout::of(&[("crates/ops/src/a.rs", text)]), problems);
    }

    #[test]
    fn tuples_of_three_and_lists_of_parameters_pass() {
        holds("#[test]\nfn a(x in (0u8..3, 0u8..3, 0u8..3, 0u8..3)) {}", &[]);
        holds(
            "fn a(x: (u8, u8, u8), y: [(u8, u8); 4], z: u8, w: u8) -> (u8, u8, u8,) { (1, 2, 3) }",
            &[],
        );
        holds(
            "fn a<T>(f: impl Fn(u8, u8, u8, u8) -> u8, m: BTreeMap<u8, u8>) where T: Into<(u8, u8)>;",
            &[],
        );
        holds(
            "fn a() { let (a, b, c, d) = e; }\n#[cfg(test)]\nmod tests { fn b(x: (u8, u8, u8, u8)) {} }",
            &[],
        );
    }

    #[test]
    fn wider_ones_and_a_silenced_lint_fail() {
        let wide = "crates/ops/src/a.rs:2: takes or gives a tuple of 4";
        for text in [
            "\nfn a((a, b, c, d): Four) {}",
            "\nfn a(x: &[(&str, &[usize], [u8; 2], f32)]) {}",
            "\nfn a(\n    x: u8,\n) -> (u8, u8, u8, Option<u8>) {}",
            "\npub fn a<T>(f: impl Fn((u8, u8, u8, u8)) -> u8) {}",
        ] {
            holds(text, &[wide]);
        }
        let lint = "crates/ops/src/a.rs:1: lets a function take over 7 parameters";
        holds("#[allow(clippy::too_many_arguments)]\nfn a() {}", &[lint]);
    }
}
