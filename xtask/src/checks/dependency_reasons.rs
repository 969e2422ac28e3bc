//! A comment gives the reason for every dependency.

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
        let mut reason = String::new();
        // The dependency directly below the reason.
        let mut first = None;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                in_dependencies = header.trim_end_matches(']').ends_with("dependencies");
            }
            if line.starts_with('#') {
                if first.take().is_some() {
                    reason.clear();
                }
                reason.push_str(line);
            } else if line.is_empty() || line.starts_with('[') {
                reason.clear();
                first = None;
            } else if in_dependencies {
                let end = line.find(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_'));
                let name = &line[..end.unwrap_or(line.len())];
                // A crate of the workspace needs no reason: ARCHITECTURE.md lists it.
                let is_member = layout.packages.iter().any(|package| package.name == name);
                let first = *first.get_or_insert(name);
                // `serde_json` below `serde` shares its reason, as does a dependency that the reason names.
                let covered =
                    !reason.is_empty() && (name.starts_with(first) || reason.contains(name));
                if !is_member && !covered {
                    problems.push(Problem::line(
                        path,
                        index + 1,
                        format!("`{name}` has no reason"),
                    ));
                }
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
    fn reasons_and_workspace_crates_pass() {
        let text = "[package]\nname = \"a\"\n\n[dependencies]\nfacts.workspace = true\n# Threads.\nrayon.workspace = true\n# JSON.\nserde.workspace = true\nserde_json.workspace = true\n# Tensors of safetensors files,\n# bfloat16 by half.\nhalf.workspace = true\nsafetensors.workspace = true\n";
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
