//! uv, which resolves and installs: found, or installed by pip into firstlight's tool folder.

use facts::CompactSort;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The oldest supported uv: since this version every uv writes `pylock.toml` (PEP 751) and supports
/// `extra-build-variables`, without which a forced build would silently install a prebuilt wheel.
pub const OLDEST: UvVersion = UvVersion(0, 9, 0);

/// Variables of a user's shell that would change the resolution of a plan or the source of a package. Proxies,
/// certificates, credentials and the cache are kept.
const OVERRIDES: &[&str] = &[
    "UV_BUILD_CONSTRAINT",
    "UV_CONSTRAINT",
    "UV_DEFAULT_INDEX",
    "UV_EXCLUDE",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_FORK_STRATEGY",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_NO_BINARY",
    "UV_NO_BUILD",
    "UV_NO_BUILD_ISOLATION",
    "UV_NO_INDEX",
    "UV_NO_SOURCES",
    "UV_NO_VERIFY_HASHES",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_RESOLUTION",
    "UV_SYSTEM_PYTHON",
    "UV_TORCH_BACKEND",
];

/// The attempt to install uv without a Python.
const NO_PYTHON: &str = "no Python on PATH whose pip could install it";

/// A version of uv, in the order of releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UvVersion(pub u32, pub u32, pub u32);

impl std::fmt::Display for UvVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A uv that was started and reported its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uv {
    /// The program.
    pub program: PathBuf,
    /// Its reported version.
    pub version: UvVersion,
}

/// Why there is no uv.
#[derive(Debug, thiserror::Error)]
pub enum UvError {
    /// Neither PATH nor the tool folder has one, and pip could not install it.
    #[error("no uv {OLDEST} or newer: {}", tried.join("; "))]
    Absent {
        /// The attempts, and their results.
        tried: Vec<String>,
    },
    /// The tool folder cannot be written.
    #[error("cannot keep uv in {}: {source}", folder.display())]
    Folder {
        /// The tool folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl UvError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        let lacks = |words: &str| match self {
            Self::Absent { tried } => tried.iter().any(|reason| reason.contains(words)),
            Self::Folder { .. } => false,
        };
        match self {
            Self::Absent { .. } if lacks(NO_PYTHON) || lacks("No module named pip") => {
                crate::python::INSTALL
            }
            Self::Absent { tried } if tried.iter().any(|reason| is_full_disk(reason)) => {
                "free some space, set XDG_CACHE_HOME to a folder on another disk, or put uv on PATH"
            }
            Self::Absent { .. } => {
                "install it with `python3 -m pip install --user uv` or from https://docs.astral.sh/uv/, and add it to PATH"
            }
            Self::Folder { .. } => {
                "set XDG_CACHE_HOME to a folder that can be written, or put uv on PATH"
            }
        }
    }
}

impl Uv {
    /// The first uv on `path` (the variable PATH) that is new enough, or else the newest one in `tools` from an earlier
    /// call, or else one that pip installs there now, after a call of `installing`. It appears in `tools` completely or
    /// not at all.
    ///
    /// # Errors
    /// No uv runs; the error has every attempt.
    pub fn find(
        path: Option<&OsStr>,
        tools: &Path,
        installing: impl FnOnce(),
    ) -> Result<Self, UvError> {
        match Self::found(path, tools) {
            Ok(uv) => Ok(uv),
            Err(mut tried) => {
                Self::install(path, tools, &mut tried, installing)?.ok_or(UvError::Absent { tried })
            }
        }
    }

    /// An existing uv; none is installed.
    ///
    /// # Errors
    /// The attempts.
    pub fn found(path: Option<&OsStr>, tools: &Path) -> Result<Self, Vec<String>> {
        let mut tried = Vec::new();
        let on_path = programs(path, "uv");
        if on_path.is_empty() {
            tried.push("none on PATH".to_owned());
        }
        for program in on_path.into_iter().chain(kept(tools)) {
            match Self::at(&program) {
                Ok(uv) => return Ok(uv),
                Err(reason) => tried.push(reason),
            }
        }
        Err(tried)
    }

    /// The program as uv, if it runs and is new enough; otherwise the reason.
    ///
    /// It is started, because a file of this name may be a launcher of another tool (pyenv) without a program.
    fn at(program: &Path) -> Result<Self, String> {
        let said = run(Command::new(program).arg("--version"))
            .map_err(|reason| format!("{}: {reason}", program.display()))?;
        let version = said.strip_prefix("uv ").and_then(parse_version).ok_or_else(|| {
            format!("{}: not uv, its version is `{}`", program.display(), said.trim())
        })?;
        if version < OLDEST {
            return Err(format!("{} is {version}", program.display()));
        }
        Ok(Self { program: program.to_owned(), version })
    }

