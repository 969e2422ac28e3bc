//! What an environment was, kept inside it while it is being changed.
//!
//! Each file is cloned where the file system can (`FICLONE`), else linked or copied. A link costs nothing and shares the
//! file's bytes, so that a program that wrote into the file would change the backup as well. uv and pip never do: both write
//! another file and give it the name (held by firstlight/tests/setup/fix). Files that people and tools do edit in place
//! (`pyvenv.cfg`, `*.pth`, scripts, metadata) are copied, and every link is held against size and time when it is put back.

use super::MendError;
use rustix::fs::{FlockOperation, flock, statvfs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The folder inside the environment.
const FOLDER: &str = ".firstlight-fix";
/// What it is renamed to once nothing has to be put back any more.
const DONE: &str = ".firstlight-fix-done";

/// One file, link or folder of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Kept {
    Folder,
    Link { target: PathBuf },
    File { bytes: u64, modified: (i64, i64), mode: u32 },
}

/// What stands in the first line of the list.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Every package with its version and the hash of its RECORD.
    packages: Vec<String>,
}

/// The backup of one environment, complete from the moment it is returned.
#[derive(Debug)]
pub struct Snapshot {
    root: PathBuf,
    folder: PathBuf,
    kept: BTreeMap<PathBuf, Kept>,
    packages: Vec<String>,
    lock: File,
}

/// What putting back changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutBack {
    /// Files that were changed or gone.
    pub restored: usize,
    /// Files that were new.
    pub removed: usize,
}

