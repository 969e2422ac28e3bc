//! The input of the checks: the repository's files and the workspace's packages.

use crate::{cargo, steps};
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Files and packages of the repository. Checks are pure functions of it, so that their tests construct one.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// Text of each file by its path relative to the root, with `/`; `None` for a file that is not UTF-8.
    pub(crate) files: BTreeMap<String, Option<String>>,
    /// The workspace's packages.
    pub(crate) packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name, which is also the name of the crate's folder.
    pub(crate) name: String,
    /// The workspace's packages that it depends on, of any dependency kind; sorted, without duplicates.
    pub(crate) imports: Vec<String>,
}

impl Layout {
    /// Reads the files that git tracks or does not ignore, and the packages from `cargo metadata`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        Ok(Self { files: read_files(root)?, packages: packages(&cargo::metadata(root)?)? })
    }

    /// The text files whose path ends with one of `endings`.
    pub(crate) fn texts<'a>(
        &'a self,
        endings: &'a [&str],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files.iter().filter_map(move |(path, text)| {
            let wanted = endings.iter().any(|ending| path.ends_with(ending));
            wanted.then_some((path.as_str(), text.as_deref()?))
        })
    }

    /// Whether a path is a file, or a folder with files.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        path.is_empty()
            || self.files.contains_key(path)
            || self
                .files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(p, _)| p.starts_with(&folder))
    }
}

/// The crate that a path belongs to: `crates/NAME/...` or `xtask/...`.
pub(crate) fn crate_of(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    match parts.next()? {
        "crates" => parts.next(),
        "xtask" => Some("xtask"),
        _ => None,
    }
}

fn read_files(root: &Path) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    // Includes untracked files that are not ignored, so that a new file is checked before its commit.
    let listed = steps::output(Command::new("git").current_dir(root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))
    .context("tidy reads the files that git tracks\nhint: run it in a git clone")?;
    let mut files = BTreeMap::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        match std::fs::read(root.join(path)) {
            Ok(bytes) => {
                files.insert(path.to_owned(), String::from_utf8(bytes).ok());
            }
            // Deleted but not yet committed, or a link to a folder.
            Err(_) if !root.join(path).is_file() => {}
            Err(error) => return Err(error).with_context(|| format!("could not read {path}")),
        }
    }
    Ok(files)
}

fn packages(metadata: &serde_json::Value) -> anyhow::Result<Vec<Package>> {
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let name_of = |package: &serde_json::Value| package["name"].as_str().map(str::to_owned);
    let mut result = Vec::new();
    for package in packages {
        let name = name_of(package).context("`cargo metadata` has a package without a name")?;
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        // Only path dependencies are crates of the workspace: a registry's crate could have the same name.
        let mut imports: Vec<String> = dependencies
            .iter()
            .filter(|dependency| dependency["path"].is_string())
            .filter_map(name_of)
            .collect();
        imports.sort();
        imports.dedup();
        result.push(Package { name, imports });
    }
    Ok(result)
}

#[cfg(test)]
impl Layout {
    /// A layout of these files, without packages.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned())));
        Self { files: files.collect(), packages: Vec::new() }
    }

    /// Adds packages, each with the crates that it imports.
    pub(crate) fn with_packages(mut self, packages: &[(&str, &[&str])]) -> Self {
        for (name, imports) in packages {
            let imports = imports.iter().map(|import| (*import).to_owned()).collect();
            self.packages.push(Package { name: (*name).to_owned(), imports });
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_list_each_path_dependency_once() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "verify", "dependencies": [
                { "name": "ops", "path": "/repo/crates/ops", "kind": null },
                { "name": "facts", "path": "/repo/crates/facts", "kind": null },
                { "name": "facts", "path": "/repo/crates/facts", "kind": "dev" },
                { "name": "half", "kind": null },
            ]},
            { "name": "facts", "dependencies": [] },
        ]});
        let packages = packages(&metadata).unwrap();
        assert_eq!(packages[0].imports, ["facts", "ops"]);
        assert!(packages[1].imports.is_empty());
    }

    #[test]
    fn reads_tracked_and_new_files_but_not_ignored_or_deleted_ones() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let git = |arguments: &[&str]| {
            steps::run(Command::new("git").current_dir(root).args(arguments)).unwrap();
        };
        git(&["init", "-q"]);
        for (name, bytes) in [
            ("tracked.md", &b"text"[..]),
            ("gone.md", b"gone"),
            ("binary.png", b"\x89PNG\xff"),
            ("new.md", b"new"),
            ("ignored.log", b"log"),
            (".gitignore", b"*.log\n"),
        ] {
            std::fs::write(root.join(name), bytes).unwrap();
        }
        git(&["add", "tracked.md", "gone.md"]);
        std::fs::remove_file(root.join("gone.md")).unwrap();
        let files = read_files(root).unwrap();
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        assert_eq!(names, [".gitignore", "binary.png", "new.md", "tracked.md"]);
        assert_eq!(files["binary.png"], None);
        assert_eq!(files["new.md"].as_deref(), Some("new"));
    }

    #[test]
    fn folders_exist_if_they_have_files() {
        let layout = Layout::of(&[("docs/a.md", ""), ("docs-old.md", "")]);
        for (path, expect) in [
            ("docs", true),
            ("docs/", true),
            ("docs/a.md", true),
            ("doc", false),
            ("docs/a", false),
        ] {
            assert_eq!(layout.has(path), expect, "{path}");
        }
    }

    #[test]
    fn paths_belong_to_their_crate() {
        assert_eq!(crate_of("crates/facts/src/lib.rs"), Some("facts"));
        assert_eq!(crate_of("xtask/src/main.rs"), Some("xtask"));
        assert_eq!(crate_of("README.md"), None);
    }
}
