//! Who imports whom, compared with ARCHITECTURE.md in both directions.

use super::{Check, Problem};
use crate::layout::Layout;
use std::collections::BTreeMap;

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) const CHECK: Check = Check {
    name: "edges",
    promise: "the rooms import exactly what the `edges` block of ARCHITECTURE.md says",
    hint: "change the import, or the block and the sentence beside it, after talking about why",
    find,
};

/// A room's line in the document and what it may import.
struct Documented {
    line: usize,
    rooms: Vec<String>,
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
            problems.push(Problem::file(DOCUMENT, format!("room `{}` is absent", package.name)));
            continue;
        };
        for room in package.rooms.iter().filter(|room| !entry.rooms.contains(room)) {
            let what = format!("`{} -> {room}` exists and is not documented", package.name);
            problems.push(Problem::line(DOCUMENT, entry.line, what));
        }
        for room in entry.rooms.iter().filter(|room| !package.rooms.contains(room)) {
            let what = format!("`{} -> {room}` is documented and does not exist", package.name);
            problems.push(Problem::line(DOCUMENT, entry.line, what));
        }
    }
    for (name, entry) in &documented {
        if layout.packages.iter().all(|package| package.name != *name) {
            problems.push(Problem::line(
                DOCUMENT,
                entry.line,
                format!("there is no room `{name}`"),
            ));
        }
    }
    problems
}

/// Reads the block fenced as `edges`: one `room -> room room ...` per line, `room -> none` for a room without imports.
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
        let Some((room, rooms)) = line.split_once("->") else {
            let what = format!("wanted `room -> room room`, got `{line}`");
            return Err(Problem::line(DOCUMENT, index + 1, what));
        };
        let rooms =
            rooms.split_whitespace().filter(|room| *room != "none").map(str::to_owned).collect();
        let entry = Documented { line: index + 1, rooms };
        if documented.insert(room.trim().to_owned(), entry).is_some() {
            let what = format!("room `{}` stands twice", room.trim());
            return Err(Problem::line(DOCUMENT, index + 1, what));
        }
    }
    Err(Problem::file(DOCUMENT, "the ```edges block is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    const TEXT: &str = "# House\n```edges\nfacts -> none\nprobe -> facts\n```\n";

    #[test]
    fn what_is_documented_and_exists_passes() {
        let layout =
            Layout::of(&[(DOCUMENT, TEXT)]).with_packages(&[("facts", &[]), ("probe", &["facts"])]);
        check(&CHECK, &layout, &[]);
    }

    #[test]
    fn both_directions_fail() {
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
                "ARCHITECTURE.md: room `bench` is absent",
            ],
        );
        let layout = Layout::of(&[(DOCUMENT, TEXT)]).with_packages(&[("facts", &[])]);
        check(&CHECK, &layout, &["ARCHITECTURE.md:4: there is no room `probe`"]);
    }

    #[test]
    fn a_document_that_cannot_be_read_fails() {
        for (text, expect) in [
            ("# House\n", "ARCHITECTURE.md: has no block fenced as ```edges"),
            ("```edges\nfacts -> none\n", "ARCHITECTURE.md: the ```edges block is not closed"),
            ("```edges\nfacts\n```", "ARCHITECTURE.md:2: wanted `room -> room room`, got `facts`"),
            ("```edges\na -> b\na -> c\n```", "ARCHITECTURE.md:3: room `a` stands twice"),
        ] {
            check(&CHECK, &Layout::of(&[(DOCUMENT, text)]), &[expect]);
        }
    }
}
