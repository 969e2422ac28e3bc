//! The project's documents in a package: links to files that the package lacks become text, and the changelog names
//! the build.

use crate::checks::{LinkTarget, dead_links, path_of};
use crate::layout::Layout;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Texts by their path.
pub(super) type Texts = BTreeMap<String, String>;

/// The book, which the archive contains.
const BOOK: &str = "docs/book/src";

/// Explains the paths that replace links.
const NOTE: &str = "Paths in parentheses are those of the project's repository, which this package does not contain.";

/// Reads the documents of an archive.
pub(super) fn read(root: &Path) -> anyhow::Result<Texts> {
    let mut paths: Vec<String> = ["LICENSE", "README.md", "CHANGELOG.md"].map(str::to_owned).into();
    for entry in fs::read_dir(root.join(BOOK)).context(BOOK)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            paths.push(format!("{BOOK}/{name}"));
        }
    }
    let text = |path: String| {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok((path, text))
    };
    paths.into_iter().map(text).collect()
}

/// The documents as an archive has them. `build` is the output of `firstlight --version`.
///
/// # Errors
/// A link that leads nowhere in the archive.
pub(super) fn packed(mut texts: Texts, build: &str) -> anyhow::Result<Texts> {
    if let Some(changelog) = texts.get_mut("CHANGELOG.md") {
        *changelog = with_build(changelog, build);
    }
    let layout = layout(&texts);
    let linked = texts.iter().filter(|(path, _)| path.ends_with(".md"));
    let linked = linked.map(|(path, text)| {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        (path.clone(), without_dead_links(text, folder, |path| layout.has(path)))
    });
    let linked: Texts = linked.collect();
    texts.extend(linked);
    if let Some(problem) = dead_links(&self::layout(&texts)).first() {
        bail!("a document of the archive: {problem}");
    }
    Ok(texts)
}

/// The README as a wheel has it in its METADATA, where no file is next to it.
pub(super) fn description(readme: &str) -> String {
    without_dead_links(readme, "", |_| false)
}

fn layout(texts: &Texts) -> Layout {
    let files = texts.iter().map(|(path, text)| (path.clone(), Some(text.clone()))).collect();
    Layout { files, packages: Vec::new() }
}

/// The changelog of a build: its unreleased changes are in this build. Without any, it is that of a release.
fn with_build(changelog: &str, build: &str) -> String {
    const UNRELEASED: &str = "## [Unreleased]\n";
    let Some((before, after)) = changelog.split_once(UNRELEASED) else {
        return changelog.to_owned();
    };
    let changes = after.split("\n## ").next().unwrap_or_default();
    if changes.trim().is_empty() {
        return format!("{before}{}", after.trim_start());
    }
    format!("{before}## In this build, {build}, and in no release\n{after}")
}

/// Replaces links to missing files by their text and path, and removes such images.
fn without_dead_links(text: &str, folder: &str, has: impl Fn(&str) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut replaced = false;
    // Every second part is a block of code.
    for (index, part) in text.split("```").enumerate() {
        if index > 0 {
            out += "```";
        }
        if index % 2 == 1 {
            out += part;
            continue;
        }
        let mut rest = part;
        while let Some(link) = Link::first(rest) {
            out += &rest[..link.start];
            let dead = match path_of(folder, link.target) {
                LinkTarget::Elsewhere => None,
                LinkTarget::Path(path) => (!has(&path)).then_some(path),
                LinkTarget::Outside => Some(link.target.to_owned()),
            };
            match dead {
                None => out += &rest[link.start..link.end],
                Some(_) if link.image => {}
                Some(path) if link.text.trim_matches('`') == path => out += link.text,
                Some(path) => {
                    replaced = true;
                    out += &format!("{} (`{path}`)", link.text);
                }
            }
            rest = &rest[link.end..];
        }
        out += rest;
    }
    // A removed image leaves an empty line more.
    let out = out.replace("\n\n\n\n", "\n\n");
    match out.split_once("\n\n").filter(|_| replaced) {
        Some((title, rest)) if title.starts_with("# ") => format!("{title}\n\n{NOTE}\n\n{rest}"),
        _ => out,
    }
}

/// `[text](target)` or `![text](target)` outside inline code.
struct Link<'a> {
    start: usize,
    end: usize,
    image: bool,
    text: &'a str,
    target: &'a str,
}

