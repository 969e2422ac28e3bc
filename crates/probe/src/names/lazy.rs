//! Finds the submodule that a lazy package loads for a name: transformers' `_LazyModule`, lazy_loader's `attach`,
//! huggingface_hub's `_attach`, and dictionaries used by `__getattr__`.

use super::exports::{Exports, Presence};
use super::lexer::{Kind, Lines, Token, lex};
use super::locate::{ModuleLocation, absolute};
use super::module::{Dynamic, NestedImport};
use super::reader;
use memchr::memmem::Finder;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Maximum depth of nested lazy packages.
const MAX_DEPTH: u32 = 6;

/// The names listed in the file of a lazy package.
pub(super) struct Lists {
    /// Submodules by listed name.
    submodules: HashMap<String, BTreeSet<String>>,
    /// Every import statement of the file: those for type checkers name the submodules too.
    imports: Vec<NestedImport>,
    /// Whether a function builds the lists from the package's files.
    from_files: bool,
}

impl Exports<'_> {
    /// The module that a lazy package imports for a name; `None` if that is not certain.
    pub(crate) fn lazily_loaded(&self, package: &str, name: &str) -> Option<String> {
        self.resolve(package, name, MAX_DEPTH)
    }

    fn resolve(&self, package: &str, name: &str, max_depth: u32) -> Option<String> {
        let located = self.modules.get(package);
        let ModuleLocation::Source { path, package: true, module } = &*located else { return None };
        if max_depth == 0 || module.dynamic != Dynamic::Listed || module.bound.contains(name) {
            return None;
        }
        let lists = self.lists_of(package, path);
        let mut candidates = lists.submodules.get(name).cloned().unwrap_or_default();
        candidates.extend(for_type_checkers(&lists.imports, package, name));
        if candidates.is_empty() && lists.from_files {
            candidates.extend(self.defining(package, name));
        }
        let mut loaded = candidates.into_iter().filter_map(|candidate| {
            match self.presence(&candidate, name) {
                Presence::Bound => Some(candidate),
                // A lazy package in a lazy package.
                Presence::Unknown => self.resolve(&candidate, name, max_depth - 1),
                _ => None,
            }
        });
        // An ambiguous name counts as not found.
        let first = loaded.next()?;
        loaded.all(|other| other == first).then_some(first)
    }

    fn lists_of(&self, package: &str, path: &Path) -> Rc<Lists> {
        if let Some(known) = self.lists.borrow().get(package) {
            return known.clone();
        }
        let text = self.modules.files().text(path).unwrap_or_default();
        let lines = lex(&text);
        let lists = Rc::new(Lists {
            submodules: listed(&lines, package),
            imports: reader::imports(&lines, self.modules.python()),
            from_files: text.contains("define_import_structure"),
        });
        self.lists.borrow_mut().insert(package.to_owned(), lists.clone());
        lists
    }

    /// The one module below a package with a line that defines a name.
    fn defining(&self, package: &str, name: &str) -> Option<String> {
        let finders = ["class ", "def "].map(|word| format!("\n{word}{name}"));
        let finders = finders.each_ref().map(|words| Finder::new(words.as_bytes()));
        let defines = |text: &[u8]| {
            finders.iter().any(|finder| {
                let ends = finder.find_iter(text).map(|at| at + finder.needle().len());
                let mut next = ends.map(|end| text.get(end).copied().unwrap_or(b'\n'));
                next.any(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
            })
        };
        let located = self.modules.get(package);
        let folder = located.source()?.0.parent()?;
        let texts = self.texts(package);
        let within =
            texts.par_iter().filter(|(file, text)| file.starts_with(folder) && defines(text));
        let found: Vec<&PathBuf> = within.map(|(file, _)| file).collect();
        let [file] = found.as_slice() else { return None };
        let relative = file.strip_prefix(folder).ok()?.to_str()?.strip_suffix(".py")?;
        let relative = relative.strip_suffix("/__init__").unwrap_or(relative);
        Some(format!("{package}.{}", relative.replace('/', ".")))
    }
}