    /// Installs uv with the first Python on `path` that has a working pip.
    fn install(
        path: Option<&OsStr>,
        tools: &Path,
        tried: &mut Vec<String>,
        installing: impl FnOnce(),
    ) -> Result<Option<Self>, UvError> {
        let failed = |source| UvError::Folder { folder: tools.to_owned(), source };
        let pythons: Vec<_> =
            ["python3", "python"].iter().flat_map(|name| programs(path, name)).collect();
        if pythons.is_empty() {
            tried.push(NO_PYTHON.to_owned());
            return Ok(None);
        }
        fs::create_dir_all(tools).map_err(failed)?;
        installing();
        for python in pythons {
            let building =
                tempfile::Builder::new().prefix(".uv-").tempdir_in(tools).map_err(failed)?;
            let built = run(Command::new(&python)
                .args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps"])
                .args(["--disable-pip-version-check", "--only-binary", ":all:", "--target"])
                .arg(building.path())
                .arg(format!("uv>={OLDEST}")))
            .map_err(|reason| format!("{} -m pip install uv: {reason}", python.display()))
            .and_then(|_| Self::at(&building.path().join(INSTALLED)));
            match built {
                Ok(uv) => {
                    let folder = tools.join(format!("uv-{}", uv.version));
                    let program = put(building, &folder).map_err(failed)?;
                    return Ok(Some(Self { program, ..uv }));
                }
                Err(reason) => {
                    let full = is_full_disk(&reason);
                    tried.push(reason);
                    if full {
                        // Another Python would fill the same disk.
                        break;
                    }
                }
            }
        }
        Ok(None)
    }

    /// A command of this uv that resolves and installs only the given packages: no configuration file and no variable
    /// of the user's shell adds an index or a constraint, no Python is downloaded, and it never prompts.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for variable in OVERRIDES {
            command.env_remove(variable);
        }
        command
            .env("UV_NO_CONFIG", "1")
            .env("UV_PYTHON_DOWNLOADS", "never")
            .env("UV_NO_PROGRESS", "1")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }
}

/// The program's path after `pip install --target`.
const INSTALLED: &str = if cfg!(windows) { "bin/uv.exe" } else { "bin/uv" };

/// Earlier installations, newest first.
fn kept(tools: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(tools).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = parse_version(name.to_str()?.strip_prefix("uv-")?)?;
            Some((version, entry.path().join(INSTALLED)))
        })
        .collect();
    found.compact_sort();
    found.into_iter().rev().map(|(_, program)| program).collect()
}

/// Renames a finished folder, and returns its program. If another process was faster, its folder is kept; one that does
/// not run (an incomplete copy of a home folder) is replaced.
fn put(building: tempfile::TempDir, folder: &Path) -> io::Result<PathBuf> {
    let program = folder.join(INSTALLED);
    if fs::rename(building.path(), folder).is_ok() {
        // The folder has been moved away from its guard.
        let _ = building.keep();
        return Ok(program);
    }
    if Uv::at(&program).is_err() {
        let aside = tempfile::Builder::new()
            .prefix(".old-")
            .tempdir_in(folder.parent().unwrap_or(folder))?;
        fs::rename(folder, aside.path().join("uv"))?;
        fs::rename(building.path(), folder)?;
        let _ = building.keep();
    }
    Ok(program)
}

/// Files named `name` in the folders of PATH.
pub(crate) fn programs(path: Option<&OsStr>, name: &str) -> Vec<PathBuf> {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let folders = path.into_iter().flat_map(std::env::split_paths);
    // A relative folder in PATH depends on the working folder.
    let files = folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(&name));
    files.filter(|file| file.is_file()).collect()
}

/// Whether a file is a script, such as a launcher of another tool, or cannot be read.
pub(crate) fn is_script(file: &Path) -> bool {
    let mut first = [0; 2];
    let read =
        fs::File::open(file).and_then(|mut file| io::Read::read_exact(&mut file, &mut first));
    read.is_err() || first == *b"#!"
}

/// Runs a command and returns its output, or a short reason of its failure.
fn run(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    // pip's last error has the reason; a warning or a notice may follow. A full disk is a traceback after `ERROR:`.
    let errors = stderr.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let line = errors.clone().find(|line| is_full_disk(line));
    let line = line.or_else(|| errors.clone().find(|line| line.starts_with("ERROR:")));
    let line = line.or(errors.clone().next());
    Err(line.map_or_else(|| status.to_string(), str::to_owned))
}

/// Whether a program's message is the system's for a full disk.
pub(crate) fn is_full_disk(text: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| text.contains(words))
}

/// The version at the start of a text: `0.13.9 (x86_64-unknown-linux-gnu)`.
fn parse_version(text: &str) -> Option<UvVersion> {
    let mut parts = text.split_whitespace().next()?.splitn(3, '.');
    let mut number = || {
        let digits = parts.next()?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    Some(UvVersion(number()?, number()?, number()?))
}

#[cfg(test)]
mod tests;
