//! uv, which resolves and installs: found, or installed by pip into a folder of firstlight's own.

use facts::CompactSort;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The oldest uv taken: from here on every one writes `pylock.toml` (PEP 751) and knows `extra-build-variables`, without
/// which a build that is to be forced would quietly install what somebody else built.
pub const OLDEST: Version = Version(0, 9, 0);

/// Variables by which a user's shell would change what a plan resolves to or where a package comes from. Proxies,
/// certificates, credentials and the cache are the user's and stay.
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

/// A version of uv, in the order of releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A uv that was started and told its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uv {
    /// The program.
    pub program: PathBuf,
    /// What it says its version is.
    pub version: Version,
}

/// Why there is no uv.
#[derive(Debug, thiserror::Error)]
pub enum UvError {
    /// Neither PATH nor the tool folder has one, and pip could not bring it.
    #[error("no uv {OLDEST} or newer: {}", tried.join("; "))]
    Absent {
        /// What was tried, and what came of it.
        tried: Vec<String>,
    },
    /// The tool folder cannot be written.
    #[error("cannot keep uv in {}: {source}", folder.display())]
    Folder {
        /// The tool folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl UvError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Absent { .. } => {
                "install it with `python3 -m pip install --user uv` or from https://docs.astral.sh/uv/, and see that it is on PATH"
            }
            Self::Folder { .. } => {
                "set XDG_CACHE_HOME to a folder that can be written, or put uv on PATH"
            }
        }
    }
}

impl Uv {
    /// The first uv on `path` (the variable PATH) that is new enough, else the newest one that an earlier call put into
    /// `tools`, else one that pip puts there now. It appears in `tools` whole or not at all.
    ///
    /// # Errors
    /// Where none of these gives a uv that runs; the error names each thing that was tried.
    pub fn find(path: Option<&OsStr>, tools: &Path) -> Result<Self, UvError> {
        match Self::found(path, tools) {
            Ok(uv) => Ok(uv),
            Err(mut tried) => {
                Self::install(path, tools, &mut tried)?.ok_or(UvError::Absent { tried })
            }
        }
    }

    /// The uv that is here; nothing is installed.
    ///
    /// # Errors
    /// What was tried.
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

    /// The program as uv, if it runs and is new enough; else the reason.
    ///
    /// It is started, because a file of this name may be a launcher of another tool's (pyenv) with nothing behind it.
    fn at(program: &Path) -> Result<Self, String> {
        let said = run(Command::new(program).arg("--version"))
            .map_err(|reason| format!("{}: {reason}", program.display()))?;
        let version = said
            .strip_prefix("uv ")
            .and_then(parse_version)
            .ok_or_else(|| format!("{}: not uv, it says `{}`", program.display(), said.trim()))?;
        if version < OLDEST {
            return Err(format!("{} is {version}", program.display()));
        }
        Ok(Self { program: program.to_owned(), version })
    }

    /// Installs uv with the first Python on `path` whose pip can.
    fn install(
        path: Option<&OsStr>,
        tools: &Path,
        tried: &mut Vec<String>,
    ) -> Result<Option<Self>, UvError> {
        let failed = |source| UvError::Folder { folder: tools.to_owned(), source };
        let pythons: Vec<_> =
            ["python3", "python"].iter().flat_map(|name| programs(path, name)).collect();
        if pythons.is_empty() {
            tried.push("no Python on PATH whose pip could install it".to_owned());
            return Ok(None);
        }
        fs::create_dir_all(tools).map_err(failed)?;
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
                Err(reason) => tried.push(reason),
            }
        }
        Ok(None)
    }

    /// A command of this uv that resolves and installs what it is told and nothing else: no configuration file and no
    /// variable of the user's shell adds an index or a constraint, no Python is downloaded, nothing is asked.
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

/// Where `pip install --target` puts the program.
const INSTALLED: &str = if cfg!(windows) { "bin/uv.exe" } else { "bin/uv" };

/// What was installed earlier, newest first.
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

/// Gives a finished folder its name, and the program in it. Where another process was faster its folder stays; one that
/// does not run (an interrupted copy of a home folder) is replaced.
fn put(building: tempfile::TempDir, folder: &Path) -> io::Result<PathBuf> {
    let program = folder.join(INSTALLED);
    if fs::rename(building.path(), folder).is_ok() {
        // The folder is no longer where its guard would remove it.
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
    // A relative folder in PATH means another program in each working folder.
    let files = folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(&name));
    files.filter(|file| file.is_file()).collect()
}

/// Whether a file is a script, as the launchers of other tools are, or cannot be read.
pub(crate) fn is_script(file: &Path) -> bool {
    let mut first = [0; 2];
    let read =
        fs::File::open(file).and_then(|mut file| io::Read::read_exact(&mut file, &mut first));
    read.is_err() || first == *b"#!"
}

/// Runs a command and gives what it printed, or in a few words why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    // pip says what went wrong in its last error; a warning or a notice may follow.
    let errors = stderr.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let line = errors.clone().find(|line| line.starts_with("ERROR:")).or(errors.clone().next());
    Err(line.map_or_else(|| status.to_string(), str::to_owned))
}

/// The version at the start of a text: `0.13.9 (x86_64-unknown-linux-gnu)`.
fn parse_version(text: &str) -> Option<Version> {
    let mut parts = text.split_whitespace().next()?.splitn(3, '.');
    let mut number = || {
        let digits = parts.next()?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    Some(Version(number()?, number()?, number()?))
}

#[cfg(test)]
mod tests;
