//! Code in documentation comments is marked as text, because doctests do not run.

use super::{Check, Problem};
use crate::layout::Layout;

pub(super) const CHECK: Check = Check {
    name: "doc_code",
    promise: "code in a documentation comment is marked as text: none of it is run",
    hint: "write ```text, and move what should run into a test: building documentation for its examples costs CI a minute",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".rs"]) {
        let mut inside = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let Some(fence) = doc.and_then(|doc| doc.trim().strip_prefix("```")) else { continue };
            if !inside && fence != "text" {
                let what = format!("begins a block of code with \"```{fence}\"");
                problems.push(Problem::line(path, index + 1, what));
            }
            inside = !inside;
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn text_passes_and_code_fails() {
        let text = "//! ```text\n//! cargo run\n//! ```\nlet fence = \"```\";\n";
        let code = "    /// ```\n    /// f()\n    /// ```\n    /// ```rust\n    /// ```\n";
        check(&CHECK, &Layout::of(&[("a.rs", text)]), &[]);
        check(
            &CHECK,
            &Layout::of(&[("a.rs", code), ("b.md", "/// ```\n")]),
            &[
                "a.rs:1: begins a block of code with \"```\"",
                "a.rs:4: begins a block of code with \"```rust\"",
            ],
        );
    }
}
