//! Builds environments with uv from a shared cache, clones them by hard links, and edits the clones.

use super::list::{Edit, Environment};
use crate::steps::output;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Free bytes below which uv's cache is emptied.
const MIN_FREE: u64 = 14 << 30;
/// Bytes that an environment takes at most.
const NEEDED: u64 = 8 << 30;

/// The folder of one environment at a time. Its path is constant, because scripts contain it.
pub(super) struct EnvironmentFolder {
    pub(super) venv: PathBuf,
    /// The untouched environment while `venv` is a variant of it.
    base: PathBuf,
    /// The folder of an edit's `pip install --target`.
    target_folder: PathBuf,
    uv: PathBuf,
    cache: PathBuf,
    /// Environment variables that an edit sets, for every program that reads the environment.
    pub(super) variables: Vec<(&'static str, String)>,
}

impl EnvironmentFolder {
    pub(super) fn new(work: &Path, name: &str, uv: PathBuf) -> Self {
        let folder = work.join("environments").join(name);
        Self {
            venv: folder.join("venv"),
            base: folder.join("base"),
            target_folder: folder.join("target"),
            uv,
            cache: work.join("cache"),
            variables: Vec::new(),
        }
    }

    /// Empties uv's cache if less than [`MIN_FREE`] bytes are free; fails if there is still no space for an environment.
    pub(super) fn free_space(&self) -> anyhow::Result<()> {
        let free = || -> anyhow::Result<u64> {
            let text = output(
                Command::new("df")
                    .args(["--output=avail", "-B1"])
                    .arg(self.cache.parent().unwrap_or(&self.cache)),
            )?;
            Ok(text.lines().last().unwrap_or_default().trim().parse()?)
        };
        if free()? < MIN_FREE {
            remove(&self.cache)?;
        }
        match free()? {
            free if free < NEEDED => bail!(
                "{} GiB are free, and an environment takes up to {}",
                free >> 30,
                NEEDED >> 30
            ),
            _ => Ok(()),
        }
    }

    /// Builds the environment, with bytecode if `compiled`.
    pub(super) fn build(&self, environment: &Environment, compiled: bool) -> anyhow::Result<()> {
        self.remove()?;
        let mut venv = self.uv(&["venv", "--quiet", "--no-project"]);
        venv.args(["--python", environment.python.as_deref().unwrap_or("python3")]);
        output(venv.arg(&self.venv))?;
        for install in &environment.install {
            let mut command = self.uv(&["pip", "install", "--quiet", "--python"]);
            command.arg(&self.venv).args(install);
            // Compiles bytecode once instead of in each of a hundred imports.
            output(command.args(compiled.then_some("--compile-bytecode")))?;
        }
        Ok(())
    }

    /// Replaces `venv` by a clone of the untouched environment and edits the clone.
    pub(super) fn vary(&mut self, edits: &[Edit]) -> anyhow::Result<()> {
        if !self.base.exists() {
            fs::rename(&self.venv, &self.base)?;
        }
        remove(&self.venv)?;
        remove(&self.target_folder)?;
        self.variables.clear();
        // The clone has hard links, so edits replace a file instead of changing it.
        output(Command::new("cp").args(["-al"]).arg(&self.base).arg(&self.venv))?;
        edits.iter().try_for_each(|edit| self.edit(edit))
    }

