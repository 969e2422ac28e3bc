use crate::ProbeError;
use crate::loader::Loader;
use crate::native::Stamp;
use crate::nvml::{self, Nvml};
use crate::text::sysctl::Sysctl;
use facts::CompactSort;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

mod command;
mod devices;
mod folder;
pub(crate) use command::{Command, CommandError};
pub(crate) use devices::Node;
pub(crate) use folder::Folder;

/// The source of facts: the live machine, or a recorded one replayed from a folder.
///
/// A recorded machine is a folder with `root/` (its files, in the same tree as on the machine, links included), `env` (one
/// `NAME=value` per line), `commands/` (outputs by the name that the probe gives each command), `dev` (modes and owners
/// of `/dev/nvidia*`) and `nvml` (NVML's answers, in the format of [`nvml::Nvml::parse`]). Everything else is absent
/// from the machine. Facts always have the machine's own paths, not the recording's.
///
/// Programs and NVML have [`Source::PATIENCE`] to answer: a broken driver never returns, and its missing answers are
/// then facts.
#[derive(Debug, Clone)]
pub struct Source {
    recording: Option<PathBuf>,
    /// The program that queries NVML in a separate process, with its arguments.
    nvml_helper: Option<(PathBuf, Vec<String>)>,
    patience: Duration,
    until: Instant,
    vars: BTreeMap<String, String>,
    working_folder: PathBuf,
    loader: OnceLock<Loader>,
    sysctl: OnceLock<Sysctl>,
}

/// A file's metadata.
pub(crate) struct FileMetadata {
    pub(crate) bytes: u64,
    /// Time of the last change, in seconds since 1970.
    pub(crate) changed: i64,
    /// Whether it occupies no space: a crash happened before its data was written. Some file systems also store small
    /// files this way.
    pub(crate) unwritten: bool,
}

/// Total time limit of other programs beyond the driver's: nvcc and the like need a few hundredths of a second.
const BESIDES: Duration = Duration::from_millis(300);
/// The argument of an NVML helper for the current state.
const MOMENT: &str = "--moment";

impl Source {
    /// How long a driver may take to answer. A working one needs a few hundredths of a second, or about a second for
    /// each GPU that it has to initialise (no persistence mode).
    pub const PATIENCE: Duration = Duration::from_secs(2);

