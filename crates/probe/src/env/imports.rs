//! Finds the Python files that run whenever a package is imported, from import statements outside of any block.
//! Statements within `try`, `if` or a function may not run, and are ignored.

use super::answers::{Answers, Trace};
use super::record::Record;
use crate::{EnvOptions, Source};
use facts::PyEnv;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// torch, one of the largest packages, imports about 900 of its files.
const MAX_FILES: usize = 1500;

/// One import statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// Leading dots of `from ..a import b`.
    level: usize,
    /// `a.b`; empty in `from . import b`.
    pub(crate) module: String,
    /// Names after `import` in a `from` statement, which may be modules.
    names: Vec<String>,
}

/// A file that an import of its package runs.
pub(crate) struct ImportedFiles<'a> {
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
    /// Its import statements, including those of other packages.
    pub(crate) imports: &'a [Import],
    /// Modules of the package that these may import, as paths without a suffix.
    pub(crate) targets: &'a [PathBuf],
}

/// Visits the files that an import of a package runs, until the visitor returns false. Dependencies are added to the
/// trace.
pub(crate) fn walk(
    source: &Source,
    site: &Path,
    package: &str,
    trace: &mut Trace,
    visit: &mut dyn FnMut(&ImportedFiles<'_>) -> bool,
) {
    let Some(start) = module(source, &site.join(package), trace) else { return };
    let mut seen = BTreeSet::from([start.clone()]);
    let mut pending = vec![start];
    while let Some(path) = pending.pop() {
        let Ok(bytes) = source.read(&path) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let own = path.parent().unwrap_or(site);
        let imports = parse(&text);
        let targets: Vec<PathBuf> =
            imports.iter().flat_map(|import| import.targets(site, package, own)).collect();
        let reached =
            ImportedFiles { path: &path, text: &text, imports: &imports, targets: &targets };
        if !visit(&reached) || seen.len() > MAX_FILES {
            return;
        }
        for target in targets.iter().filter_map(|target| module(source, target, trace)) {
            if seen.insert(target.clone()) {
                pending.push(target);
            }
        }
    }
}

/// The modules that the import statement on one line may load, with any indentation and in any package, as paths
/// without a suffix.
pub(crate) fn targets_of_statement(statement: &str, site: &Path, own: &Path) -> Vec<PathBuf> {
    let mut imports = Vec::new();
    statements(statement.trim(), 0, &mut imports);
    let targets = imports.iter().flat_map(|import| {
        let package = import.module.split('.').next().unwrap_or_default();
        import.targets(site, package, own)
    });
    targets.collect()
}

impl Import {
    /// The modules of the package that it may load, as paths without a suffix.
    fn targets(&self, site: &Path, package: &str, own: &Path) -> Vec<PathBuf> {
        let base = match self.level {
            0 if self.module.split('.').next() == Some(package) => Some(site),
            0 => None,
            // One dot is the folder of the file: that of the package, also for its `__init__.py`.
            level => own.ancestors().nth(level - 1).filter(|folder| *folder != site),
        };
        let Some(base) = base.filter(|base| base.starts_with(site)) else { return Vec::new() };
        let mut at = base.to_path_buf();
        let mut targets = Vec::new();
        for part in self.module.split('.').filter(|part| !part.is_empty()) {
            at.push(part);
            targets.push(at.clone());
        }
        targets.extend(self.names.iter().map(|name| at.join(name)));
        targets
    }
}

/// Searches packages for the import statements that run whatever happens, with one cache for all of them.
#[derive(Debug)]
pub struct ImportSearch<'a> {
    source: &'a Source,
    answers: Answers,
}

impl<'a> ImportSearch<'a> {
    /// A search with the cache of earlier runs.
    pub fn new(options: &'a EnvOptions) -> Self {
        Self { source: &options.source, answers: Answers::open(options.cache.as_deref()) }
    }

    /// The first file and line at which an import of a distribution's packages imports one of these modules.
    pub fn first(&mut self, env: &PyEnv, dist: &str, modules: &[String]) -> Option<String> {
        let info = Path::new(&env.dist(dist)?.path);
        let site = info.parent()?;
        let question = format!("import of {} by {}", modules.join(" "), info.display());
        let source = self.source;
        self.answers.answer(source, site, &question, |trace| {
            trace.insert(info.join("RECORD"));
            let record = Record::parse(&source.text(info.join("RECORD"))?);
            let tops = record.top_level.iter().filter(|top| !top.contains('-'));
            tops.map(|top| top.strip_suffix(".py").unwrap_or(top))
                .find_map(|package| import_in(source, site, package, modules, trace))
        })
    }

    /// Writes the cache.
    pub fn finish(self) {
        self.answers.keep();
    }
}

fn import_in(
    source: &Source,
    site: &Path,
    package: &str,
    modules: &[String],
    trace: &mut Trace,
) -> Option<String> {
    let mut found = None;
    walk(source, site, package, trace, &mut |reached| {
        let wanted = |import: &&Import| {
            let name = &import.module;
            let is_it = |module: &String| {
                name == module || name.strip_prefix(module).is_some_and(|it| it.starts_with('.'))
            };
            import.level == 0 && modules.iter().any(is_it)
        };
        found = reached
            .imports
            .iter()
            .find(wanted)
            .map(|import| format!("{}:{}", reached.path.display(), import.line));
        found.is_none()
    });
    found
}

