//! Links between documents resolve.

use super::{Check, Problem};
use crate::layout::Layout;

pub(super) const CHECK: Check = Check {
    name: "links",
    promise: "every Markdown link to a file of the repository resolves",
    hint: "correct the path, or add the file",
    find,
};

/// Expected outputs of tests, whose links lead into a run folder that is not committed.
const COMPARED: &[&str] = &["/golden/", "/fixtures/"];

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".md"]) {
        if COMPARED.iter().any(|folder| path.contains(folder)) {
            continue;
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code {
                for target in targets(line) {
                    if !resolves(layout, folder, target) {
                        let what = format!("link to `{target}` leads nowhere");
                        problems.push(Problem::line(path, index + 1, what));
                    }
                }
            }
        }
    }
    problems
}

/// The targets of `[text](target)` and `![text](target)` in a line, outside inline code.
pub(super) fn targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for (index, part) in line.split('`').enumerate() {
        // Every second part is inline code. A link text may contain code, so a part may begin with `](`.
        if index % 2 == 1 {
            continue;
        }
        for (start, _) in part.match_indices("](") {
            let rest = &part[start + 2..];
            if let Some(end) = rest.find([')', ' ']) {
                targets.push(&rest[..end]);
            }
        }
    }
    targets
}

fn resolves(layout: &Layout, folder: &str, target: &str) -> bool {
    match path_of(folder, target) {
        LinkTarget::Elsewhere => true,
        LinkTarget::Path(path) => layout.has(&path),
        LinkTarget::Outside => false,
    }
}

/// The place of a link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkTarget {
    /// The same document, or an address.
    Elsewhere,
    /// A path from the root.
    Path(String),
    /// A path that leaves the root.
    Outside,
}

/// The target of a link in a document of `folder`.
pub(crate) fn path_of(folder: &str, target: &str) -> LinkTarget {
    let path = target.split('#').next().unwrap_or_default();
    if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
        return LinkTarget::Elsewhere;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return LinkTarget::Outside;
                }
            }
            name => parts.push(name),
        }
    }
    LinkTarget::Path(decoded(&parts.join("/")))
}

/// Decodes the percent escapes of a path; a result that is not UTF-8 is discarded for the original.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = path.get(path.len() - after.len()..path.len() - after.len() + 2);
        match escape.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                bytes.push(value);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn links_to_existing_files_pass() {
        let text = "[a](docs/a.md#top) ![p](docs/p.png) [`code`](docs) [web](https://example.org/x) [here](#part)\n```\n[no](nowhere)\n```\n`[x](y)` fine\n";
        let files = [
            ("README.md", text),
            ("docs/a.md", "[up](../README.md) [next](./p.png)"),
            ("docs/p.png", ""),
            ("benchmarks/runs/x/report.md", "[log](logs/a%20b.txt)"),
            ("benchmarks/runs/x/logs/a b.txt", ""),
            ("crates/report/tests/golden/report.md", "[facts](facts.json)"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn links_to_missing_files_fail() {
        let files = [
            ("README.md", "ok\n[a](docs/b.md) [`b`](gone)"),
            ("docs/a.md", "[up](../../README.md) [odd](100%)"),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "README.md:2: link to `docs/b.md` leads nowhere",
                "README.md:2: link to `gone` leads nowhere",
                "docs/a.md:1: link to `../../README.md` leads nowhere",
                "docs/a.md:1: link to `100%` leads nowhere",
            ],
        );
    }
}
