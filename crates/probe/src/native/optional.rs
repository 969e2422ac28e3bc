//! Determines which of the files that the loader refuses are optional: the distribution's Python code tries to load
//! them and handles the failure.

use super::opened::{in_trouble, indent};
use crate::Source;
use crate::env::answers::{Answers, Trace};
use crate::env::imports::targets_of_statement;
use crate::native::Fnv;
use facts::CompactCollect;
use facts::{NativeFile, PyEnv};
use memchr::memmem::Finder;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// vllm, one of the largest packages, has about 2,500 Python files.
const MAX_FILES: usize = 6000;

/// Fills in [`facts::Elf::optional_in`] of files that the loader refuses and no import opens.
pub(super) fn fill(source: &Source, answers: &mut Answers, env: &mut PyEnv) {
    let mut by_dist: BTreeMap<(String, String), Vec<&NativeFile>> = BTreeMap::new();
    for file in &env.native_files {
        let refused =
            file.elf.as_ref().is_some_and(|elf| in_trouble(elf) && elf.opened_by.is_none());
        let site = env.site_packages.iter().find(|site| Path::new(&file.path).starts_with(site));
        if let (true, Some(site), Some(dist)) = (refused, site, &file.dist) {
            by_dist.entry((site.clone(), dist.clone())).or_default().push(file);
        }
    }
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for ((site, dist), files) in by_dist {
        let root = Path::new(&site);
        let packages = packages_of(env, root, &dist);
        let record = env.dist(&dist).map(|dist| Path::new(&dist.path).join("RECORD"));
        let mut what = Fnv::default();
        files.iter().for_each(|file| what.write(file.path.as_bytes()));
        let question = format!("what {dist} in {site} works without, of {:016x}", what.0);
        found.extend(answers.answer(source, root, &question, |trace: &mut Trace| {
            // The files of a distribution change with its RECORD, and its folders if a file is added or removed
            // manually.
            trace.extend(record);
            trace.extend(packages.iter().map(|package| root.join(package)));
            optional_files(source, root, &packages, &files)
        }));
    }
    for file in &mut env.native_files {
        if let Some(elf) = file.elf.as_mut() {
            elf.optional_in = found.remove(&file.path);
        }
    }
}

/// The folders with compiled files of a distribution, directly below site-packages.
fn packages_of(env: &PyEnv, site: &Path, dist: &str) -> BTreeSet<String> {
    let mine = env.native_files.iter().filter(|file| file.dist.as_deref() == Some(dist));
    let inside = mine.filter_map(|file| Path::new(&file.path).strip_prefix(site).ok());
    let first = inside.filter_map(|path| {
        let mut parts = path.iter();
        Some(parts.next()?.to_str()?.to_owned()).filter(|_| parts.next().is_some())
    });
    first.filter(|first| !first.ends_with(".libs")).compact_set()
}

/// The files that Python code of these packages loads only in guarded attempts; each with one such attempt.
fn optional_files(
    source: &Source,
    site: &Path,
    packages: &BTreeSet<String>,
    files: &[&NativeFile],
) -> BTreeMap<String, String> {
    let mut sources: Vec<PathBuf> = Vec::new();
    let mut pending: Vec<PathBuf> = packages.iter().map(|package| site.join(package)).collect();
    while let Some(folder) = pending.pop() {
        for name in source.list(&folder) {
            let path = folder.join(&name);
            if name.ends_with(".py") {
                sources.push(path);
            } else if source.is_dir(&path) {
                pending.push(path);
            }
        }
    }
    sources.truncate(MAX_FILES);
    let stems: Vec<Finder<'_>> = files.iter().map(|file| Finder::new(file.stem())).collect();
    let found: Vec<(&NativeFile, bool, &PathBuf)> = sources
        .par_iter()
        .flat_map_iter(|path| {
            let text = source.text(path).unwrap_or_default();
            let found = files.iter().zip(&stems).flat_map(|(file, stem)| {
                let guards = attempts(&text, stem, site, path, file);
                guards.into_iter().map(|guard| (*file, guard, path))
            });
            found.collect::<Vec<_>>()
        })
        .collect();
    let mut guarded: BTreeMap<String, String> = BTreeMap::new();
    let mut required: BTreeSet<String> = BTreeSet::new();
    for (file, guard, path) in found {
        if guard {
            guarded.entry(file.path.clone()).or_insert_with(|| path.display().to_string());
        } else {
            required.insert(file.path.clone());
        }
    }
    guarded.retain(|file, _| !required.contains(file));
    guarded
}

