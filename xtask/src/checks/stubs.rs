//! No stubs and no ignored tests.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::code_only;

/// Markers of stubs and of ignored tests.
const MARKS: &[&str] = &["todo!", "unimplemented!", "#[ignore"];

pub(super) const CHECK: Check = Check {
    name: "stubs",
    promise: "no stub and no ignored test",
    hint: "write it, or leave it out and say so in CHANGELOG.md",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".rs"]) {
        for (index, line) in code_only(text).lines().enumerate() {
            for mark in MARKS.iter().filter(|mark| line.contains(**mark)) {
                problems.push(Problem::line(path, index + 1, format!("has `{mark}`")));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn words_in_comments_and_strings_pass() {
        let text =
            "// no todo!() here\nlet lint = \"unimplemented!\";\n/// `#[ignore]` is refused.\n";
        check(&CHECK, &Layout::of(&[("a.rs", text)]), &[]);
    }

    #[test]
    fn each_mark_fails() {
        let text = "fn a() { todo!() }\nfn b() { unimplemented!(\"x\") }\n#[ignore = \"slow\"]\n";
        check(
            &CHECK,
            &Layout::of(&[("a.rs", text)]),
            &["a.rs:1: has `todo!`", "a.rs:2: has `unimplemented!`", "a.rs:3: has `#[ignore`"],
        );
    }
}