/// Modules that provide the name in imports for type checkers.
fn for_type_checkers(imports: &[NestedImport], package: &str, name: &str) -> BTreeSet<String> {
    let same = imports.iter().filter(|it| it.name.as_deref() == Some(name));
    same.filter_map(|it| absolute(package, true, it.origin.level, &it.origin.module)).collect()
}

/// Submodules by the names that a file lists for them, in the common formats: `{"sub": ["name"]}`, `structure["sub"] =
/// ["name"]`, `structure["sub"].append("name")`, `{"name": "sub"}` and `{"name": ("sub", "name")}`.
fn listed(lines: &Lines<'_>, package: &str) -> HashMap<String, BTreeSet<String>> {
    let tokens = lines.all();
    let mut found: HashMap<String, BTreeSet<String>> = HashMap::new();
    let mut add = |name: &str, written: Option<&&str>| {
        if let Some(submodule) = written.and_then(|written| submodule(package, written)) {
            found.entry(name.to_owned()).or_default().insert(submodule);
        }
    };
    for (index, token) in tokens.iter().enumerate() {
        let Some(key) = literal(lines, token) else { continue };
        let word = |ahead: usize| tokens.get(index + ahead).map_or("", |token| lines.text(token));
        let values = match (word(1), word(2)) {
            (":", "[" | "(" | "{") => strings(lines, &tokens[index + 2..]),
            (":", _) => {
                tokens.get(index + 2).and_then(|it| literal(lines, it)).into_iter().collect()
            }
            ("]", "=" | "+=") => strings(lines, &tokens[index + 3..]),
            ("]", ".") if matches!(word(3), "append" | "extend") => {
                strings(lines, &tokens[index + 4..])
            }
            _ => continue,
        };
        add(key, values.first());
        // In `"name": ("sub", "name")` the name is not a submodule.
        values.iter().filter(|name| **name != key).for_each(|name| add(name, Some(&key)));
    }
    found
}

fn literal<'a>(lines: &Lines<'a>, token: &Token) -> Option<&'a str> {
    let text = Some(token).filter(|token| token.kind == Kind::Text)?;
    super::conditions::unquoted(lines.text(text))
}

/// The strings between a bracket and its end.
fn strings<'a>(lines: &Lines<'a>, tokens: &[Token]) -> Vec<&'a str> {
    let mut depth = 0_i32;
    let mut found = Vec::new();
    for token in tokens {
        depth += lines.nesting(token);
        found.extend(literal(lines, token));
        if depth <= 0 {
            break;
        }
    }
    found
}

/// A submodule in a list: `sub`, `.sub`, or absolute.
fn submodule(package: &str, written: &str) -> Option<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    if written.is_empty() || !written.chars().all(is_name) {
        return None;
    }
    let whole = written.strip_prefix(package).is_some_and(|rest| rest.starts_with('.'));
    Some(match whole {
        true => written.to_owned(),
        false => format!("{package}.{}", written.trim_start_matches('.')),
    })
}

#[cfg(test)]
mod tests {
    use super::{lex, listed};

    #[test]
    fn finds_submodules_in_every_list_format() {
        let check = |text: &str, expect: &[&str]| {
            let found = listed(&lex(text), "lib").remove("gone").unwrap_or_default();
            let found: Vec<String> = found.into_iter().collect();
            assert_eq!(found, expect, "{text}");
        };
        check("structure = {'a.b': ['x', 'gone'], 'c': ['y']}\n", &["lib.a.b"]);
        check("structure['a'] = [\n    'gone',\n]\n", &["lib.a"]);
        check("structure['a'].append('gone')\n", &["lib.a"]);
        check("structure['a'].extend(['x', 'gone'])\n", &["lib.a"]);
        check("structure['a'] += ['gone']\n", &["lib.a"]);
        check("names = {'gone': '.a', 'x': '.b'}\n", &["lib.a"]);
        check("names = {'gone': ('lib.a', 'gone')}\n", &["lib.a"]);
        check("names = {'a': 'gone'}\n", &["lib.a"]);
        check("names = {'a': {'gone', 'x'}}\n", &["lib.a"]);
        check("names = ['gone', 'x']\nother = {'a': ['x']}\n", &[]);
        check("names = {'gone': 'no module'}\n", &[]);
    }
}
