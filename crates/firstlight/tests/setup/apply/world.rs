//! An environment, a server that has the files of a plan, and the command.

use crate::server::Server;
use crate::support;
use crate::tools::{done, python, uv, uv_cache, uv_command};
use crate::wheel::{File, Wheel};
use facts::{
    InstallPlan, PackageOrigin, PlanIndex, PlanTarget, PlannedFile, PlannedPackage, SCHEMA,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The tag of a wheel for every Python and system.
pub(crate) const ANY: &str = "py3-none-any";

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

/// A small package: a module that says its version, and a program that prints what the module says.
pub(crate) fn marker(version: &str) -> Wheel {
    let info = format!("marker-{version}.dist-info");
    Wheel::new("marker", version, ANY)
        .file("marker.py", format!("VERSION = {version:?}\ndef main(): print(VERSION)\n"))
        .file(&format!("{info}/entry_points.txt"), "[console_scripts]\nmarker = marker:main\n")
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { server: Server::start(), folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn venv(&self) -> PathBuf {
        self.path(".venv")
    }

    /// An environment as somebody made it, with a package in it.
    pub(crate) fn with_old(self, version: &str) -> Self {
        let wheel = marker(version).build().save(&self.path("made-by-hand"));
        let venv = self.venv();
        done(uv_command(&["venv", "--quiet", "--python", "python3"]).arg(&venv));
        let install = ["pip", "install", "--quiet", "--offline", "--python"];
        done(uv_command(&install).arg(venv.join("bin/python")).arg(wheel));
        self
    }

    /// The server has these files, and a plan wants them.
    pub(crate) fn plan(&self, files: &[File]) -> InstallPlan {
        for file in files {
            self.server.index("simple", file);
        }
        plan(&self.server, files)
    }

    /// Writes a plan as `firstlight plan` does.
    pub(crate) fn write(&self, plan: &InstallPlan) -> PathBuf {
        let path = self.path("plan.toml");
        std::fs::write(&path, setup::emit::emit(plan, "plan.toml").unwrap()).unwrap();
        path
    }

    /// `firstlight apply plan.toml --venv .venv --yes`, with caches of this world's own.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.asking(&[&["--yes"], arguments].concat())
    }

    /// The same without agreeing beforehand.
    pub(crate) fn asking(&self, arguments: &[&str]) -> Command {
        let apply = ["apply", "plan.toml", "--venv", ".venv"];
        let mut command = support::command(self.folder.path(), &[&apply, arguments].concat());
        let tools = uv().program.parent().unwrap().to_owned();
        let folders = std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect::<Vec<_>>();
        command.env("PATH", std::env::join_paths([vec![tools], folders].concat()).unwrap());
        command.env("UV_CACHE_DIR", uv_cache());
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// Runs it, expects this exit status, and gives standard output and standard error.
    pub(crate) fn apply(
        &self,
        plan: &InstallPlan,
        arguments: &[&str],
        status: i32,
    ) -> (String, String) {
        self.write(plan);
        said(&self.command(arguments).output().unwrap(), status)
    }

    /// Runs it with `--json` to a good end.
    pub(crate) fn applied(&self, plan: &InstallPlan, arguments: &[&str]) -> Value {
        let (out, _) = self.apply(plan, &[&["--json"], arguments].concat(), 0);
        serde_json::from_str(&out).unwrap()
    }

    /// The names beside the environment that an apply makes.
    pub(crate) fn apply_folders(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(".venv")).collect();
        names.sort();
        names
    }
}

pub(crate) fn said(output: &Output, status: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{out}\n{err}");
    (out, err)
}

/// What the marker package of an environment says, run by its own interpreter and by its program.
pub(crate) fn version(venv: &Path) -> String {
    let mut python = Command::new(venv.join("bin/python"));
    let program = "import marker, sys; print(marker.VERSION, sys.prefix)";
    let by_module = done(python.args(["-I", "-c", program])).stdout;
    let by_module = String::from_utf8(by_module).unwrap();
    let (version, prefix) = by_module.trim().split_once(' ').unwrap();
    assert_eq!(Path::new(prefix), venv.canonicalize().unwrap());
    let by_program = done(&mut Command::new(venv.join("bin/marker"))).stdout;
    assert_eq!(String::from_utf8(by_program).unwrap().trim(), version);
    version.to_owned()
}

/// Every file of a folder with its size and the time of its last change.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            // What Python keeps of a module that it imported is no part of what was installed.
            if path.ends_with("__pycache__") {
                continue;
            }
            if metadata.is_dir() {
                pending.push(path);
            } else {
                found.push((path, metadata.len(), metadata.modified().unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A package of a plan, without a file yet.
fn package(name: &str, version: &str) -> PlannedPackage {
    PlannedPackage {
        name: name.to_owned(),
        version: version.to_owned(),
        index: "simple".to_owned(),
        because: "wanted".to_owned(),
        origin: PackageOrigin::Wheel,
        marker: None,
        files: Vec::new(),
        source: "this test".to_owned(),
    }
}

/// The file as a plan has it.
pub(crate) fn planned(file: &File, url: String) -> PlannedFile {
    PlannedFile {
        name: file.name.clone(),
        url: Some(url),
        sha256: Some(file.sha256.clone()),
        bytes: Some(file.bytes.len() as u64),
    }
}

fn plan(server: &Server, files: &[File]) -> InstallPlan {
    let package = |file: &File| {
        let url = server.url(&format!("simple/{}/{}", file.project(), file.name));
        let version = file.name.split('-').nth(1).unwrap();
        PlannedPackage { files: vec![planned(file, url)], ..package(&file.project(), version) }
    };
    empty(&server.url("simple"), files.iter().map(package).collect())
}

/// A plan of these packages of the Python registry and what they need, locked by uv.
pub(crate) fn published(packages: &[(&str, &str)]) -> InstallPlan {
    let packages = packages.iter().map(|(name, version)| package(name, version)).collect();
    let plan = empty("https://pypi.org/simple", packages);
    setup::lock::lock(&plan, uv()).unwrap_or_else(|error| panic!("{error}"))
}

/// A plan for this machine and the python3 on PATH.
pub(crate) fn empty(index: &str, packages: Vec<PlannedPackage>) -> InstallPlan {
    InstallPlan {
        schema: SCHEMA,
        target: PlanTarget {
            name: "this".to_owned(),
            os: "linux".to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            glibc: None,
            gpus: Vec::new(),
            driver: None,
            cuda_limit: None,
            tegra: false,
            memory_bytes: None,
            source: "this test".to_owned(),
        },
        wants: Vec::new(),
        python: python().to_owned(),
        cuda: None,
        indexes: vec![PlanIndex {
            name: "simple".to_owned(),
            url: index.to_owned(),
            explicit: false,
            flat: false,
        }],
        packages,
        warnings: Vec::new(),
        rejected: Vec::new(),
        locked: true,
    }
}
