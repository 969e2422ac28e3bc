//! Interpreter and package folders of an environment, from its folder layout.

use super::ask::{self, Answers};
use super::discover::Candidate;
use super::manager;
use super::pyvenv_cfg::PyvenvCfg;
use crate::Source;
use facts::CompactSort;
use facts::{EnvKind, Fact, Interpreter};
use std::path::{Path, PathBuf};

/// The paths of an environment.
pub(super) struct Layout {
    pub(super) interpreter: Interpreter,
    pub(super) site_packages: Vec<PathBuf>,
    /// Version of the uv that created it.
    pub(super) uv: Option<String>,
    pub(super) problems: Vec<String>,
}

/// A `python3.12` folder of a `lib` folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PythonFolder {
    name: String,
    version: (u32, u32),
    /// `t` for the free-threaded build, as in `python3.13t`.
    flags: String,
    pypy: bool,
}

impl PythonFolder {
    fn parse(name: &str) -> Option<Self> {
        let (pypy, rest) = match name.strip_prefix("pypy") {
            Some(rest) => (true, rest),
            None => (false, name.strip_prefix("python")?),
        };
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let version =
            rest[..end].contains('.').then(|| crate::text::major_minor(&rest[..end]))??;
        Some(Self { name: name.to_string(), version, flags: rest[end..].to_string(), pypy })
    }

    /// Wheel ABI tag of CPython; PyPy's contains its own release, which is in no folder name.
    fn abi_tag(&self) -> Option<String> {
        let (major, minor) = self.version;
        // Until 3.7 every ABI tag ended in `m`, for pymalloc.
        let m = if (major, minor) < (3, 8) { "m" } else { "" };
        (!self.pypy).then(|| format!("cp{major}{minor}{m}{}", self.flags))
    }
}

/// Whether a prefix has its own Python 3 standard library.
pub(super) fn has_stdlib(source: &Source, prefix: &Path) -> bool {
    !stdlib_folders(source, prefix).is_empty()
}

fn stdlib_folders(source: &Source, prefix: &Path) -> Vec<PythonFolder> {
    let mut folders = Vec::new();
    for lib in ["lib", "lib64"] {
        for folder in python_folders(source, &prefix.join(lib)) {
            if source.is_file(prefix.join(lib).join(&folder.name).join("os.py"))
                && !folders.contains(&folder)
            {
                folders.push(folder);
            }
        }
    }
    folders
}

/// `python3.*` and `pypy3.*` in a `lib` folder.
fn python_folders(source: &Source, lib: &Path) -> Vec<PythonFolder> {
    let mut folders: Vec<PythonFolder> = source
        .list(lib)
        .iter()
        .filter_map(|name| PythonFolder::parse(name))
        .filter(|f| f.version.0 == 3)
        .collect();
    folders.compact_sort_by_key(|folder| folder.version);
    folders
}

impl Layout {
    pub(super) fn of(source: &Source, candidate: &Candidate) -> Self {
        let root = &candidate.root;
        let mut layout = Self {
            interpreter: Interpreter {
                executable: None,
                resolved: None,
                version: None,
                abi_tag: None,
                base: None,
            },
            site_packages: Vec::new(),
            uv: None,
            problems: Vec::new(),
        };
        if !source.is_dir(root) {
            return layout;
        }
        layout.find_executable(source, candidate);
        let answers = match candidate.kind {
            EnvKind::Venv => layout.of_venv(source, root),
            EnvKind::Conda | EnvKind::System => layout.of_prefix(source, candidate),
        };
        layout.fill_from(answers.or_else(|| candidate.answers.clone()), root);
        if layout.site_packages.is_empty() && candidate.problems.is_empty() {
            layout.problems.push(format!("{} has no lib/python3.*/site-packages", root.display()));
        }
        layout
    }

