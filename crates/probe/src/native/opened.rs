//! Determines which of the files that the loader refuses an import of their package opens: modules are imported by
//! name, and a library is opened because a module needs it, or because Python code that runs at import names it.

use crate::Source;
use crate::env::answers::{Answers, Trace};
use crate::env::imports::{self, ImportedFiles};
use crate::native::Fnv;
use facts::{Elf, NativeFile, PyEnv};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

/// Fills in [`Elf::opened_by`] of files that the loader refuses.
pub(super) fn fill(source: &Source, answers: &mut Answers, env: &mut PyEnv) {
    let refused = |file: &NativeFile| file.elf.as_ref().is_some_and(in_trouble);
    let doubtful: Vec<&NativeFile> = env.native_files.iter().filter(|file| refused(file)).collect();
    if doubtful.is_empty() {
        return;
    }
    let needed_by = needed_by(&env.native_files);
    let mut opened: BTreeMap<String, String> = BTreeMap::new();
    let mut packages: BTreeMap<(&str, &str), Vec<&NativeFile>> = BTreeMap::new();
    for file in doubtful {
        if let Some(asker) = needed_by.get(file.path.as_str()) {
            opened.insert(file.path.clone(), (*asker).to_owned());
        } else if let Some(place) = package_of(env, file) {
            packages.entry(place).or_default().push(file);
        }
    }
    for ((site, package), files) in packages {
        let site = Path::new(site);
        let mut what = Fnv::default();
        for file in &files {
            what.write(file.path.as_bytes());
            what.word(file.elf.as_ref().and_then(|elf| elf.module).map_or(2, u64::from));
        }
        let question = format!(
            "which files an import opens, {:016x} of {}",
            what.0,
            site.join(package).display()
        );
        opened.extend(answers.answer(source, site, &question, |trace| {
            opened_in(source, site, package, files, trace)
        }));
    }
    for file in &mut env.native_files {
        if let (Some(elf), Some(opened_by)) = (file.elf.as_mut(), opened.remove(&file.path)) {
            elf.opened_by = Some(opened_by);
        }
    }
}

/// Which of a package's files its Python code opens, each with the file that does.
fn opened_in(
    source: &Source,
    site: &Path,
    package: &str,
    mut files: Vec<&NativeFile>,
    trace: &mut Trace,
) -> BTreeMap<String, String> {
    let mut opened = BTreeMap::new();
    // A library named within a function is opened only if that function is called.
    let mut within: Vec<(&NativeFile, String, String)> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    imports::walk(source, site, package, trace, &mut |reached| {
        let by = || reached.path.display().to_string();
        files.retain(|file| match takes(reached, file) {
            Some(LibraryUse::Always) => {
                opened.insert(file.path.clone(), by());
                false
            }
            Some(LibraryUse::Within(function)) => {
                within.push((*file, function.to_owned(), by()));
                true
            }
            None => true,
        });
        texts.push(reached.text.to_owned());
        !files.is_empty()
    });
    for (file, function, by) in within {
        if is_called(&texts, &function, &mut BTreeSet::new()) {
            opened.entry(file.path.clone()).or_insert(by);
        }
    }
    opened
}

pub(super) fn in_trouble(elf: &Elf) -> bool {
    elf.missing_symbols_total > 0
        || elf.executable_stack
        || !elf.missing_versions.is_empty()
        || elf.needed.iter().any(|needed| needed.path.is_none())
}

/// Whether an import statement can open it.
fn by_name(file: &NativeFile) -> bool {
    match file.elf.as_ref().and_then(|elf| elf.module) {
        Some(module) => module,
        None => !file.name().starts_with("lib"),
    }
}

/// The transitively needed files of modules, each with one that needs it.
fn needed_by(files: &[NativeFile]) -> HashMap<&str, &str> {
    let by_path: HashMap<&str, &NativeFile> =
        files.iter().map(|file| (file.path.as_str(), file)).collect();
    let mut found: HashMap<&str, &str> = HashMap::new();
    let mut pending: VecDeque<&NativeFile> = files.iter().filter(|file| by_name(file)).collect();
    while let Some(file) = pending.pop_front() {
        let needed = file.elf.iter().flat_map(|elf| &elf.needed);
        for path in needed.filter_map(|needed| needed.path.as_deref()) {
            if let Some(next) = by_path.get(path)
                && !found.contains_key(path)
            {
                found.insert(path, &file.path);
                pending.push_back(next);
            }
        }
    }
    found
}

/// The site-packages folder of a file, and its package there.
fn package_of<'a>(env: &'a PyEnv, file: &'a NativeFile) -> Option<(&'a str, &'a str)> {
    let site = env.site_packages.iter().find(|site| Path::new(&file.path).starts_with(site))?;
    let rest = file.path.get(site.len()..)?.trim_start_matches('/');
    rest.split_once('/').map(|(package, _)| (site.as_str(), package))
}

/// How a Python file opens a library.
enum LibraryUse<'a> {
    /// Whenever it runs.
    Always,
    /// In this function, if it is called.
    Within(&'a str),
}

