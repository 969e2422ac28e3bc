//! One machine with one Python environment: a recorded machine's files, changed and added to, which `probe` reads and
//! `diagnose` judges as `firstlight doctor` has it done, and whose libraries the dynamic loader can open.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod environment;
mod machine;

use crate::library::Library;
use facts::{Finding, Severity};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The path of the environment on its machine.
const VENV: &str = "home/user/venv";

pub(crate) struct World {
    folder: TempDir,
    processor: &'static str,
    /// The environment's folder and its Python version, such as `3.12`.
    venv: String,
    python: String,
    installer: &'static str,
    vars: Vec<(String, String)>,
    working_folder: PathBuf,
    /// Whether `--venv` names the environment; otherwise doctor searches for it.
    named: bool,
    libraries: Vec<(String, Library)>,
    model: Option<PathBuf>,
}

/// Doctor's report about a world.
pub(crate) struct Report {
    pub(crate) machine: facts::Machine,
    pub(crate) envs: Vec<facts::PyEnv>,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// The rules with findings of this severity, each once.
    pub(crate) fn rules(&self, severity: Severity) -> Vec<&str> {
        let found = self.findings.iter().filter(|finding| finding.severity == severity);
        let mut rules: Vec<&str> = found.map(|finding| finding.rule.as_str()).collect();
        rules.dedup();
        rules
    }
}

impl World {
    /// A recorded machine of crates/probe/fixtures with an empty venv of Python 3.12 and pip.
    pub(crate) fn on(machine: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../probe/fixtures");
        copy(&fixtures.join(machine), folder.path());
        let arm = ["gh200", "gb10", "jetson-orin", "m4-max"].contains(&machine);
        let world = Self {
            folder,
            processor: if arm { "aarch64" } else { "x86_64" },
            venv: VENV.to_owned(),
            python: "3.12".to_owned(),
            installer: "pip",
            vars: Vec::new(),
            working_folder: PathBuf::from("/"),
            named: true,
            libraries: Vec::new(),
            model: None,
        };
        world.python("3.12")
    }

    /// An x86-64 machine with Ubuntu 22.04 and this GPU.
    pub(crate) fn with_gpu(name: &str, capability: &str, driver: &str, cuda: &str) -> Self {
        Self::on("a10").gpu(name, capability).driver(driver, cuda)
    }

    fn disk(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path)
    }

    /// The environment variables, with `root` as the root of the recorded machine.
    fn values(&self, root: &str) -> impl Iterator<Item = (&str, String)> {
        self.vars.iter().map(move |(name, value)| (name.as_str(), value.replace('~', root)))
    }

    /// Runs the steps of `firstlight doctor`: probe reads the files, diagnose checks the facts.
    pub(crate) fn doctor(&self) -> Report {
        let source = probe::Source::recorded(self.folder.path()).unwrap().without_vars();
        let source = source.with_working_folder(&self.working_folder);
        let source =
            self.values("").fold(source, |source, (name, value)| source.with_var(name, &value));
        let venv = self.named.then(|| Path::new("/").join(&self.venv));
        let options = probe::EnvOptions { source, venv, cache: None, verify_files: false };
        let probe::Report { machine, mut envs } = probe::read(&options).unwrap();
        let mut imports = probe::ImportSearch::new(&options);
        for unmet in diagnose::unmet(&machine, &envs) {
            let env = &mut envs[unmet.env];
            let at = imports.first(env, &unmet.dist, &unmet.modules);
            env.unmet_imports.extend(at.map(|at| facts::UnmetImport {
                dist: unmet.dist,
                requirement: unmet.requirement,
                at,
            }));
        }
        for env in &mut envs {
            env.missing_names = probe::missing_names(&options, env);
        }
        let mut findings = diagnose::run(&machine, &envs);
        if let Some(path) = &self.model {
            let config = std::fs::read_to_string(path).unwrap();
            let source = "/home/user/model/config.json".to_owned();
            let options = diagnose::ModelOptions {
                source,
                context_tokens: 4096,
                sequences: 1,
                weights: None,
            };
            let model = diagnose::model(&config, &options, &machine, &envs, &findings);
            findings.extend(model.unwrap().1);
        }
        Report { machine, envs, findings }
    }

    /// The messages of this system's loader when a Python without packages opens the files of site-packages in this
    /// order.
    pub(crate) fn open(&self, files: &[&str]) -> Vec<String> {
        // The files are for the recorded machine's processor, so copies for this processor are opened.
        if files.is_empty() {
            return Vec::new();
        }
        for (path, library) in &self.libraries {
            std::fs::write(self.disk(path), library.bytes(std::env::consts::ARCH)).unwrap();
        }
        let program = "import ctypes, sys\nfor name in sys.argv[1:]:\n    try:\n        ctypes.CDLL(name)\n        \
                       print('opened')\n    except OSError as error:\n        print(error)\n";
        let mut command = Command::new("python3");
        command
            .args(["-I", "-S", "-c", program])
            .args(files.iter().map(|file| self.disk(&self.site(file))));
        let root = self.folder.path().join("root").display().to_string();
        let variable = self.values(&root).filter(|(name, _)| *name == "LD_LIBRARY_PATH");
        command.env_remove("LD_LIBRARY_PATH").envs(variable);
        let out = command.output().expect("a python3, which the corpus opens its libraries with");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&path).unwrap(), target).unwrap();
        } else if kind.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}