    /// This machine, with this process's environment variables and working folder.
    pub fn live() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            recording: None,
            nvml_helper: None,
            patience: Self::PATIENCE,
            until: Instant::now() + Self::PATIENCE + BESIDES,
            vars,
            working_folder: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            loader: OnceLock::new(),
            sysctl: OnceLock::new(),
        }
    }

    /// A recorded machine.
    ///
    /// # Errors
    /// [`ProbeError::NotARecording`] if `folder` has no `root`.
    pub fn recorded(folder: &Path) -> Result<Self, ProbeError> {
        if !folder.join("root").is_dir() {
            return Err(ProbeError::NotARecording { path: folder.to_path_buf() });
        }
        let vars = std::fs::read_to_string(folder.join("env")).unwrap_or_default();
        Ok(Self {
            recording: Some(folder.to_path_buf()),
            nvml_helper: None,
            patience: Self::PATIENCE,
            until: Instant::now() + Self::PATIENCE + BESIDES,
            vars: vars
                .lines()
                .filter_map(|line| line.split_once('='))
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            working_folder: PathBuf::from("/"),
            loader: OnceLock::new(),
            sysctl: OnceLock::new(),
        })
    }

    /// Queries NVML through a program that calls [`nvml::write_record`], or with the additional argument `--moment`
    /// [`nvml::write_moment`]: a call that hangs or crashes then affects only that program. Without it NVML is called
    /// in this process, without a time limit.
    #[must_use]
    pub fn with_nvml_helper(mut self, program: PathBuf, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|word| (*word).to_string()).collect();
        self.nvml_helper = Some((program, arguments));
        self
    }

    /// Sets the time limit for drivers.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self.until = Instant::now() + patience + BESIDES;
        self
    }

    /// How long a driver may take to answer.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with_var(mut self, name: &str, value: &str) -> Self {
        self.vars.insert(name.to_string(), value.to_string());
        self
    }

    /// Unsets an environment variable.
    #[must_use]
    pub fn without_var(mut self, name: &str) -> Self {
        self.vars.remove(name);
        self
    }

    /// Unsets all environment variables.
    #[must_use]
    pub fn without_vars(mut self) -> Self {
        self.vars.clear();
        self
    }

    /// Sets the working folder, in which `./.venv` is searched.
    #[must_use]
    pub fn with_working_folder(mut self, folder: &Path) -> Self {
        self.working_folder = folder.to_path_buf();
        self
    }

    pub(crate) fn is_live(&self) -> bool {
        self.recording.is_none()
    }

    pub(crate) fn working_folder(&self) -> &Path {
        &self.working_folder
    }

    /// A set, non-empty environment variable.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The absolute folders of a colon-separated variable. Empty and relative ones depend on the working folder and are
    /// omitted.
    pub(crate) fn folders_of_var(&self, name: &str) -> Vec<PathBuf> {
        let value = self.var(name).unwrap_or_default();
        value.split(':').map(PathBuf::from).filter(|path| path.is_absolute()).collect()
    }

    pub(crate) fn read(&self, path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
        std::fs::read(self.on_disk(path.as_ref()))
    }

    /// A file's text; invalid UTF-8 is replaced, because kernels and firmware guarantee no encoding.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read(path).ok()?;
        Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Calls a function with a file's text: thousands of files are read into the same memory.
    pub(crate) fn with_text<T>(&self, path: &Path, read: impl FnOnce(&str) -> T) -> Option<T> {
        thread_local! {
            static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        let mut bytes = BYTES.take();
        bytes.clear();
        let size = File::open(self.on_disk(path)).and_then(|mut it| it.read_to_end(&mut bytes));
        let result = size.ok().map(|_| read(&String::from_utf8_lossy(&bytes)));
        BYTES.set(bytes);
        result
    }

    /// A file's text without surrounding white space, unless it is empty.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        let word = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!word.is_empty()).then(|| word.to_string())
    }

    /// Sorted names in a folder; empty if there is no such folder.
    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        self.try_list(path.as_ref()).unwrap_or_default()
    }

    /// Sorted names in a folder.
    pub(crate) fn try_list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        let mut names: Vec<String> = std::fs::read_dir(self.on_disk(path))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.compact_sort();
        Ok(names)
    }

    /// Names in a folder, and whether each is a folder (a link is not); unsorted.
    pub(crate) fn entries(&self, path: &Path) -> Vec<(String, bool)> {
        let Ok(entries) = std::fs::read_dir(self.on_disk(path)) else { return Vec::new() };
        let entry = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.ok()?;
            Some((entry.file_name().into_string().ok()?, entry.file_type().ok()?.is_dir()))
        };
        entries.filter_map(entry).collect()
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.on_disk(path.as_ref()).exists()
    }

    pub(crate) fn is_file(&self, path: impl AsRef<Path>) -> bool {
        self.on_disk(path.as_ref()).is_file()
    }

    pub(crate) fn is_dir(&self, path: impl AsRef<Path>) -> bool {
        self.on_disk(path.as_ref()).is_dir()
    }

    /// Whether the path itself is a link, wherever it points.
    pub(crate) fn is_link(&self, path: &Path) -> bool {
        let Some(parent) = path.parent() else { return false };
        let Some(name) = path.file_name() else { return false };
        self.on_disk(parent).join(name).is_symlink()
    }

    /// The target of a link.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let (parent, name) = (path.parent()?, path.file_name()?);
        std::fs::read_link(self.on_disk(parent).join(name))
            .ok()?
            .into_os_string()
            .into_string()
            .ok()
    }

    pub(crate) fn file_size(&self, path: impl AsRef<Path>) -> Option<u64> {
        Some(self.about(path)?.bytes)
    }

    /// Size, modification time and allocated space of a file; `None` if it does not exist.
    pub(crate) fn about(&self, path: impl AsRef<Path>) -> Option<FileMetadata> {
        let metadata = std::fs::metadata(self.on_disk(path.as_ref())).ok()?;
        metadata.is_file().then(|| FileMetadata {
            bytes: metadata.len(),
            changed: metadata.mtime(),
            unwritten: metadata.blocks() == 0 && metadata.len() > 0,
        })
    }

    /// A file to be read in parts.
    pub(crate) fn open(&self, path: &Path) -> std::io::Result<std::fs::File> {
        std::fs::File::open(self.on_disk(path))
    }

    /// Identifies a file's state; `None` if it does not exist.
    pub(crate) fn stamp(&self, path: &Path) -> Option<Stamp> {
        let metadata = std::fs::metadata(self.on_disk(path)).ok()?;
        metadata.is_file().then(|| Stamp {
            bytes: metadata.len(),
            mtime_seconds: metadata.mtime(),
            mtime_nanos: metadata.mtime_nsec(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// Values of a file or folder that change with it; zeros if it does not exist.
    pub(crate) fn state_of(&self, path: &Path) -> [u64; 4] {
        let Ok(it) = std::fs::metadata(self.on_disk(path)) else { return [0; 4] };
        [it.len(), it.ino(), it.mtime().unsigned_abs(), it.mtime_nsec().unsigned_abs()]
    }

    /// The resolved file, if it exists.
    pub(crate) fn canonical(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = self.absolute(path.as_ref());
        match &self.recording {
            None => std::fs::canonicalize(path).ok(),
            Some(folder) => {
                let resolved = follow_links(&folder.join("root"), &path);
                self.exists(&resolved).then_some(resolved)
            }
        }
    }

    /// The first file of this name on PATH.
    pub(crate) fn which(&self, program: &str) -> Option<PathBuf> {
        self.folders_of_var("PATH")
            .into_iter()
            .map(|folder| folder.join(program))
            .find(|path| self.is_file(path))
    }

    /// Runs a command, or reads its recorded output. All commands share a time limit.
    pub(crate) fn run(&self, command: &Command<'_>) -> Result<String, CommandError> {
        let Some(folder) = &self.recording else {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CommandError::NoTimeLeft);
            }
            return Command { limit: command.limit.min(left), ..*command }.run(&self.vars);
        };
        std::fs::read_to_string(folder.join("commands").join(command.record))
            .map_err(|_| CommandError::Absent)
    }

    /// NVML's answers: queried now, or recorded.
    pub fn ask_nvml(&self) -> Nvml {
        self.asked_nvml(nvml::write_record, None)
    }

    /// NVML's current state ([`nvml::write_moment`]).
    pub(crate) fn ask_nvml_moment(&self) -> Nvml {
        self.asked_nvml(nvml::write_moment, Some(MOMENT))
    }

    fn asked_nvml(&self, tell: fn(&Self, &mut Vec<u8>), more: Option<&str>) -> Nvml {
        if let Some(folder) = &self.recording {
            return std::fs::read_to_string(folder.join("nvml"))
                .map_or(Nvml::Absent, |text| Nvml::parse(&text));
        }
        let Some((program, arguments)) = &self.nvml_helper else {
            let mut record = Vec::new();
            tell(self, &mut record);
            return Nvml::parse(&String::from_utf8_lossy(&record));
        };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more).collect();
        let answer = self.run(&Command {
            record: "nvml",
            program: &program.display().to_string(),
            args: &arguments,
            limit: self.patience,
        });
        Nvml::of_helper(answer)
    }

    /// The search paths of the dynamic loader; read once.
    pub(crate) fn loader(&self) -> &Loader {
        self.loader.get_or_init(|| Loader::of(self))
    }

    /// macOS's description of the machine; read once, empty elsewhere.
    pub(crate) fn sysctl(&self) -> &Sysctl {
        self.sysctl.get_or_init(|| {
            let args =
                ["hw", "machdep.cpu", "kern.osrelease", "kern.hostname", "kern.hv_vmm_present"];
            let command = Command {
                record: "sysctl",
                program: "sysctl",
                args: &args,
                limit: Duration::from_secs(5),
            };
            match self.run(&command) {
                // sysctl fails if this release does not know one of the names, after printing all others.
                Ok(text) | Err(CommandError::Failed { text, .. }) => Sysctl::parse(&text),
                Err(_) => Sysctl::default(),
            }
        })
    }

    pub(crate) fn absolute<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        if path.is_absolute() {
            Cow::Borrowed(path)
        } else {
            Cow::Owned(self.working_folder.join(path))
        }
    }

    /// The path on the disk that is read.
    fn on_disk<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        let path = self.absolute(path);
        match &self.recording {
            None => path,
            Some(folder) => {
                let root = folder.join("root");
                let resolved = follow_links(&root, &path);
                Cow::Owned(under(&root, &resolved))
            }
        }
    }
}

/// `path` of a recorded machine as a path of the disk that holds the recording.
fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Follows links as the recorded machine would: an absolute link starts again at its root.
fn follow_links(root: &Path, path: &Path) -> PathBuf {
    // Linux gives up after 40 links; this limit also ends loops.
    const MAX_LINKS: usize = 40;
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|component| component.as_os_str().to_os_string()).collect()
    };
    let mut pending = names(path);
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = pending.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => resolved = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                resolved.pop();
            }
            Some(Component::Normal(_)) => {
                let next = resolved.join(&name);
                match std::fs::read_link(under(root, &next)) {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        pending.extend(names(&target));
                    }
                    _ => resolved = next,
                }
            }
            _ => {}
        }
    }
    resolved
}
