//! Crates that are pure functions of the facts do no I/O, start no process and read no clock.

use super::{Check, Problem};
use crate::layout::{Layout, crate_of};
use crate::rust_source::{code_without_tests, is_test_file};

/// The crates without I/O.
const CRATES: &[&str] = &["facts", "knowledge", "architectures", "diagnose", "report"];

/// Modules of `std` with access to the system.
const MODULES: &[&str] = &["fs", "process", "net", "env"];

/// Calls that read a file system or a clock without an import of [`MODULES`].
const CALLS: &[&str] =
    &["Instant::now", "SystemTime::now", "now_utc", "now_local", ".canonicalize(", ".read_dir("];

pub(super) const CHECK: Check = Check {
    name: "pure_crates",
    promise: "facts, knowledge, architectures, diagnose and report do no I/O and read no clock outside their tests",
    hint: "let probe or the command read it, and pass it in as a fact",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".rs"]) {
        let is_pure = crate_of(path).is_some_and(|name| CRATES.contains(&name));
        // A build script runs when the crate is compiled and is not part of the program.
        let is_build_script = path.ends_with("/build.rs") && !path.contains("/src/");
        if !is_pure || is_build_script || is_test_file(path) {
            continue;
        }
        let code = code_without_tests(text);
        for (start, _) in code.match_indices("std::") {
            let line = code[..start].matches('\n').count() + 1;
            for module in std_modules(&code[start + "std::".len()..]) {
                if MODULES.contains(&module) {
                    problems.push(Problem::line(path, line, format!("uses `std::{module}`")));
                }
            }
        }
        for (index, line) in code.lines().enumerate() {
            for call in CALLS.iter().filter(|call| line.contains(**call)) {
                problems.push(Problem::line(path, index + 1, format!("calls `{call}`")));
            }
        }
    }
    problems
}

/// The modules directly after `std::`: one, or each of a braced list.
fn std_modules(after: &str) -> Vec<&str> {
    let first_word = |text: &'_ str| -> usize {
        text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
    };
    let Some(list) = after.strip_prefix('{') else {
        return vec![&after[..first_word(after)]];
    };
    let mut modules = Vec::new();
    let mut depth = 0;
    let mut start = Some(0);
    for (index, c) in list.char_indices() {
        if depth == 0
            && let Some(from) = start
            && !c.is_whitespace()
        {
            let word = list[from..].trim_start();
            modules.push(&word[..first_word(word)]);
            start = None;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = Some(index + 1),
            _ => {}
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn pure_code_and_impure_tests_pass() {
        let pure = "use std::{collections::{BTreeMap, fs}, fmt};\nuse std::path::Path;\n// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let files = [
            ("crates/report/src/lib.rs", pure),
            ("crates/report/src/tests.rs", "use std::fs;"),
            ("crates/report/tests/golden.rs", "use std::fs;"),
            ("crates/probe/src/lib.rs", "use std::fs;"),
            ("crates/knowledge/build.rs", "use std::fs;"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn each_system_access_fails() {
        let text = "use std::{fmt, fs::File,\n    process};\nfn now() { std::time::Instant::now(); }\nfn home() { std::env::var(\"HOME\"); }\n";
        let inside = Layout::of(&[
            ("crates/setup/src/a.rs", text),
            ("crates/report/src/build.rs", "use std::fs;"),
        ]);
        check(&CHECK, &inside, &["crates/report/src/build.rs:1: uses `std::fs`"]);
        check(
            &CHECK,
            &Layout::of(&[("crates/diagnose/src/a.rs", text)]),
            &[
                "crates/diagnose/src/a.rs:1: uses `std::fs`",
                "crates/diagnose/src/a.rs:1: uses `std::process`",
                "crates/diagnose/src/a.rs:4: uses `std::env`",
                "crates/diagnose/src/a.rs:3: calls `Instant::now`",
            ],
        );
    }
}