    fn edit(&mut self, edit: &Edit) -> anyhow::Result<()> {
        let install = |words: &[&str]| {
            let mut command = self.uv(&["pip", "install", "--quiet", "--python"]);
            command.arg(&self.venv).args(words);
            output(&mut command)
        };
        match edit {
            Edit::Uninstall(name) => {
                output(
                    self.uv(&["pip", "uninstall", "--quiet", "--python"]).arg(&self.venv).arg(name),
                )?;
            }
            Edit::Install(spec) => drop(install(&["--no-deps", "--reinstall", spec])?),
            Edit::Resolve(spec) => drop(install(&[spec])?),
            Edit::OtherPython { python, spec } => {
                self.foreign(spec, &["--python-version", python])?;
            }
            Edit::OtherMachine(spec) => {
                self.foreign(spec, &["--python-platform", "aarch64-manylinux_2_28"])?;
            }
            Edit::Truncate(file) => self.each(file, |path| {
                let bytes = fs::read(path)?;
                replace_file(path, &bytes[..bytes.len() / 2])
            })?,
            Edit::Zero(file) => {
                self.each(file, |path| replace_file(path, &vec![0; fs::read(path)?.len()]))?
            }
            Edit::Delete(file) => self.each(file, |path| match path.is_dir() {
                true => fs::remove_dir_all(path),
                false => fs::remove_file(path),
            })?,
            Edit::Empty(file) => self.each(file, |path| replace_file(path, &[]))?,
            Edit::Rename { from, to } => {
                let to = self.site()?.join(to);
                self.each(from, |path| fs::rename(path, &to))?;
            }
            Edit::Unpack(spec) => {
                self.target(spec)?;
                // Replaces existing files, which may be hard links to the untouched environment's.
                let mut copy = Command::new("cp");
                copy.args(["-a", "--remove-destination"]).arg(self.target_folder.join("."));
                output(copy.arg(self.site()?))?;
            }
            Edit::PythonPath(spec) => {
                self.target(spec)?;
                self.variables.push(("PYTHONPATH", self.target_folder.display().to_string()));
            }
            Edit::LibraryPath(spec) => {
                self.target(spec)?;
                let folders = fs::read_dir(self.target_folder.join("nvidia"))?
                    .map(|entry| Ok(entry?.path().join("lib").display().to_string()))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                self.variables.push(("LD_LIBRARY_PATH", folders.join(":")));
            }
            Edit::BaseRemoved => self.base_python(Path::new("/opt/python-that-was/bin/python3"))?,
            Edit::BaseUpgraded(python) => {
                let path = output(&mut self.uv(&["python", "find", "--no-project", python]))?;
                self.base_python(Path::new(path.trim()))?;
            }
            Edit::Moved => {
                // Scripts and `activate` contain the environment's path. The new path has the same length, so sizes in RECORD stay valid.
                let is = self.venv.display().to_string();
                let was = format!("{}vold", is.trim_end_matches("venv"));
                for entry in fs::read_dir(self.venv.join("bin"))? {
                    let path = entry?.path();
                    match fs::read_to_string(&path) {
                        Ok(text) if path.is_file() && !path.is_symlink() => {
                            let mode = path.metadata()?.permissions();
                            replace_file(&path, text.replace(&is, &was).as_bytes())?;
                            fs::set_permissions(&path, mode)?;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs `uv pip install --target` with the target folder.
    fn target(&self, spec: &str) -> anyhow::Result<()> {
        let mut command = self.uv(&["pip", "install", "--quiet", "--no-deps", "--target"]);
        output(command.arg(&self.target_folder).arg("--python").arg(&self.venv).arg(spec)).map(drop)
    }

    /// Links the environment to this base interpreter.
    fn base_python(&self, python: &Path) -> anyhow::Result<()> {
        for name in ["python", "python3"] {
            let link = self.venv.join("bin").join(name);
            fs::remove_file(&link)?;
            std::os::unix::fs::symlink(
                if name == "python" { python } else { Path::new("python") },
                &link,
            )?;
        }
        let file = self.venv.join("pyvenv.cfg");
        let folder = python.parent().context("the interpreter has no folder")?.display();
        let home = |line: &str| match line.starts_with("home") {
            true => format!("home = {folder}\n"),
            false => format!("{line}\n"),
        };
        let text: String = fs::read_to_string(&file)?.lines().map(home).collect();
        replace_file(&file, text.as_bytes()).map_err(Into::into)
    }

    /// Replaces a package by its wheel for another Python or architecture, as in an environment copied from another machine.
    fn foreign(&self, spec: &str, platform: &[&str]) -> anyhow::Result<()> {
        let name = spec.split("==").next().unwrap_or(spec);
        output(self.uv(&["pip", "uninstall", "--quiet", "--python"]).arg(&self.venv).arg(name))?;
        let site = self.site()?;
        let mut command =
            self.uv(&["pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
        command.args(platform).arg("--target").arg(&site).arg("--python").arg(&self.venv).arg(spec);
        output(&mut command).map(drop)
    }

    fn each(
        &self,
        pattern: &str,
        act: impl Fn(&Path) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let site = self.site()?;
        let pattern = pattern.trim_end_matches('/');
        let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
        let (begins, ends) = name.split_once('*').unwrap_or((name, ""));
        let fits = |file: &str| match name.contains('*') {
            true => {
                file.len() >= name.len() - 1 && file.starts_with(begins) && file.ends_with(ends)
            }
            false => file == name,
        };
        let mut any = false;
        for entry in fs::read_dir(site.join(folder)).with_context(|| pattern.to_owned())? {
            let path = entry?.path();
            if path.file_name().and_then(|file| file.to_str()).is_some_and(fits) {
                act(&path)?;
                any = true;
            }
        }
        match any {
            true => Ok(()),
            false => bail!("no file matches {pattern}"),
        }
    }

    /// The environment's `site-packages` folder.
    pub(super) fn site(&self) -> anyhow::Result<PathBuf> {
        let lib = self.venv.join("lib");
        let mut releases = fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
        let release = releases.next().context("the environment has no lib/python*")??;
        Ok(release.path().join("site-packages"))
    }

    /// A uv command that hard-links files from the shared cache.
    pub(super) fn uv(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.uv);
        command.args(words).env("UV_CACHE_DIR", &self.cache).env("UV_LINK_MODE", "hardlink");
        command.env("UV_NO_PROGRESS", "1").env("UV_PYTHON_DOWNLOADS", "never");
        command.env_remove("VIRTUAL_ENV");
        command
    }

    /// Removes the environment, its clone and the target folder.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        remove(&self.venv)?;
        remove(&self.target_folder)?;
        remove(&self.base)
    }
}

/// Replaces a file, so that its hard links do not change.
fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::remove_file(path)?;
    fs::write(path, bytes)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
