//! Every dependency says why it is there.

use super::{Check, Problem};
use crate::layout::Layout;

pub(super) const CHECK: Check = Check {
    name: "dependency_reasons",
    promise: "a comment above each dependency from a registry says why it is needed",
    hint: "write one sentence above the line; if there is none to write, drop the dependency",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&["/Cargo.toml"]) {
        let mut in_dependencies = false;
        let mut before = "";
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                in_dependencies = header.trim_end_matches(']').ends_with("dependencies");
            } else if in_dependencies && !line.is_empty() && !line.starts_with('#') {
                let end = line.find(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
                let name = &line[..end.unwrap_or(line.len())];
                // A room needs no reason: ARCHITECTURE.md gives it.
                let is_room = layout.packages.iter().any(|package| package.name == name);
                if !is_room && !before.starts_with('#') {
                    problems.push(Problem::line(
                        path,
                        index + 1,
                        format!("`{name}` has no reason"),
                    ));
                }
            }
            before = line;
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn reasons_and_rooms_pass() {
        let text = "[package]\nname = \"a\"\n\n[dependencies]\nfacts.workspace = true\n# Threads.\nrayon.workspace = true\n";
        let layout = Layout::of(&[
            ("crates/a/Cargo.toml", text),
            ("Cargo.toml", "[workspace.dependencies]\nx = \"1\"\n"),
        ])
        .with_packages(&[("facts", &[])]);
        check(&CHECK, &layout, &[]);
    }

    #[test]
    fn a_dependency_without_reason_fails() {
        let text = "[dependencies]\n# Threads.\nrayon.workspace = true\nhalf.workspace = true\n\n[target.'cfg(unix)'.dev-dependencies]\nlibc = { workspace = true }\n";
        check(
            &CHECK,
            &Layout::of(&[("crates/a/Cargo.toml", text)]),
            &[
                "crates/a/Cargo.toml:4: `half` has no reason",
                "crates/a/Cargo.toml:7: `libc` has no reason",
            ],
        );
    }
}
