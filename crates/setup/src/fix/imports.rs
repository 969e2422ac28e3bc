//! Tests which modules of an environment can be imported, each in a separate process.

use super::FixError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that imports.
const PROGRAM: &str = include_str!("imports.py");

/// Limits of the imports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportLimits {
    /// Time limit of one import in seconds.
    pub seconds: u64,
    /// Time limit of all imports in seconds.
    pub total: u64,
    /// Memory limit of one import in bytes.
    pub bytes: u64,
    /// Parallel imports.
    pub jobs: usize,
}

impl Default for ImportLimits {
    fn default() -> Self {
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        Self { seconds: 180, total: 900, bytes: 16 << 30, jobs: jobs.min(4) }
    }
}

/// One module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Import {
    /// The package that contains it.
    pub package: String,
    /// Its name.
    pub module: String,
    /// Why it cannot be imported; `None` if it can.
    pub error: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The results of the imports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imports {
    by_module: BTreeMap<String, Import>,
    /// Modules that were not tried for lack of time.
    pub left: usize,
}

/// A module that worked before, or was not tested, and does not work now.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportRegression {
    /// The package that contains it.
    pub package: String,
    /// The module.
    pub module: String,
    /// The error.
    pub error: String,
}

#[derive(Serialize)]
struct ImportTestRequest<'a> {
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
    /// Imports the modules of these packages, and further ones by name, with the environment's isolated interpreter.
    /// `compiled` is a folder for byte code, so that nothing is written to the environment.
    ///
    /// # Errors
    /// If the interpreter does not run.
    pub fn of(
        python: &Path,
        packages: &BTreeSet<String>,
        modules: &[String],
        limits: ImportLimits,
        compiled: &Path,
    ) -> Result<Self, FixError> {
        let failed =
            |reason: String| FixError::Interpreter { python: python.display().to_string(), reason };
        let ImportLimits { seconds, total, bytes, jobs } = limits;
        let asked = serde_json::to_string(&ImportTestRequest {
            packages,
            modules,
            seconds,
            total,
            bytes,
            jobs,
        });
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
            // A program that ended immediately reports the reason on standard error.
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

    /// The modules that can be imported, except those of packages to be removed.
    pub fn working(&self, going: &BTreeSet<String>) -> Vec<String> {
        let works = self.all().filter(|it| it.error.is_none() && !going.contains(&it.package));
        works.map(|import| import.module.clone()).collect()
    }

    /// Modules that stopped working. A module that was not tried before is assumed to have worked.
    pub fn worse_than(&self, before: &Self) -> Vec<ImportRegression> {
        let was_broken = |module: &str| {
            before.by_module.get(module).is_some_and(|import| import.error.is_some())
        };
        let worse = self.broken().filter(|import| !was_broken(&import.module));
        worse
            .map(|import| ImportRegression {
                package: import.package.clone(),
                module: import.module.clone(),
                error: import.error.clone().unwrap_or_default(),
            })
            .collect()
    }

    /// Modules that did not work before and do now.
    pub fn mended(&self, before: &Self) -> Vec<String> {
        let works =
            |module: &str| self.by_module.get(module).is_some_and(|import| import.error.is_none());
        before.broken().map(|it| it.module.clone()).filter(|module| works(module)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cuda-python 12.6 has `cuda/__init__.py`; since 12.8 `cuda` is a namespace shared by two packages, which is not
    /// damage. A package whose file is missing is.
    #[test]
    fn a_namespace_package_has_no_missing_file() {
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
        let limits = ImportLimits { seconds: 60, ..ImportLimits::default() };
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