/// The file of a module.
fn module(source: &Source, at: &Path, trace: &mut Trace) -> Option<PathBuf> {
    let package = at.join("__init__.py");
    let name = at.file_name()?.to_str()?;
    let file = [package, at.with_file_name(format!("{name}.py"))]
        .into_iter()
        .find(|file| source.is_file(file));
    // Another file could be added to this folder, or with the folder to its parent.
    trace.extend(at.parent().map(Path::to_path_buf));
    trace.extend(Some(at.to_path_buf()).filter(|at| source.is_dir(at)));
    trace.extend(file.clone());
    file
}

/// The import statements of a file at the start of a line and outside of strings.
pub(crate) fn parse(text: &str) -> Vec<Import> {
    let mut imports = Vec::new();
    let mut lines = text.lines().enumerate();
    // The quotes that end the current multi-line string.
    let mut string: Option<&str> = None;
    while let Some((index, line)) = lines.next() {
        if let Some(end) = string {
            if line.matches(end).count() % 2 == 1 {
                string = None;
            }
            continue;
        }
        let statement = line.starts_with("import ") || line.starts_with("from ");
        if !statement {
            string = ["\"\"\"", "'''"].into_iter().find(|quotes| {
                line.split('#').next().unwrap_or(line).matches(*quotes).count() % 2 == 1
            });
            continue;
        }
        let code = |line: &str| line.split('#').next().unwrap_or_default().trim_end().to_owned();
        let mut whole = code(line);
        let open = |text: &str| text.contains('(') && !text.contains(')');
        while open(&whole) || whole.ends_with('\\') {
            whole = whole.trim_end_matches('\\').to_owned();
            let Some((_, next)) = lines.next() else { break };
            whole.push(' ');
            whole.push_str(&code(next));
        }
        statements(&whole, index + 1, &mut imports);
    }
    imports
}

/// `import a.b as c, d` and `from ..a import (b as c, d)`.
fn statements(text: &str, line: usize, imports: &mut Vec<Import>) {
    let first = |word: &str| word.split_whitespace().next().unwrap_or_default().to_owned();
    let text = text.split(';').next().unwrap_or(text);
    if let Some(rest) = text.strip_prefix("import ") {
        imports.extend(
            rest.split(',').map(first).filter(|module| !module.is_empty()).map(|module| Import {
                line,
                level: 0,
                module,
                names: Vec::new(),
            }),
        );
        return;
    }
    let Some((module, names)) =
        text.strip_prefix("from ").and_then(|rest| rest.split_once(" import"))
    else {
        return;
    };
    let module = module.trim();
    let level = module.bytes().take_while(|byte| *byte == b'.').count();
    let names = names.trim().trim_start_matches('(').trim_end_matches(')');
    imports.push(Import {
        line,
        level,
        module: module[level..].trim().to_owned(),
        names: names.split(',').map(first).filter(|name| !name.is_empty()).collect(),
    });
}

#[cfg(test)]
mod tests {
    use super::{Trace, parse, walk};
    use crate::Source;

    #[test]
    fn statements_that_run_whatever_happens() {
        let text = "\
'''A text that says
import nothing
'''
import os, numpy as np  # twice
from . import _extension, ops
from ..base import (
    a,  # with a remark
    b as c,
)
from torchaudio.lib import \\
    x
try:
    import optional
except ImportError:
    pass
import_me = 1
from broken
";
        let found: Vec<(usize, usize, String, String)> = parse(text)
            .into_iter()
            .map(|it| (it.line, it.level, it.module, it.names.join(",")))
            .collect();
        let expect = [
            (4, 0, "os", ""),
            (4, 0, "numpy", ""),
            (5, 1, "", "_extension,ops"),
            (6, 2, "base", "a,b"),
            (10, 0, "torchaudio.lib", "x"),
        ];
        let expect = expect.map(|(line, level, module, names): (usize, usize, &str, &str)| {
            (line, level, module.to_owned(), names.to_owned())
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn files_that_an_import_runs() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("own/__init__.py", "from . import a\nfrom own.deep.b import thing\nimport other\n");
        write("own/a.py", "from .deep import b\n");
        write("own/deep/__init__.py", "");
        write("own/deep/b.py", "from ..c import x\nif 1:\n    from . import never\n");
        write("own/c.py", "from .... import outside\nimport own\n");
        write("own/deep/never.py", "");
        write("other.py", "");
        let mut seen = Vec::new();
        let mut trace = Trace::new();
        walk(&Source::live(), folder.path(), "own", &mut trace, &mut |reached| {
            seen.push(reached.path.strip_prefix(folder.path()).unwrap().display().to_string());
            true
        });
        seen.sort();
        assert_eq!(
            seen,
            ["own/__init__.py", "own/a.py", "own/c.py", "own/deep/__init__.py", "own/deep/b.py"]
        );
    }
}
