//! Checks that versions, lints and the edition are set only in the root Cargo.toml.

use super::{Check, Problem};
use crate::layout::Layout;
use toml::{Table, Value};

pub(super) const CHECK: Check = Check {
    name: "one_version",
    promise: "crates inherit versions, lints and package keys from the root Cargo.toml, which has no unused dependency",
    hint: "put the version in [workspace.dependencies] and write `NAME.workspace = true` in the crate",
    find,
};

/// Package keys that each crate inherits.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license"];

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut used = Vec::new();
    for (path, text) in layout.texts(&["/Cargo.toml"]) {
        let manifest: Table = match text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                problems.push(Problem::file(path, format!("is no TOML: {}", error.message())));
                continue;
            }
        };
        for key in INHERITED {
            if !inherits(manifest.get("package").and_then(|package| package.get(key))) {
                problems.push(Problem::file(path, format!("does not inherit `{key}`")));
            }
        }
        if !inherits(manifest.get("lints")) {
            problems.push(Problem::file(path, "does not inherit the lints"));
        }
        for (name, value) in dependencies(&manifest) {
            if !inherits(Some(value)) {
                problems
                    .push(Problem::file(path, format!("`{name}` does not inherit its version")));
            }
            used.push(name.clone());
        }
    }
    if let Some(root) = layout.files.get("Cargo.toml").and_then(Option::as_deref)
        && let Ok(manifest) = root.parse::<Table>()
        && let Some(Value::Table(versions)) =
            manifest.get("workspace").and_then(|workspace| workspace.get("dependencies"))
    {
        for name in versions.keys().filter(|name| !used.contains(name)) {
            problems.push(Problem::file("Cargo.toml", format!("no crate uses `{name}`")));
        }
    }
    problems
}

fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
}

/// Every dependency of a manifest, of any kind and for any target.
fn dependencies(manifest: &Table) -> Vec<(&String, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter();
    let tables = targets.flat_map(Table::values).filter_map(Value::as_table);
    let mut found = Vec::new();
    for table in std::iter::once(manifest).chain(tables) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            if let Some(Value::Table(dependencies)) = table.get(kind) {
                found.extend(dependencies.iter());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    const PACKAGE: &str = "version.workspace = true\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\n";

    #[test]
    fn inheriting_crate_passes() {
        let root = "[workspace.dependencies]\nrayon = \"1\"\nlibc = \"0.2\"\n";
        let manifest = format!(
            "[package]\n{PACKAGE}[lints]\nworkspace = true\n[dependencies]\nrayon.workspace = true\n[target.'cfg(unix)'.dependencies]\nlibc = {{ workspace = true, features = [\"std\"] }}\n"
        );
        check(
            &CHECK,
            &Layout::of(&[("Cargo.toml", root), ("crates/a/Cargo.toml", &manifest)]),
            &[],
        );
    }

    #[test]
    fn separate_and_unused_versions_fail() {
        let root = "[workspace.dependencies]\nrayon = \"1\"\n";
        let manifest = "[package]\nversion = \"1.0.0\"\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\n[dev-dependencies]\nhalf = \"2\"\n";
        check(
            &CHECK,
            &Layout::of(&[("Cargo.toml", root), ("crates/a/Cargo.toml", manifest)]),
            &[
                "crates/a/Cargo.toml: does not inherit `version`",
                "crates/a/Cargo.toml: does not inherit the lints",
                "crates/a/Cargo.toml: `half` does not inherit its version",
                "Cargo.toml: no crate uses `rayon`",
            ],
        );
    }

    #[test]
    fn invalid_manifest_fails() {
        let layout = Layout::of(&[("crates/a/Cargo.toml", "[package\n")]);
        let problems = find(&layout);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].what.starts_with("is no TOML: "), "{}", problems[0]);
    }
}
