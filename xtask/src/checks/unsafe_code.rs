//! Only listed crates allow `unsafe_code`, each time with a reason.

use super::{Check, Problem};
use crate::layout::{Layout, crate_of};
use crate::rust_source::{code_only, find_word};

/// The crates with access to hardware or other languages, and those of tensors and kernels.
const CRATES: &[&str] = &["device", "ops", "ops-cpu", "ops-cuda", "python"];

pub(super) const CHECK: Check = Check {
    name: "unsafe_code",
    promise: "`unsafe_code` is allowed only in device, ops, ops-cpu, ops-cuda and python, each time with a reason",
    hint: "move the unsafe part into device, ops, ops-cpu, ops-cuda or python, or give the allow a `reason` or a comment above it",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".rs"]) {
        let allowed = crate_of(path).is_some_and(|name| CRATES.contains(&name));
        let code = code_only(text);
        let lines: Vec<&str> = text.lines().collect();
        for line in find_word(&code, "unsafe_code") {
            // The module of this check has the same name and is not a lint level.
            if !lines[line - 1].contains("(unsafe_code") {
                continue;
            }
            if !allowed {
                problems.push(Problem::line(
                    path,
                    line,
                    "allows `unsafe_code` outside device, ops, ops-cpu, ops-cuda and python",
                ));
            } else if !has_reason(&lines, line) {
                problems.push(Problem::line(path, line, "allows `unsafe_code` without a reason"));
            }
        }
    }
    problems
}

fn has_reason(lines: &[&str], line: usize) -> bool {
    let above = line.checked_sub(2).and_then(|index| lines.get(index));
    let here = lines[line - 1];
    here.contains("reason")
        || here.contains("//")
        || above.is_some_and(|above| above.trim().starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn reason_in_a_listed_crate_passes() {
        let files = [
            ("crates/ops-cpu/src/a.rs", "#![allow(unsafe_code, reason = \"AVX2 intrinsics\")]"),
            ("crates/device/src/a.rs", "// The pool returns raw memory.\n#[allow(unsafe_code)]"),
            ("crates/device/src/b.rs", "#[allow(unsafe_code)] // Each block owns one element."),
            ("crates/probe/src/a.rs", "// #![allow(unsafe_code)] would be wrong\nmod unsafe_code;"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn other_crates_and_missing_reasons_fail() {
        let files = [
            ("crates/ops-cpu/src/a.rs", "fn f() {}\n#[allow(unsafe_code)]"),
            ("crates/probe/src/a.rs", "#![allow(unsafe_code, reason = \"faster\")]"),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "crates/ops-cpu/src/a.rs:2: allows `unsafe_code` without a reason",
                "crates/probe/src/a.rs:1: allows `unsafe_code` outside device, ops, ops-cpu, ops-cuda and python",
            ],
        );
    }
}
