//! Every source file is declared as a module; an undeclared one is not compiled and its tests do not run.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::{code_only, find_word};

pub(super) const CHECK: Check = Check {
    name: "modules",
    promise: "every .rs file under src/ is declared by its parent module",
    hint: "add `mod NAME;` to the parent, or remove the file",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, _) in layout.texts(&[".rs"]) {
        let Some((folder, stem)) = module(path) else { continue };
        let parents = parents(folder);
        let declared = parents.iter().any(|parent| {
            let text = layout.files.get(parent.as_str()).and_then(Option::as_deref);
            text.is_some_and(|text| declares(text, stem))
        });
        if !declared {
            problems.push(Problem::file(path, format!("no `mod {stem};` in {}", parents[0])));
        }
    }
    problems
}

/// A module file's folder and the module's name; `None` for the roots of a crate and for files outside `src/`.
fn module(path: &str) -> Option<(&str, &str)> {
    let (folder, file) = path.rsplit_once('/')?;
    let stem = file.strip_suffix(".rs")?;
    let inside = folder.ends_with("/src") || folder.contains("/src/");
    if !inside || folder.ends_with("/src/bin") {
        return None;
    }
    match stem {
        "lib" | "main" if folder.ends_with("/src") => None,
        // `a/mod.rs` is the module `a` of the folder above.
        "mod" => folder.rsplit_once('/'),
        _ => Some((folder, stem)),
    }
}

/// The files that may declare the modules of a folder.
fn parents(folder: &str) -> Vec<String> {
    if folder.ends_with("/src") {
        vec![format!("{folder}/lib.rs"), format!("{folder}/main.rs")]
    } else {
        vec![format!("{folder}.rs"), format!("{folder}/mod.rs")]
    }
}

fn declares(text: &str, stem: &str) -> bool {
    let by_name = !find_word(&code_only(text), &format!("mod {stem};")).is_empty();
    // `#[path = "x86.rs"]` gives a file another name in the module tree.
    by_name || text.contains(&format!("{stem}.rs\"]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn declared_files_pass() {
        let files = [
            ("crates/a/src/lib.rs", "mod rules;\npub mod one;\nmod old;"),
            ("crates/a/src/one.rs", "#[path = \"x86.rs\"]\nmod simd;"),
            ("crates/a/src/rules.rs", "pub(crate) mod first;\n#[cfg(test)]\nmod tests;"),
            ("crates/a/src/rules/first.rs", ""),
            ("crates/a/src/rules/tests.rs", ""),
            ("crates/a/src/old/mod.rs", "mod deep;"),
            ("crates/a/src/old/deep.rs", ""),
            ("crates/a/tests/outside.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn a_forgotten_file_fails() {
        let files = [
            ("crates/a/src/lib.rs", "mod rules; // mod one;"),
            ("crates/a/src/one.rs", ""),
            ("crates/a/src/rules.rs", ""),
            ("crates/a/src/rules/first.rs", ""),
            ("crates/a/src/old/mod.rs", ""),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "crates/a/src/old/mod.rs: no `mod old;` in crates/a/src/lib.rs",
                "crates/a/src/one.rs: no `mod one;` in crates/a/src/lib.rs",
                "crates/a/src/rules/first.rs: no `mod first;` in crates/a/src/rules.rs",
            ],
        );
    }
}