/// Whether a Python file imports a module or names a library.
fn takes<'a>(reached: &ImportedFiles<'a>, file: &NativeFile) -> Option<LibraryUse<'a>> {
    let stem = file.stem();
    let path = Path::new(&file.path).with_file_name(stem);
    if reached.targets.contains(&path) {
        return Some(LibraryUse::Always);
    }
    let begins = |at: usize| reached.text[..at].ends_with(['"', '\'', '/']);
    let named = |name: &str, ends: &[char]| {
        let places = reached.text.match_indices(name).map(|(at, _)| at);
        let places: Vec<Option<&str>> = places
            .filter(|at| begins(*at) && reached.text[at + name.len()..].starts_with(ends))
            .map(|at| function_around(reached.text, at))
            .collect();
        match places.contains(&None) {
            true => Some(LibraryUse::Always),
            false => places.first().copied().flatten().map(LibraryUse::Within),
        }
    };
    // `f"libtorchcodec_core{major}"`: one of several builds, selected by number.
    let numbered = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    // A quoted plain word is as often an option or a title as a module of that name (CuPy's "jitify").
    let plain = file.elf.as_ref().is_some_and(|elf| elf.module == Some(true))
        && stem.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let ends: &[char] = if plain { &['.'] } else { &['"', '\'', '.'] };
    named(stem, ends).or_else(|| {
        (numbered.len() > 3 && numbered != stem).then(|| named(numbered, &['{'])).flatten()
    })
}

/// The indentation of a line.
pub(super) fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The function around an offset in a Python file, by indentation.
fn function_around(text: &str, at: usize) -> Option<&str> {
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let mut depth = indent(text[begin..].lines().next().unwrap_or_default());
    for line in text[..begin].lines().rev().filter(|line| !line.trim().is_empty()) {
        let (own, words) = (indent(line), line.trim_start());
        if depth == 0 {
            break;
        }
        if own >= depth {
            continue;
        }
        let definition = words.strip_prefix("async ").unwrap_or(words).strip_prefix("def ");
        if let Some(definition) = definition {
            return definition.split('(').next();
        }
        // The last line of a multi-line signature has the indentation of its first.
        depth = if words.starts_with(')') { own + 1 } else { own };
    }
    None
}

/// Whether an offset is in a `try` whose `except` catches everything, or the exceptions that the file itself defines for a failed load
/// (xformers), and does not raise: failures there are tolerated.
fn is_caught(text: &str, at: usize) -> bool {
    let filled = |line: &&str| !line.trim().is_empty();
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let mut depth = indent(text[begin..].lines().next().unwrap_or_default());
    for line in text[..begin].lines().rev().filter(filled) {
        let own = indent(line);
        if depth == 0 {
            break;
        }
        if own >= depth {
            continue;
        }
        depth = own;
        if line.trim_start().starts_with("try:") {
            let after = text[begin..].lines().filter(filled);
            let mut handler = after.skip_while(|line| indent(line) > own);
            let handles = handler.next().is_some_and(|line| {
                catches_everything(line.trim_start()) || catches_own(text, line.trim_start())
            });
            let mut body = handler.take_while(|line| indent(line) > own);
            return handles && body.all(|line| !line.trim_start().starts_with("raise"));
        }
    }
    false
}

/// Whether an offset assigns to a variable (`path = find_library()`) that later lines first pass to a function within a
/// `try` that catches everything (as onnxruntime registers its CUDA provider): the function found a library, and
/// opening it may fail.
fn is_checked_before_use(text: &str, at: usize) -> bool {
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let Some(variable) = text[begin..at].trim().strip_suffix('=').map(str::trim_end) else {
        return false;
    };
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if variable.is_empty() || !variable.chars().all(word) {
        return false;
    }
    let depth = indent(text[begin..].lines().next().unwrap_or_default());
    let mut place = begin;
    for line in text[begin..].split_inclusive('\n') {
        let start = place;
        place += line.len();
        if start == begin || line.trim().is_empty() {
            continue;
        }
        if indent(line) < depth {
            return false;
        }
        let mut uses = line.match_indices(variable).map(|(at, _)| at);
        let passed = uses.any(|at| {
            let (before, after) = (&line[..at], &line[at + variable.len()..]);
            let whole = !before.ends_with(word) && !after.starts_with(word);
            whole && before.rfind('(').is_some_and(|open| before[..open].ends_with(word))
        });
        if passed {
            return is_caught(text, start + indent(line));
        }
    }
    false
}

/// Whether it is an `except` line that catches everything.
fn catches_everything(line: &str) -> bool {
    let caught = line.strip_prefix("except").and_then(|rest| rest.split(':').next());
    let caught = caught.map(|caught| caught.split(" as ").next().unwrap_or_default().trim());
    matches!(caught, Some("" | "Exception" | "BaseException"))
}

/// Whether it is the line of an `except` for exceptions that the file defines.
fn catches_own(text: &str, line: &str) -> bool {
    let caught = line.strip_prefix("except").and_then(|rest| rest.split(':').next());
    let caught = caught.map(|caught| caught.split(" as ").next().unwrap_or_default());
    let names = caught.into_iter().flat_map(|caught| caught.split(['(', ')', ',', ' ']));
    let mut names = names.filter(|name| !name.is_empty()).peekable();
    names.peek().is_some() && names.all(|name| text.contains(&format!("class {name}(")))
}

/// Whether a function of this name is called outside of functions, or in one that is called.
fn is_called<'a>(texts: &'a [String], function: &'a str, seen: &mut BTreeSet<&'a str>) -> bool {
    if !seen.insert(function) {
        return false;
    }
    texts.iter().any(|text| {
        let calls = text.match_indices(function).map(|(at, _)| at).filter(|at| {
            let before = text[..*at].chars().next_back();
            let whole = before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_');
            let defines = text[..*at].ends_with("def ");
            whole
                && !defines
                && text[at + function.len()..].starts_with('(')
                && !is_caught(text, *at)
                && !is_checked_before_use(text, *at)
        });
        let outer: Vec<Option<&str>> = calls.map(|at| function_around(text, at)).collect();
        outer.into_iter().any(|outer| outer.is_none_or(|outer| is_called(texts, outer, seen)))
    })
}
