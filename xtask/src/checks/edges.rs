//! The imports between crates equal those in ARCHITECTURE.md.

use super::{Check, Problem};
use crate::layout::Layout;
use std::collections::BTreeMap;

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) const CHECK: Check = Check {
    name: "edges",
    promise: "the crates import exactly those that the `edges` block of ARCHITECTURE.md lists",
    hint: "remove the import, or discuss it and change the block and the text next to it",
    find,
};

/// A crate's line number in the document and the crates that it may import.
struct Documented {
    line: usize,
    imports: Vec<String>,
}

fn find(layout: &Layout) -> Vec<Problem> {
    let Some(Some(text)) = layout.files.get(DOCUMENT) else {
        return vec![Problem::file(DOCUMENT, "is missing")];
    };
    let documented = match parse(text) {
        Ok(documented) => documented,
        Err(problem) => return vec![problem],
    };
    let mut problems = Vec::new();
    for package in &layout.packages {
        let Some(entry) = documented.get(&package.name) else {
            problems.push(Problem::file(DOCUMENT, format!("crate `{}` is absent", package.name)));
            continue;
        };
        for import in package.imports.iter().filter(|name| !entry.imports.contains(name)) {
            let what = format!("`{} -> {import}` exists and is not documented", package.name);
            problems.push(Problem::line(DOCUMENT, entry.line, what));
        }
        for import in entry.imports.iter().filter(|name| !package.imports.contains(name)) {
            let what = format!("`{} -> {import}` is documented and does not exist", package.name);
            problems.push(Problem::line(DOCUMENT, entry.line, what));
        }
    }
    for (name, entry) in &documented {
        if layout.packages.iter().all(|package| package.name != *name) {
            problems.push(Problem::line(
                DOCUMENT,
                entry.line,
                format!("there is no crate `{name}`"),
            ));
        }
    }
    problems
}

/// Parses the block fenced as `edges`: one `crate -> crate crate ...` per line, `crate -> none` for a crate without imports.
fn parse(text: &str) -> Result<BTreeMap<String, Documented>, Problem> {
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| line.trim() != "```edges");
    if lines.next().is_none() {
        return Err(Problem::file(DOCUMENT, "has no block fenced as ```edges"));
    }
    let mut documented = BTreeMap::new();
    for (index, line) in lines {
        if line.trim() == "```" {
            return Ok(documented);
        }
        let Some((name, imports)) = line.split_once("->") else {
            let what = format!("wanted `crate -> crate crate`, got `{line}`");
            return Err(Problem::line(DOCUMENT, index + 1, what));
        };
        let imports =
            imports.split_whitespace().filter(|name| *name != "none").map(str::to_owned).collect();
        let entry = Documented { line: index + 1, imports };
        if documented.insert(name.trim().to_owned(), entry).is_some() {
            let what = format!("crate `{}` has two lines", name.trim());
            return Err(Problem::line(DOCUMENT, index + 1, what));
        }
    }
    Err(Problem::file(DOCUMENT, "the ```edges block is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    const TEXT: &str = "# Crates\n```edges\nfacts -> none\nprobe -> facts\n```\n";

    #[test]
    fn documented_imports_that_exist_pass() {
        let layout =
            Layout::of(&[(DOCUMENT, TEXT)]).with_packages(&[("facts", &[]), ("probe", &["facts"])]);
        check(&CHECK, &layout, &[]);
    }

    #[test]
    fn undocumented_and_missing_imports_fail() {
        let layout = Layout::of(&[(DOCUMENT, TEXT)]).with_packages(&[
            ("facts", &["probe"]),
            ("probe", &[]),
            ("bench", &[]),
        ]);
        check(
            &CHECK,
            &layout,
            &[
                "ARCHITECTURE.md:3: `facts -> probe` exists and is not documented",
                "ARCHITECTURE.md:4: `probe -> facts` is documented and does not exist",
                "ARCHITECTURE.md: crate `bench` is absent",
            ],
        );
        let layout = Layout::of(&[(DOCUMENT, TEXT)]).with_packages(&[("facts", &[])]);
        check(&CHECK, &layout, &["ARCHITECTURE.md:4: there is no crate `probe`"]);
    }

    #[test]
    fn invalid_document_fails() {
        for (text, expect) in [
            ("# Crates\n", "ARCHITECTURE.md: has no block fenced as ```edges"),
            ("```edges\nfacts -> none\n", "ARCHITECTURE.md: the ```edges block is not closed"),
            (
                "```edges\nfacts\n```",
                "ARCHITECTURE.md:2: wanted `crate -> crate crate`, got `facts`",
            ),
            ("```edges\na -> b\na -> c\n```", "ARCHITECTURE.md:3: crate `a` has two lines"),
        ] {
            check(&CHECK, &Layout::of(&[(DOCUMENT, text)]), &[expect]);
        }
    }
}
