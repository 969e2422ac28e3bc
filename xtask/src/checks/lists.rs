//! The files of a folder and the list in its parent module agree.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::{code_without_tests, find_word};

/// Folders in which every file has an entry in the list of the file with the folder's name.
const FOLDERS: &[&str] =
    &["probes", "rules", "sections", "backends", "commands", "checks", "peers", "formats"];

pub(super) const CHECK: Check = Check {
    name: "lists",
    promise: "each file of a folder of commands, checks or peers has an entry in the folder's list",
    hint: "add its line to the list in the file next to the folder",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, _) in layout.texts(&[".rs"]) {
        let Some((folder, file)) = path.rsplit_once('/') else { continue };
        let is_list = FOLDERS.iter().any(|name| folder.ends_with(&format!("/{name}")));
        let stem = file.trim_end_matches(".rs");
        if !is_list || !folder.contains("/src/") || matches!(stem, "mod" | "tests") {
            continue;
        }
        let by_name = format!("{folder}.rs");
        let by_mod = format!("{folder}/mod.rs");
        let list = [by_name.as_str(), by_mod.as_str()]
            .into_iter()
            .find_map(|list| Some((list, layout.files.get(list)?.as_deref()?)));
        let Some((list, text)) = list else {
            problems.push(Problem::file(path, format!("its folder has no {by_name}")));
            continue;
        };
        // The module declaration does not count: the entry is the use of the module.
        if find_word(&code_without_tests(text), &format!("{stem}::")).is_empty() {
            problems.push(Problem::file(path, format!("has no entry `{stem}::...` in {list}")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn listed_files_pass() {
        let files = [
            (
                "crates/a/src/checks.rs",
                "mod one;\nmod two;\nconst C: &[Check] = &[one::CHECK, two::CHECK];",
            ),
            ("crates/a/src/checks/one.rs", ""),
            ("crates/a/src/checks/two.rs", ""),
            ("crates/a/src/commands/mod.rs", "mod os;\nfn read() { os::read() }"),
            ("crates/a/src/commands/os.rs", ""),
            ("crates/a/src/other.rs", "mod free;"),
            ("crates/a/src/other/free.rs", ""),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn file_without_an_entry_fails() {
        let files = [
            (
                "crates/a/src/checks.rs",
                "mod one;\nmod two;\n// two::CHECK\nconst C: &[Check] = &[one::CHECK];\n#[cfg(test)]\nmod tests { fn t() { two::CHECK } }",
            ),
            ("crates/a/src/checks/one.rs", ""),
            ("crates/a/src/checks/two.rs", ""),
            ("crates/a/src/peers/torch.rs", ""),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "crates/a/src/checks/two.rs: has no entry `two::...` in crates/a/src/checks.rs",
                "crates/a/src/peers/torch.rs: its folder has no crates/a/src/peers.rs",
            ],
        );
    }
}