/// The offsets at which a Python file loads a compiled file, each with whether its failure is handled.
fn attempts(
    text: &str,
    finder: &Finder<'_>,
    site: &Path,
    path: &Path,
    file: &NativeFile,
) -> Vec<bool> {
    let stem = file.stem();
    let module = Path::new(&file.path).with_file_name(stem);
    let own = path.parent().unwrap_or(site);
    let is_package = path.ends_with("__init__.py");
    let mut found = Vec::new();
    let mut last_line = usize::MAX;
    for at in finder.find_iter(text.as_bytes()) {
        let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let line = text[begin..].lines().next().unwrap_or_default();
        if begin == last_line {
            continue;
        }
        let named = text[..at].ends_with(['"', '\'', '/'])
            && text[at + stem.len()..].starts_with(['*', '.'])
            && line.contains(".so");
        let statement = statement_around(text, begin);
        let imported = statement
            .is_some_and(|statement| targets_of_statement(&statement, site, own).contains(&module));
        if named || imported {
            last_line = begin;
            found.push(is_handled(text, begin, is_package));
        }
    }
    found
}

/// The import statement around a line, joined into one line.
fn statement_around(text: &str, begin: usize) -> Option<String> {
    let is_import = |line: &str| {
        let line = line.trim_start();
        line.starts_with("import ") || line.starts_with("from ")
    };
    let first = text[begin..].lines().next().unwrap_or_default();
    let start = match is_import(first) {
        true => begin,
        false => {
            // A name within the parentheses of a statement that started some lines above.
            let above = text[..begin].rfind('(')?;
            let start = text[..above].rfind('\n').map_or(0, |end| end + 1);
            let open = !text[above..begin].contains(')');
            (open && is_import(&text[start..above])).then_some(start)?
        }
    };
    let mut whole = String::new();
    for line in text[start..].lines() {
        whole.push_str(line.split('#').next().unwrap_or_default().trim());
        whole.push(' ');
        let open = whole.contains('(') && !whole.contains(')');
        if !open && !whole.trim_end().ends_with('\\') {
            break;
        }
    }
    Some(whole.replace('\\', " "))
}

/// Whether a line is in a `try` with a handler for failed loads that does not raise and records the failure: it sets a
/// variable, or the `try` does after a successful load. The `__init__.py` of a package needs no record: handling the
/// failure means that the package can be imported without the file.
fn is_handled(text: &str, begin: usize, is_package: bool) -> bool {
    let filled = |line: &&str| !line.trim().is_empty();
    let mut depth = indent(text[begin..].lines().next().unwrap_or_default());
    let mut end = begin;
    while end > 0 {
        let start = text[..end - 1].rfind('\n').map_or(0, |at| at + 1);
        let line = text[start..end].trim_end();
        end = start;
        if line.is_empty() {
            continue;
        }
        let own = indent(line);
        if depth == 0 {
            return false;
        }
        if own >= depth {
            continue;
        }
        depth = own;
        if !line.trim_start().starts_with("try:") {
            continue;
        }
        let mut after = text[start..].lines().skip(1).filter(filled).peekable();
        let mut body = |lines: &mut Vec<String>| {
            while let Some(line) = after.peek()
                && indent(line) > own
            {
                lines.push(line.trim_start().to_owned());
                after.next();
            }
            after.next().map(str::to_owned)
        };
        let mut tried = Vec::new();
        let mut clause = body(&mut tried);
        while let Some(line) = clause.filter(|line| indent(line) == own) {
            let mut handler = Vec::new();
            let next = body(&mut handler);
            if catches_a_failed_load(line.trim_start()) {
                let raises = handler.iter().any(|line| line.starts_with("raise"));
                let records = tried.iter().chain(&handler).any(|line| assigns(line));
                return !raises && (is_package || records);
            }
            clause = next.filter(|line| line.trim_start().starts_with("except"));
        }
        return false;
    }
    false
}

/// Whether a line is an `except` for the exceptions of a failed load.
fn catches_a_failed_load(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("except") else { return false };
    let caught = rest.rsplit_once(':').map_or(rest, |(caught, _)| caught);
    let caught = caught.split(" as ").next().unwrap_or_default();
    let mut names = caught.split(['(', ')', ',', ' ']).filter(|name| !name.is_empty()).peekable();
    names.peek().is_none()
        || names.any(|name| matches!(name, "ImportError" | "Exception" | "BaseException"))
}

/// `available = False`, `module.kernels = None`.
fn assigns(line: &str) -> bool {
    line.split_once('=').is_some_and(|(name, value)| {
        let name = name.trim_end();
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        !name.is_empty() && name.chars().all(word) && !value.starts_with('=')
    })
}
