//! The modules of the ops and of their backends have no import cycles.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::{UsedPath, code_without_tests, is_test_file, used_paths};
use std::collections::{BTreeMap, VecDeque};

/// The crates that are checked.
const CRATES: &[&str] = &["ops", "ops-cpu", "ops-cuda", "backends"];

pub(super) const CHECK: Check = Check {
    name: "module_cycles",
    promise: "the modules of ops, ops-cpu, ops-cuda and backends import one another without cycles",
    hint: "move the shared items into a third module",
    find,
};

/// Importing module, imported module, and the path and line of the first import.
type Edges = BTreeMap<String, BTreeMap<String, (String, usize)>>;

fn find(layout: &Layout) -> Vec<Problem> {
    CRATES.iter().flat_map(|name| cycles(layout, &format!("crates/{name}/src/"))).collect()
}

fn cycles(layout: &Layout, source: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut edges = Edges::new();
    let root = layout.files.get(&format!("{source}lib.rs")).and_then(Option::as_deref);
    let exported = exported(root.unwrap_or_default());
    for (path, text) in layout.texts(&[".rs"]) {
        let Some(below) = path.strip_prefix(source) else { continue };
        let module: Vec<&str> = below.trim_end_matches(".rs").split('/').collect();
        if module == ["lib"] || is_test_file(path) {
            continue;
        }
        for used in used_paths(&code_without_tests(text)) {
            let Some(name) = from_root(&used, &module) else { continue };
            let target = if layout.files.contains_key(&format!("{source}{name}.rs")) {
                name
            } else if let Some(target) = exported.get(&name) {
                target.clone()
            } else {
                let what = format!("uses `{name}`, which the root of the crate defines");
                problems.push(Problem::line(path, used.line, what));
                continue;
            };
            if target != module[0] {
                let targets = edges.entry(module[0].to_owned()).or_default();
                targets.entry(target).or_insert_with(|| (path.to_owned(), used.line));
            }
        }
    }
    for (from, targets) in &edges {
        for (to, (path, line)) in targets {
            if let Some(back) = shortest_path(&edges, to, from) {
                let what = format!("`{from}` imports `{to}`, which imports {}", back.join(", "));
                problems.push(Problem::line(path, *line, what));
            }
        }
    }
    problems
}

/// The module of each name that the root of a crate imports or exports.
fn exported(root: &str) -> BTreeMap<String, String> {
    let paths = used_paths(&code_without_tests(root)).into_iter();
    let ends =
        paths.filter_map(|path| Some((path.names.last()?.clone(), path.names.first()?.clone())));
    ends.collect()
}

/// The first name of a path below the crate's root; `None` for a path into another crate or into the module itself.
fn from_root(used: &UsedPath, module: &[&str]) -> Option<String> {
    let ups = used.names.iter().take_while(|name| *name == "super").count();
    if used.names[0] == "crate" {
        return used.names.get(1).cloned();
    }
    // This is wrong for `super` in inline modules, which only tests have.
    (ups >= module.len()).then(|| used.names.get(ups).cloned()).flatten()
}

/// The modules on a shortest path along the edges, each in backticks.
fn shortest_path(edges: &Edges, from: &str, to: &str) -> Option<Vec<String>> {
    let mut reached: BTreeMap<&str, Option<&str>> = BTreeMap::from([(from, None)]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            let back = std::iter::successors(Some(at), |at| reached[at]);
            let mut names: Vec<String> = back.map(|name| format!("`{name}`")).collect();
            names.pop();
            names.reverse();
            return Some(names);
        }
        for next in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !reached.contains_key(next.as_str()) {
                reached.insert(next, Some(at));
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    const ROOT: &str = "mod a;\nmod b;\nmod c;\npub use c::{Deep, deep};\n";

    #[test]
    fn modules_without_cycles_pass() {
        let files = [
            ("crates/ops/src/lib.rs", ROOT),
            ("crates/ops/src/a.rs", "mod part;\nuse crate::b::B;\nuse crate::Deep;\n"),
            ("crates/ops/src/a/part.rs", "use super::A;\nuse super::super::b::B;\n"),
            ("crates/ops/src/b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }\n"),
            ("crates/ops/src/c.rs", "use std::fmt;\n// crate::a\n"),
            ("crates/probe/src/a.rs", "use crate::b::B;\n"),
            ("crates/probe/src/b.rs", "use crate::a::A;\n"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn reports_a_cycle_at_each_import() {
        let files = [
            ("crates/ops/src/lib.rs", ROOT),
            ("crates/ops/src/a.rs", "use crate::b::B;\n"),
            ("crates/ops/src/b.rs", "\nuse crate::{Deep, b::Own};\n"),
            ("crates/ops/src/c.rs", "mod part;\n"),
            ("crates/ops/src/c/part.rs", "use super::super::a::A;\nfn f() { crate::here() }\n"),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "crates/ops/src/c/part.rs:2: uses `here`, which the root of the crate defines",
                "crates/ops/src/a.rs:1: `a` imports `b`, which imports `c`, `a`",
                "crates/ops/src/b.rs:2: `b` imports `c`, which imports `a`, `b`",
                "crates/ops/src/c/part.rs:1: `c` imports `a`, which imports `b`, `c`",
            ],
        );
    }
}