    fn find_executable(&mut self, source: &Source, candidate: &Candidate) {
        let in_root = || {
            ["bin/python", "bin/python3"].iter().map(|name| candidate.root.join(name)).find(
                |python| {
                    // A link to a missing interpreter is still the environment's python.
                    source.is_file(python) || source.is_link(python)
                },
            )
        };
        let Some(python) = candidate.python.clone().or_else(in_root) else {
            self.problems.push(format!("{} has no bin/python", candidate.root.display()));
            return;
        };
        self.interpreter.executable = Some(python.display().to_string());
        match source.canonical(&python) {
            Some(real) => self.interpreter.resolved = Some(real.display().to_string()),
            None => self.problems.push(format!(
                "{} is a link to an interpreter that no longer exists",
                python.display()
            )),
        }
    }

    /// A virtual environment: pyvenv.cfg and the lib folder have the facts. Otherwise the interpreter's answers are
    /// returned.
    fn of_venv(&mut self, source: &Source, root: &Path) -> Option<Answers> {
        let file = root.join("pyvenv.cfg");
        let cfg = match source.text(&file) {
            Some(text) => PyvenvCfg::parse(&text),
            None => {
                self.problems.push(format!("{} cannot be read", file.display()));
                PyvenvCfg::default()
            }
        };
        self.interpreter.base = cfg.home.clone();
        self.uv = cfg.uv.clone();
        if cfg.home.is_none() {
            self.problems.push(format!("{} has no `home` line", file.display()));
        }
        let mut folders = python_folders(source, &root.join("lib"));
        folders.retain(|folder| {
            source.is_dir(root.join("lib").join(&folder.name).join("site-packages"))
        });
        let said = cfg.version.as_deref().and_then(crate::text::major_minor);
        // The resolved python determines the package folders; pyvenv.cfg describes the state at creation.
        let runs = self.interpreter.resolved.as_deref().map(Path::new);
        let runs = runs.and_then(|real| PythonFolder::parse(real.file_name()?.to_str()?));
        let wanted = [runs.map(|folder| folder.version), said];
        let of = |version: (u32, u32)| folders.iter().find(|folder| folder.version == version);
        let chosen = wanted.into_iter().flatten().find_map(of).or(folders.last()).cloned();
        for other in folders.iter().filter(|folder| Some(*folder) != chosen.as_ref()) {
            self.problems.push(format!(
                "{} has packages for another Python than the environment's",
                root.join("lib").join(&other.name).display()
            ));
        }
        let version = cfg.version.map(|version| Fact::new(version, file.display().to_string()));
        self.interpreter.version = version;
        if let Some(folder) = &chosen {
            self.set_abi(folder, root);
            self.add(
                source,
                &[
                    root.join("lib").join(&folder.name).join("site-packages"),
                    root.join("lib64").join(&folder.name).join("site-packages"),
                ],
            );
        }
        if let (true, Some(folder), Some(home)) = (cfg.system_site_packages, &chosen, &cfg.home)
            && let Some(prefix) = Path::new(home).parent()
        {
            self.add(source, &user_site(source, &folder.name));
            self.add(source, &prefix_sites(prefix, &folder.name));
        }
        self.ask_if_unknown(source)
    }

    /// An installation with its own standard library.
    fn of_prefix(&mut self, source: &Source, candidate: &Candidate) -> Option<Answers> {
        let root = &candidate.root;
        let folders = stdlib_folders(source, root);
        // `/usr/bin/python3.12` identifies its standard library among several.
        let resolved = self.interpreter.resolved.as_deref().map(Path::new);
        let called = resolved.and_then(|real| PythonFolder::parse(real.file_name()?.to_str()?));
        let chosen = match (&folders[..], called) {
            ([only], _) => Some(only.clone()),
            (several, Some(called)) => {
                several.iter().find(|folder| folder.version == called.version).cloned()
            }
            _ => None,
        };
        if let Some(folder) = chosen {
            self.set_abi(&folder, root);
            self.interpreter.version = manager::conda_version(source, root, "python")
                .or_else(|| patchlevel(source, root, &folder.name));
            self.add(source, &user_site(source, &folder.name));
            self.add(source, &prefix_sites(root, &folder.name));
        }
        // Already queried, with or without an answer.
        let asked = candidate.answers.is_some() || !candidate.problems.is_empty();
        if asked { None } else { self.ask_if_unknown(source) }
    }

