//! The book is consistent: its contents list every page, and its links lead to existing pages and headings.

use super::links::targets;
use super::{Check, Problem};
use crate::layout::Layout;

pub(super) const CHECK: Check = Check {
    name: "book",
    promise: "SUMMARY.md lists every page of the book, and links lead to its pages and headings",
    hint: "list the page in docs/book/src/SUMMARY.md, correct the link, or name a file outside the book in `code`",
    find,
};

const PAGES: &str = "docs/book/src/";
const CONTENTS: &str = "SUMMARY.md";

fn find(layout: &Layout) -> Vec<Problem> {
    let pages: Vec<(&str, &str)> = layout
        .texts(&[".md"])
        .filter_map(|(path, text)| Some((path.strip_prefix(PAGES)?, text)))
        .collect();
    let contents = pages.iter().find(|(name, _)| *name == CONTENTS);
    let listed: Vec<&str> =
        contents.iter().flat_map(|(_, text)| text.lines()).flat_map(targets).collect();
    let mut problems = Vec::new();
    for (name, text) in &pages {
        let path = format!("{PAGES}{name}");
        if *name != CONTENTS && !listed.contains(name) {
            problems.push(Problem::file(&path, "is not listed in SUMMARY.md"));
        }
        for (index, line) in outside_code(text) {
            for target in targets(line).into_iter().filter(|target| !target.contains("://")) {
                let (page, heading) = target.split_once('#').unwrap_or((target, ""));
                let page = if page.is_empty() { *name } else { page };
                let Some((_, text)) = pages.iter().find(|(name, _)| *name == page) else {
                    let what = format!("link to `{target}` leads out of the book");
                    problems.push(Problem::line(&path, index + 1, what));
                    continue;
                };
                if !heading.is_empty() && !headings(text).any(|known| known == heading) {
                    let what = format!("link to `{target}` has no such heading");
                    problems.push(Problem::line(&path, index + 1, what));
                }
            }
        }
    }
    problems
}

/// Lines outside code blocks, with their numbers from 0.
fn outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Anchors of the headings: lower case, spaces replaced by hyphens, no other punctuation.
fn headings(text: &str) -> impl Iterator<Item = String> {
    outside_code(text).filter_map(|(_, line)| {
        let words = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn book_with_listed_pages_and_existing_targets_passes() {
        let files = [
            ("docs/book/src/SUMMARY.md", "- [A](a.md)\n- [B](b.md)"),
            (
                "docs/book/src/a.md",
                "# Top\n[b](b.md#why-not-x) [here](#top) [web](https://example.org)",
            ),
            ("docs/book/src/b.md", "## Why not `X`?\n```\n[no](nowhere)\n```\n"),
            ("README.md", "[book](docs/book/src/a.md)"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn unlisted_page_and_broken_link_fail() {
        let files = [
            ("docs/book/src/SUMMARY.md", "- [A](a.md)\n- [Gone](gone.md)"),
            ("docs/book/src/a.md", "# Top\n\n[out](../../../README.md) [part](b.md#bottom)"),
            ("docs/book/src/b.md", "# Top"),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "docs/book/src/SUMMARY.md:2: link to `gone.md` leads out of the book",
                "docs/book/src/a.md:3: link to `../../../README.md` leads out of the book",
                "docs/book/src/a.md:3: link to `b.md#bottom` has no such heading",
                "docs/book/src/b.md: is not listed in SUMMARY.md",
            ],
        );
    }
}
