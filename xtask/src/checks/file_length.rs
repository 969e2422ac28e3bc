//! Source files have at most 500 lines.

use super::{Check, Problem};
use crate::layout::Layout;

const MAX_LINES: usize = 500;

pub(super) const CHECK: Check = Check {
    name: "file_length",
    promise: "no source file has more than 500 lines",
    hint: "one thing per file: split it where it does two",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let long = layout.texts(&[".rs", ".cu", ".py", ".wgsl", ".sh"]).filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > MAX_LINES).then(|| Problem::file(path, format!("{lines} lines")))
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn five_hundred_lines_pass_and_one_more_fails() {
        let limit = "x\n".repeat(MAX_LINES);
        let over = "x\n".repeat(MAX_LINES + 1);
        let files = [
            ("a.rs", &*limit),
            ("b.cu", &*over),
            ("c.py", &*over),
            ("notes.md", &*over),
            ("recorded.txt", &*over),
        ];
        check(&CHECK, &Layout::of(&files), &["b.cu: 501 lines", "c.py: 501 lines"]);
    }
}