    fn ask_if_unknown(&mut self, source: &Source) -> Option<Answers> {
        if self.interpreter.version.is_some() && !self.site_packages.is_empty() {
            return None;
        }
        let python = PathBuf::from(
            self.interpreter.resolved.is_some().then(|| self.interpreter.executable.clone())??,
        );
        match ask::ask(source, &python) {
            Ok(answers) => Some(answers),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// Fills in facts from the interpreter's answers that the files did not have.
    fn fill_from(&mut self, answers: Option<Answers>, root: &Path) {
        let Some(answers) = answers else { return };
        let words = match &self.interpreter.executable {
            Some(python) => format!("{python} -I -S -c"),
            None => root.display().to_string(),
        };
        if self.interpreter.abi_tag.is_none() && answers.implementation == "cpython" {
            let version = answers.version.as_deref().and_then(crate::text::major_minor);
            self.interpreter.abi_tag = version.map(|(major, minor)| {
                Fact::new(format!("cp{major}{minor}{}", answers.abiflags), words.clone())
            });
        }
        if self.interpreter.version.is_none() {
            self.interpreter.version = answers.version.map(|version| Fact::new(version, words));
        }
        if self.site_packages.is_empty() {
            self.site_packages = answers.site_packages;
        }
    }

    fn set_abi(&mut self, folder: &PythonFolder, root: &Path) {
        let words = root.join("lib").join(&folder.name).display().to_string();
        self.interpreter.abi_tag = folder.abi_tag().map(|tag| Fact::new(tag, words));
    }

    /// Adds existing folders, each once after resolving links: lib64 is usually a link to lib.
    fn add(&mut self, source: &Source, folders: &[PathBuf]) {
        for folder in folders.iter().filter(|folder| source.is_dir(folder)) {
            let real = source.canonical(folder);
            if !self.site_packages.iter().any(|known| source.canonical(known) == real) {
                self.site_packages.push(folder.clone());
            }
        }
    }
}

/// Package folders of an installation, in the order of its sys.path. Debian and Ubuntu have additional ones.
fn prefix_sites(prefix: &Path, python: &str) -> Vec<PathBuf> {
    vec![
        prefix.join("local/lib").join(python).join("dist-packages"),
        prefix.join("lib/python3/dist-packages"),
        prefix.join("lib").join(python).join("dist-packages"),
        prefix.join("lib").join(python).join("site-packages"),
        prefix.join("lib64").join(python).join("site-packages"),
    ]
}

/// The user site of `pip install --user`, which precedes the installation's own.
fn user_site(source: &Source, python: &str) -> Vec<PathBuf> {
    if source.var("PYTHONNOUSERSITE").is_some() {
        return Vec::new();
    }
    let base = source.var("PYTHONUSERBASE").map(PathBuf::from);
    let base = base.or_else(|| Some(Path::new(source.var("HOME")?).join(".local")));
    base.map(|base| base.join("lib").join(python).join("site-packages")).into_iter().collect()
}

/// The full version in an installation's header file.
fn patchlevel(source: &Source, prefix: &Path, python: &str) -> Option<Fact<String>> {
    let file = prefix.join("include").join(python).join("patchlevel.h");
    let text = source.text(&file)?;
    let version = text.lines().find_map(|line| {
        let mut words = line.trim().strip_prefix("#define")?.split_whitespace();
        (words.next()? == "PY_VERSION")
            .then(|| Some(words.next()?.trim_matches('"').to_string()))?
    })?;
    Some(Fact::new(version, file.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::PythonFolder;

    #[test]
    fn folder_names() {
        let check = |name, expect: Option<((u32, u32), Option<&str>)>| {
            let got = PythonFolder::parse(name).map(|folder| (folder.version, folder.abi_tag()));
            assert_eq!(
                got,
                expect.map(|(version, tag)| (version, tag.map(str::to_string))),
                "{name}"
            );
        };
        check("python3.12", Some(((3, 12), Some("cp312"))));
        check("python3.13t", Some(((3, 13), Some("cp313t"))));
        check("python3.7", Some(((3, 7), Some("cp37m"))));
        check("pypy3.10", Some(((3, 10), None)));
        check("python3", None);
        check("python-apt", None);
    }
}