impl<'a> Link<'a> {
    /// The first link of a text.
    fn first(text: &'a str) -> Option<Self> {
        let mut code = false;
        let mut open = Vec::new();
        for (at, c) in text.char_indices() {
            match c {
                '`' => code = !code,
                '[' if !code => open.push(at),
                ']' if !code => {
                    let Some(start) = open.pop() else { continue };
                    let Some(inside) = text[at + 1..].strip_prefix('(') else { continue };
                    let length = inside.find(')')?;
                    let image = text[..start].ends_with('!');
                    return Some(Self {
                        start: if image { start - 1 } else { start },
                        end: at + 2 + length + 1,
                        image,
                        text: &text[start + 1..at],
                        target: &inside[..length],
                    });
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> Texts {
        read(&crate::cargo::workspace_root().unwrap()).unwrap()
    }

    #[test]
    fn links_to_missing_files_become_text_with_the_path() {
        let has = |path: &str| path == "docs/a.md";
        for (folder, text, expect) in [
            ("", "[a](docs/a.md#top) [web](https://example.org) [here](#x)", None),
            ("", "`[no](nowhere)` and\n```\n[no](nowhere)\n```\n", None),
            ("docs", "[up](a.md)", None),
            ("", "see [the `run`](b/c) now", Some("see the `run` (`b/c`) now")),
            ("docs", "[x](../B.md#y)", Some("x (`B.md`)")),
            ("", "[B.md](B.md), [`B.md`](B.md)", Some("B.md, `B.md`")),
            ("", "one\n\n![p](p.png)\n\ntwo", Some("one\n\ntwo")),
            ("", "a [long\ntext](b) [c](d)", Some("a long\ntext (`b`) c (`d`)")),
        ] {
            assert_eq!(without_dead_links(text, folder, has), expect.unwrap_or(text), "{text}");
        }
        let noted = without_dead_links("# Title\n\n[a](b)\n", "", has);
        assert_eq!(noted, format!("# Title\n\n{NOTE}\n\na (`b`)\n"));
    }

    #[test]
    fn every_link_of_an_archive_leads_to_one_of_its_files() {
        let texts = repository();
        // The benchmarks, crates and documents for developers are missing.
        let dead = dead_links(&layout(&texts)).len();
        assert!(dead > 10, "{dead}");
        let packed = packed(texts, "firstlight 0.2.0 (0123456 2026-11-30)").unwrap();
        assert!(dead_links(&layout(&packed)).is_empty());
        // The pages of the book are in the archive, so the README still leads to them.
        assert!(packed["README.md"].contains("](docs/book/src/install.md)"));
    }

    #[test]
    fn description_of_a_wheel_has_no_relative_link() {
        let readme = &repository()["README.md"];
        let text = description(readme);
        let alone = Texts::from([("README.md".to_owned(), text.clone())]);
        assert!(dead_links(&layout(&alone)).is_empty(), "{text}");
        assert!(text.contains(NOTE) && text.contains("(`docs/book/src/install.md`)"), "{text}");
    }

    #[test]
    fn readme_installs_a_package_before_it_names_a_clone() {
        let text = &repository()["README.md"];
        let install = text.split("\n## Install\n").nth(1).unwrap();
        let (wheel, archive) = (install.find("pip install ./firstlight-"), install.find("tar xzf"));
        let clone = install.find("cargo build").unwrap();
        assert!(wheel.unwrap() < clone && archive.unwrap() < clone, "{install}");
    }

    #[test]
    fn changelog_of_a_build_names_it() {
        let build = "firstlight 0.2.0 (0123456 2026-11-30)";
        let before = "# Changelog\n\n";
        let release = "## [0.2.0] - 2026-11-22\n- b\n";
        let made = with_build(&format!("{before}## [Unreleased]\n\n- a\n\n{release}"), build);
        let heading = format!("## In this build, {build}, and in no release\n\n- a\n\n");
        assert_eq!(made, format!("{before}{heading}{release}"));
        let made = with_build(&format!("{before}## [Unreleased]\n\n{release}"), build);
        assert_eq!(made, format!("{before}{release}"));
        assert!(!packed(repository(), build).unwrap()["CHANGELOG.md"].contains("[Unreleased]"));
    }
}