impl Snapshot {
    /// Takes one. `packages` is what is installed, in words, for people who look at it.
    ///
    /// # Errors
    /// Where the environment cannot be read or its backup not written; nothing is left behind.
    pub fn take(root: &Path, packages: Vec<String>) -> Result<Self, MendError> {
        let root = fs::canonicalize(root).map_err(MendError::io(root))?;
        let folder = root.join(FOLDER);
        remove(&root.join(DONE))?;
        fs::create_dir_all(&folder).map_err(MendError::io(&folder))?;
        let lock = lock(&root, &folder)?;
        // What was begun and never complete was never needed.
        remove(&folder.join("files"))?;
        let taken = keep(&root, &folder).and_then(|kept| {
            write_list(&folder, &kept, &packages)?;
            Ok(kept)
        });
        match taken {
            Ok(kept) => Ok(Self { root, folder, kept, packages, lock }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    /// Whether a killed fix left one; nothing is locked or changed.
    pub fn is_left(root: &Path) -> bool {
        root.join(FOLDER).join("list.jsonl").exists()
    }

    /// The snapshot that a killed fix left; `None` where there is none, or where it was killed before it changed anything.
    ///
    /// # Errors
    /// Where another fix is at work, or the list cannot be read.
    pub fn left(root: &Path) -> Result<Option<Self>, MendError> {
        let Ok(root) = fs::canonicalize(root) else { return Ok(None) };
        let folder = root.join(FOLDER);
        if !folder.exists() {
            return Ok(None);
        }
        let lock = lock(&root, &folder)?;
        let list = folder.join("list.jsonl");
        if !list.exists() {
            remove(&folder)?;
            return Ok(None);
        }
        let (packages, kept) = read_list(&list)?;
        Ok(Some(Self { root, folder, kept, packages, lock }))
    }

    /// Every package with its version and the hash of its RECORD, as it was.
    pub fn packages(&self) -> &[String] {
        &self.packages
    }

    /// The standard input of a program that changes the environment: empty, and it carries the lock, so that the next fix after
    /// a killed one waits until nothing of that one writes any more.
    ///
    /// # Errors
    /// What the system says.
    pub fn stdin(&self) -> std::io::Result<Stdio> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Makes the environment what it was, byte by byte, and ends the snapshot.
    ///
    /// # Errors
    /// Where a file cannot be written, or one of the backup is not what it was; the snapshot stays then.
    pub fn put_back(self) -> Result<PutBack, MendError> {
        let mut done = PutBack::default();
        let mut now = BTreeMap::new();
        walk(&self.root, Path::new(""), &mut |path, metadata| {
            now.insert(path.to_owned(), metadata.clone());
            Ok(())
        })?;
        // What is deeper goes first, so that folders are empty when it is their turn.
        for (path, metadata) in now.iter().rev() {
            let wanted = self.kept.get(path);
            let fits = match (wanted, metadata.file_type()) {
                (Some(Kept::Folder), kind) => kind.is_dir(),
                (Some(Kept::Link { .. }), kind) => kind.is_symlink(),
                (Some(Kept::File { .. }), kind) => kind.is_file(),
                (None, _) => false,
            };
            if fits {
                continue;
            }
            let whole = self.root.join(path);
            let gone =
                if metadata.is_dir() { fs::remove_dir(&whole) } else { fs::remove_file(&whole) };
            gone.map_err(MendError::io(&whole))?;
            done.removed += usize::from(!metadata.is_dir() && wanted.is_none());
        }
        let mut damaged = Vec::new();
        for (path, kept) in &self.kept {
            let changed = self.restore(path, kept, now.get(path), &mut damaged)?;
            done.restored += usize::from(changed);
        }
        if !damaged.is_empty() {
            let root = self.root.display().to_string();
            return Err(MendError::Damaged { root, files: damaged });
        }
        self.end()?;
        Ok(done)
    }

    /// Whether it had to be changed.
    fn restore(
        &self,
        path: &Path,
        kept: &Kept,
        now: Option<&Metadata>,
        damaged: &mut Vec<String>,
    ) -> Result<bool, MendError> {
        let whole = self.root.join(path);
        let failed = |error| MendError::io(&whole)(error);
        match kept {
            Kept::Folder if now.is_some_and(Metadata::is_dir) => Ok(false),
            Kept::Folder => fs::create_dir(&whole).map_err(failed).map(|()| false),
            Kept::Link { target } => {
                if now.is_some() && fs::read_link(&whole).is_ok_and(|there| there == *target) {
                    return Ok(false);
                }
                let _ = fs::remove_file(&whole);
                symlink(target, &whole).map_err(failed)?;
                Ok(true)
            }
            Kept::File { bytes, modified, mode } => {
                let backup = self.folder.join("files").join(path);
                let there = fs::symlink_metadata(&backup).map_err(MendError::io(&backup))?;
                let is_it = |it: &Metadata| it.len() == *bytes && time(it) == *modified;
                if !is_it(&there) {
                    damaged.push(path.display().to_string());
                    return Ok(false);
                }
                // The same file, or one whose size and time were not touched.
                if now.is_some_and(|now| now.is_file() && is_it(now) && now.mode() == *mode) {
                    return Ok(false);
                }
                let beside = whole.with_file_name(".firstlight-put-back");
                let _ = fs::remove_file(&beside);
                // A link again where the backup is one, else another copy: the backup stays whole until the end.
                copy(&backup, &beside, there.nlink() > 1)?;
                fs::set_permissions(&beside, fs::Permissions::from_mode(*mode)).map_err(failed)?;
                fs::rename(&beside, &whole).map_err(failed)?;
                // Renaming one link of a file over another does nothing at all.
                let _ = fs::remove_file(&beside);
                Ok(true)
            }
        }
    }

    /// Ends the snapshot: the environment stays as it is now.
    ///
    /// # Errors
    /// Where it cannot be removed.
    pub fn end(self) -> Result<(), MendError> {
        let done = self.root.join(DONE);
        remove(&done)?;
        // From here on nothing is put back, whatever happens.
        fs::rename(&self.folder, &done).map_err(MendError::io(&self.folder))?;
        remove(&done)
    }
}

/// Backs up everything below the root, folders first.
fn keep(root: &Path, folder: &Path) -> Result<BTreeMap<PathBuf, Kept>, MendError> {
    let mut kept = BTreeMap::new();
    let files = folder.join("files");
    fs::create_dir(&files).map_err(MendError::io(&files))?;
    let mut budget = None;
    walk(root, Path::new(""), &mut |path, metadata| {
        let (whole, backup) = (root.join(path), files.join(path));
        let entry = if metadata.is_dir() {
            fs::create_dir(&backup).map_err(MendError::io(&backup))?;
            Kept::Folder
        } else if metadata.is_symlink() {
            Kept::Link { target: fs::read_link(&whole).map_err(MendError::io(&whole))? }
        } else if metadata.is_file() {
            if !copy(&whole, &backup, !is_edited(path))? && metadata.len() > 0 {
                spend(&mut budget, root, metadata.len())?;
            }
            Kept::File { bytes: metadata.len(), modified: time(metadata), mode: metadata.mode() }
        } else {
            // A socket or a pipe is no part of what was installed.
            return Ok(());
        };
        kept.insert(path.to_owned(), entry);
        Ok(())
    })?;
    Ok(kept)
}

/// Counts what is really copied against the free space, so that a backup never fills a disk.
fn spend(budget: &mut Option<(u64, u64)>, root: &Path, bytes: u64) -> Result<(), MendError> {
    let free = || statvfs(root).map_or(u64::MAX, |it| it.f_bavail.saturating_mul(it.f_frsize));
    let (spent, free) = budget.get_or_insert_with(|| (0, free()));
    *spent += bytes;
    // Installing needs space as well.
    if *spent > *free / 2 {
        let (needed, free) = (*spent, *free);
        return Err(MendError::Space { root: root.display().to_string(), needed, free });
    }
    Ok(())
}

/// Whether tools edit files of this kind where they are.
fn is_edited(path: &Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    let inside = parts.by_ref().any(|part| part == "site-packages");
    let rest: Vec<_> = parts.collect();
    !inside || rest.len() < 2 || rest[0].ends_with("-info")
}

/// Clones a file, links it where `link` allows, or copies it with its time. Whether it takes no space of its own.
fn copy(from: &Path, to: &Path, link: bool) -> Result<bool, MendError> {
    if link && fs::hard_link(from, to).is_ok() {
        return Ok(true);
    }
    let failed = |error| MendError::io(to)(error);
    let source = File::open(from).map_err(MendError::io(from))?;
    let metadata = source.metadata().map_err(MendError::io(from))?;
    let target = File::create(to).map_err(failed)?;
    let cloned = clone(&source, &target);
    if !cloned {
        let (mut source, mut target) = (&source, &target);
        std::io::copy(&mut source, &mut target).map_err(failed)?;
    }
    target.set_permissions(metadata.permissions()).map_err(failed)?;
    let modified = metadata.modified().map_err(failed)?;
    target.set_modified(modified).map_err(failed)?;
    Ok(cloned)
}

#[cfg(target_os = "linux")]
fn clone(from: &File, to: &File) -> bool {
    rustix::fs::ioctl_ficlone(to, from).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn clone(_: &File, _: &File) -> bool {
    false
}

fn time(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// Everything below a folder but the snapshot's own, each folder before what is in it.
fn walk(
    root: &Path,
    folder: &Path,
    see: &mut dyn FnMut(&Path, &Metadata) -> Result<(), MendError>,
) -> Result<(), MendError> {
    let whole = root.join(folder);
    let entries = fs::read_dir(&whole).map_err(MendError::io(&whole))?;
    for entry in entries {
        let entry = entry.map_err(MendError::io(&whole))?;
        let path = folder.join(entry.file_name());
        if path == Path::new(FOLDER) || path == Path::new(DONE) {
            continue;
        }
        let metadata = entry.metadata().map_err(MendError::io(entry.path()))?;
        see(&path, &metadata)?;
        if metadata.is_dir() {
            walk(root, &path, see)?;
        }
    }
    Ok(())
}

fn write_list(
    folder: &Path,
    kept: &BTreeMap<PathBuf, Kept>,
    packages: &[String],
) -> Result<(), MendError> {
    let written = || -> std::io::Result<()> {
        let beside = folder.join("list.writing");
        let mut list = BufWriter::new(File::create(&beside)?);
        serde_json::to_writer(&mut list, &Head { packages: packages.to_vec() })?;
        for line in kept {
            list.write_all(b"\n")?;
            serde_json::to_writer(&mut list, &line)?;
        }
        let list = list.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        list.sync_all()?;
        fs::rename(&beside, folder.join("list.jsonl"))?;
        File::open(folder)?.sync_all()
    };
    written().map_err(MendError::io(folder))
}

type List = (Vec<String>, BTreeMap<PathBuf, Kept>);

fn read_list(path: &Path) -> Result<List, MendError> {
    let read = || -> std::io::Result<List> {
        let mut lines = BufReader::new(File::open(path)?).lines();
        let head: Head = serde_json::from_str(&lines.next().transpose()?.unwrap_or_default())?;
        let kept = lines.map(|line| Ok(serde_json::from_str(&line?)?));
        Ok((head.packages, kept.collect::<std::io::Result<_>>()?))
    };
    read().map_err(MendError::io(path))
}

/// Keeps others out, and waits a moment for a program that a killed fix started.
fn lock(root: &Path, folder: &Path) -> Result<File, MendError> {
    let path = folder.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(MendError::io(&path))?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if std::time::Instant::now() > end {
            return Err(MendError::Locked { root: root.display().to_string() });
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(file)
}

fn remove(folder: &Path) -> Result<(), MendError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(MendError::io(folder)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's bytes, time and mode, or a link's target.
    type Content = (Vec<u8>, Option<(i64, i64, u32)>);

    fn contents(root: &Path) -> BTreeMap<PathBuf, Content> {
        let mut found = BTreeMap::new();
        walk(root, Path::new(""), &mut |path, metadata| {
            let whole = root.join(path);
            let (bytes, about) = if metadata.is_symlink() {
                (fs::read_link(&whole).unwrap().to_string_lossy().into_owned().into_bytes(), None)
            } else if metadata.is_dir() {
                (Vec::new(), None)
            } else {
                let (seconds, nanos) = time(metadata);
                (fs::read(&whole).unwrap(), Some((seconds, nanos, metadata.mode())))
            };
            found.insert(path.to_owned(), (bytes, about));
            Ok(())
        })
        .unwrap();
        found
    }

    fn environment() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let site = folder.path().join("lib/python3.12/site-packages");
        fs::create_dir_all(site.join("a/deep")).unwrap();
        fs::create_dir_all(site.join("a-1.dist-info")).unwrap();
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        fs::write(site.join("a/__init__.py"), "one").unwrap();
        fs::write(site.join("a/deep/lib.so"), vec![7; 4096]).unwrap();
        fs::write(site.join("a-1.dist-info/RECORD"), "a/__init__.py,,\n").unwrap();
        fs::write(site.join("x.pth"), "/somewhere\n").unwrap();
        fs::write(folder.path().join("bin/tool"), "#!python\n").unwrap();
        fs::set_permissions(folder.path().join("bin/tool"), fs::Permissions::from_mode(0o755))
            .unwrap();
        symlink("/usr/bin/python3", folder.path().join("bin/python")).unwrap();
        folder
    }

    fn harm(root: &Path) {
        let site = root.join("lib/python3.12/site-packages");
        // As installers do: another file under the same name.
        fs::remove_file(site.join("a/__init__.py")).unwrap();
        fs::write(site.join("a/__init__.py"), "two").unwrap();
        fs::remove_dir_all(site.join("a/deep")).unwrap();
        fs::write(site.join("a/deep"), "a file in place of a folder").unwrap();
        fs::create_dir_all(site.join("b/more")).unwrap();
        fs::write(site.join("b/more/c.py"), "new").unwrap();
        // As people do: into the file.
        fs::write(site.join("x.pth"), "/elsewhere, longer\n").unwrap();
        fs::write(root.join("bin/tool"), "#!other\n").unwrap();
        fs::remove_file(root.join("bin/python")).unwrap();
        symlink("/nowhere", root.join("bin/python")).unwrap();
    }

    #[test]
    fn everything_is_what_it_was_once_it_is_put_back() {
        let folder = environment();
        let before = contents(folder.path());
        let snapshot = Snapshot::take(folder.path(), vec!["a==1".into()]).unwrap();
        harm(folder.path());
        assert_ne!(contents(folder.path()), before);
        let done = snapshot.put_back().unwrap();
        assert_eq!(done, PutBack { restored: 5, removed: 1 });
        assert_eq!(contents(folder.path()), before);
        assert!(!folder.path().join(FOLDER).exists() && !folder.path().join(DONE).exists());
    }

    #[test]
    fn the_next_run_finds_what_a_killed_one_left() {
        let folder = environment();
        assert!(Snapshot::left(folder.path()).unwrap().is_none());
        let before = contents(folder.path());
        drop(Snapshot::take(folder.path(), vec!["a==1".into()]).unwrap());
        harm(folder.path());
        let left = Snapshot::left(folder.path()).unwrap().unwrap();
        assert_eq!(left.packages(), ["a==1"]);
        left.put_back().unwrap();
        assert_eq!(contents(folder.path()), before);
        // Killed while it was taken: nothing had been changed, so nothing is put back.
        fs::create_dir_all(folder.path().join(FOLDER).join("files")).unwrap();
        assert!(Snapshot::left(folder.path()).unwrap().is_none());
        assert_eq!(contents(folder.path()), before);
        assert!(!folder.path().join(FOLDER).exists());
    }

    #[test]
    fn a_mended_environment_stays_and_a_backup_that_was_written_into_is_told() {
        let folder = environment();
        let snapshot = Snapshot::take(folder.path(), Vec::new()).unwrap();
        harm(folder.path());
        let harmed = contents(folder.path());
        snapshot.end().unwrap();
        assert_eq!(contents(folder.path()), harmed);

        let folder = environment();
        let snapshot = Snapshot::take(folder.path(), Vec::new()).unwrap();
        // No installer does this to a package's module: through the link it reaches the backup.
        let module = folder.path().join("lib/python3.12/site-packages/a/__init__.py");
        fs::write(&module, "written into, longer").unwrap();
        let error = snapshot.put_back().unwrap_err().to_string();
        assert!(error.contains("a/__init__.py first"), "{error}");
    }
}
