//! Which modules of an environment can be imported, each tried in a process of its own.

use super::MendError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that imports.
const PROGRAM: &str = include_str!("imports.py");

/// How far the imports may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest time of one import.
    pub seconds: u64,
    /// Longest time of all.
    pub total: u64,
    /// Memory one import may allocate.
    pub bytes: u64,
    /// Imports at once.
    pub jobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        Self { seconds: 180, total: 900, bytes: 16 << 30, jobs: jobs.min(4) }
    }
}

/// One module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Import {
    /// The package that brings it.
    pub package: String,
    /// Its name.
    pub module: String,
    /// Why it cannot be imported; `None` where it can.
    pub error: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

/// What came of the imports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imports {
    by_module: BTreeMap<String, Import>,
    /// Modules for which there was no time.
    pub left: usize,
}

/// A module that worked, or of which nobody knew, and does not work now.
#[derive(Debug, Clone, PartialEq)]
pub struct Worse {
    /// The package that brings it.
    pub package: String,
    /// The module.
    pub module: String,
    /// What it says now.
    pub error: String,
}

#[derive(Serialize)]
struct Asked<'a> {
    packages: &'a BTreeSet<String>,
    modules: &'a [String],
    seconds: u64,
    total: u64,
    bytes: u64,
    jobs: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Import(Import),
    Left { left: usize },
}

impl Imports {
    /// Imports the modules of these packages, and further ones by name, with the environment's interpreter, isolated. `compiled` keeps byte code apart
    /// from the environment, which is not written to.
    ///
    /// # Errors
    /// Where the interpreter does not run.
    pub fn of(
        python: &Path,
        packages: &BTreeSet<String>,
        modules: &[String],
        limits: Limits,
        compiled: &Path,
    ) -> Result<Self, MendError> {
        let failed = |reason: String| MendError::Interpreter {
            python: python.display().to_string(),
            reason,
        };
        let Limits { seconds, total, bytes, jobs } = limits;
        let asked =
            serde_json::to_string(&Asked { packages, modules, seconds, total, bytes, jobs });
        let asked = asked.map_err(|error| failed(error.to_string()))?;
        let mut program = Command::new(python)
            .args(["-I", "-X"])
            .arg(format!("pycache_prefix={}", compiled.display()))
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut stdin) = program.stdin.take() {
            // A program that ended at once says why on its standard error.
            let _ = stdin.write_all(asked.as_bytes());
        }
        let mut found = Self::default();
        let mut complete = false;
        let lines = program.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Line::Import(import)) => {
                    found.by_module.insert(import.module.clone(), import);
                }
                Ok(Line::Left { left }) => (found.left, complete) = (left, true),
                Err(_) => {}
            }
        }
        let ended = program.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if !complete {
            let said = String::from_utf8_lossy(&ended.stderr);
            let last = said.trim().lines().last().unwrap_or_default();
            return Err(failed(format!("{}: {last}", ended.status)));
        }
        Ok(found)
    }

    /// Every module that was tried.
    pub fn all(&self) -> impl Iterator<Item = &Import> {
        self.by_module.values()
    }

    /// The modules that cannot be imported.
    pub fn broken(&self) -> impl Iterator<Item = &Import> {
        self.all().filter(|import| import.error.is_some())
    }

    /// The modules that can be imported, but those of packages that are meant to go.
    pub fn working(&self, going: &BTreeSet<String>) -> Vec<String> {
        let works = self.all().filter(|it| it.error.is_none() && !going.contains(&it.package));
        works.map(|import| import.module.clone()).collect()
    }

    /// What no longer works. A module that was not tried before is held to have worked.
    pub fn worse_than(&self, before: &Self) -> Vec<Worse> {
        let was_broken = |module: &str| {
            before.by_module.get(module).is_some_and(|import| import.error.is_some())
        };
        let worse = self.broken().filter(|import| !was_broken(&import.module));
        worse
            .map(|import| Worse {
                package: import.package.clone(),
                module: import.module.clone(),
                error: import.error.clone().unwrap_or_default(),
            })
            .collect()
    }

    /// The modules that did not work before and do now.
    pub fn mended(&self, before: &Self) -> Vec<String> {
        let works =
            |module: &str| self.by_module.get(module).is_some_and(|import| import.error.is_none());
        before.broken().map(|it| it.module.clone()).filter(|module| works(module)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cuda-python 12.6 has `cuda/__init__.py`; from 12.8 on `cuda` is a namespace that two packages share. That is no damage; a
    /// package whose file is gone is.
    #[test]
    fn a_namespace_is_no_package_whose_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv", "--without-pip"]).arg(folder.path());
        assert!(venv.status().unwrap().success());
        let lib = std::fs::read_dir(folder.path().join("lib")).unwrap().next().unwrap().unwrap();
        let site = lib.path().join("site-packages");
        let write = |path: &str, text: &str| {
            let path = site.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let first = "cuda/bindings/__init__.py,,\ncuda/bindings/utils/x.py,,\n";
        write("cuda_bindings-13.4.4.dist-info/RECORD", first);
        write("cuda/bindings/__init__.py", "");
        write("torn-1.0.dist-info/RECORD", "torn/__init__.py,,\ntorn/part.py,,\n");
        write("torn/part.py", "");
        let modules = ["cuda", "cuda.bindings", "torn", "nobodys"].map(str::to_owned);
        std::fs::create_dir(site.join("nobodys")).unwrap();
        let python = folder.path().join("bin/python");
        let limits = Limits { seconds: 60, ..Limits::default() };
        let none = BTreeSet::new();
        let found = Imports::of(&python, &none, &modules, limits, &folder.path().join("compiled"));
        let found = found.unwrap();
        let broken: Vec<(&str, &str)> = found
            .broken()
            .map(|it| (it.module.as_str(), it.error.as_deref().unwrap_or_default()))
            .collect();
        let gone = "ImportError: its __init__.py is gone";
        assert_eq!(broken, [("nobodys", gone), ("torn", gone)]);
    }
}
