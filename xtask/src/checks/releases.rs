//! The newest release of the changelog is the workspace's version.

use super::{Check, Problem};
use crate::layout::Layout;

pub(super) const CHECK: Check = Check {
    name: "releases",
    promise: "CHANGELOG.md has `## [Unreleased]` on top, below it dated releases, newest first: the newest is Cargo.toml's version",
    hint: "a release gives the lines below Unreleased its number and date, and Cargo.toml the same number",
    find,
};

const CHANGELOG: &str = "CHANGELOG.md";

fn find(layout: &Layout) -> Vec<Problem> {
    let text = |path: &str| layout.files.get(path).and_then(Option::as_deref);
    // A repository without a manifest has no version yet.
    let Some(manifest) = text("Cargo.toml") else { return Vec::new() };
    let Some(changelog) = text(CHANGELOG) else {
        return vec![Problem::file(CHANGELOG, "is missing")];
    };
    let manifest: Option<toml::Table> = manifest.parse().ok();
    let version = manifest
        .as_ref()
        .and_then(|it| it.get("workspace")?.get("package")?.get("version")?.as_str());
    let mut problems = Vec::new();
    let headings: Vec<(usize, &str)> = changelog
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, line.strip_prefix("## ")?)))
        .collect();
    if headings.first().is_none_or(|(_, heading)| *heading != "[Unreleased]") {
        problems.push(Problem::file(CHANGELOG, "`## [Unreleased]` is not the first section"));
    }
    let mut newer: Option<[u64; 3]> = None;
    for (line, heading) in headings.iter().filter(|(_, heading)| *heading != "[Unreleased]") {
        let Some((number, parts)) = release(heading) else {
            let what = format!("`{heading}` is not like `[1.2.3] - 2026-11-22`");
            problems.push(Problem::line(CHANGELOG, *line, what));
            continue;
        };
        match newer {
            None if Some(number) != version => {
                let version = version.unwrap_or("not there");
                let what =
                    format!("the newest release is {number} and Cargo.toml's version {version}");
                problems.push(Problem::line(CHANGELOG, *line, what));
            }
            Some(newer) if newer <= parts => {
                problems.push(Problem::line(
                    CHANGELOG,
                    *line,
                    format!("{number} is not older than the one above"),
                ));
            }
            _ => {}
        }
        newer = Some(parts);
    }
    if newer.is_none() {
        problems.push(Problem::file(CHANGELOG, "has no release"));
    }
    problems
}

/// The version of a heading with a date, as text and as numbers.
fn release(heading: &str) -> Option<(&str, [u64; 3])> {
    let (number, date) = heading.strip_prefix('[')?.split_once("] - ")?;
    let parts: Vec<u64> = number.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    let dated: Vec<&str> = date.split('-').collect();
    let is_date = matches!(dated[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2));
    Some((number, parts.try_into().ok().filter(|_| is_date)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    fn hold(changelog: &str, expect: &[&str]) {
        let manifest = "[workspace.package]\nversion = \"0.2.0\"\n";
        check(&CHECK, &Layout::of(&[("Cargo.toml", manifest), (CHANGELOG, changelog)]), expect);
    }

    #[test]
    fn the_newest_release_is_the_version() {
        hold("## [Unreleased]\n- a\n## [0.2.0] - 2026-11-22\n- b\n## [0.1.0] - 2026-11-01\n", &[]);
        hold(
            "## [Unreleased]\n## [0.1.0] - 2026-11-22\n",
            &["CHANGELOG.md:2: the newest release is 0.1.0 and Cargo.toml's version 0.2.0"],
        );
        hold(
            "## [0.2.0] - 2026-11-22\n",
            &["CHANGELOG.md: `## [Unreleased]` is not the first section"],
        );
        hold("## [Unreleased]\n", &["CHANGELOG.md: has no release"]);
        hold(
            "## [Unreleased]\n## [0.2.0] - 2026-11-22\n## 0.1.9\n## [0.2.0] - 2026-11-01\n",
            &[
                "CHANGELOG.md:3: `0.1.9` is not like `[1.2.3] - 2026-11-22`",
                "CHANGELOG.md:4: 0.2.0 is not older than the one above",
            ],
        );
    }
}
