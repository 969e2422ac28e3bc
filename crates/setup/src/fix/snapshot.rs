//! A backup of an environment, stored inside it while it is being changed.
//!
//! Each file is cloned if the file system supports it (`FICLONE`), and otherwise linked or copied. A hard link costs
//! nothing and shares the file's bytes, so a program that wrote into the file would change the backup as well. uv and
//! pip never do: both write another file and rename it (tested by firstlight/tests/setup/fix). Files that users and
//! tools edit in place (`pyvenv.cfg`, `*.pth`, scripts, metadata) are copied, and every link is compared with size and
//! time when it is restored.

use super::FixError;
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
/// Its new name once a restore is not needed any more.
const DONE: &str = ".firstlight-fix-done";

/// One file, link or folder of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum BackupEntry {
    Folder,
    Link { target: PathBuf },
    File { bytes: u64, modified: (i64, i64), mode: u32 },
}

/// The first line of the list.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Every package with its version and the hash of its RECORD.
    packages: Vec<String>,
}

/// The backup of one environment, complete when it is returned.
#[derive(Debug)]
pub struct EnvironmentSnapshot {
    root: PathBuf,
    folder: PathBuf,
    kept: BTreeMap<PathBuf, BackupEntry>,
    packages: Vec<String>,
    lock: File,
}

/// The changes made by a restore.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Files that were changed or missing.
    pub restored: usize,
    /// Files that were new.
    pub removed: usize,
}

impl EnvironmentSnapshot {
    /// Takes a backup. `packages` lists the installed packages, for users who inspect it.
    ///
    /// # Errors
    /// The environment cannot be read or its backup not written; no files are left.
    pub fn take(root: &Path, packages: Vec<String>) -> Result<Self, FixError> {
        let root = fs::canonicalize(root).map_err(FixError::io(root))?;
        let folder = root.join(FOLDER);
        remove(&root.join(DONE))?;
        fs::create_dir_all(&folder).map_err(FixError::io(&folder))?;
        let lock = lock(&root, &folder)?;
        // An incomplete backup was never needed.
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

    /// Whether a killed fix left a backup; takes no lock and changes nothing.
    pub fn is_left(root: &Path) -> bool {
        root.join(FOLDER).join("list.jsonl").exists()
    }

    /// The backup of a killed fix; `None` if there is none, or if the fix was killed before it changed anything.
    ///
    /// # Errors
    /// Another fix is running, or the list cannot be read.
    pub fn left(root: &Path) -> Result<Option<Self>, FixError> {
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

    /// Every package with its version and the hash of its RECORD, before the fix.
    pub fn packages(&self) -> &[String] {
        &self.packages
    }

    /// The standard input of a program that changes the environment: empty, and a holder of the lock, so that a fix
    /// after a killed one waits until its programs have ended.
    ///
    /// # Errors
    /// The system's error.
    pub fn stdin(&self) -> std::io::Result<Stdio> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Restores the environment byte by byte, and removes the backup.
    ///
    /// # Errors
    /// A file cannot be written, or a file of the backup has changed; the backup is then kept.
    pub fn put_back(self) -> Result<RestoreReport, FixError> {
        let mut done = RestoreReport::default();
        let mut now = BTreeMap::new();
        walk(&self.root, Path::new(""), &mut |path, metadata| {
            now.insert(path.to_owned(), metadata.clone());
            Ok(())
        })?;
        // Deeper paths first, so that folders are empty before they are removed.
        for (path, metadata) in now.iter().rev() {
            let wanted = self.kept.get(path);
            let fits = match (wanted, metadata.file_type()) {
                (Some(BackupEntry::Folder), kind) => kind.is_dir(),
                (Some(BackupEntry::Link { .. }), kind) => kind.is_symlink(),
                (Some(BackupEntry::File { .. }), kind) => kind.is_file(),
                (None, _) => false,
            };
            if fits {
                continue;
            }
            let whole = self.root.join(path);
            let gone =
                if metadata.is_dir() { fs::remove_dir(&whole) } else { fs::remove_file(&whole) };
            gone.map_err(FixError::io(&whole))?;
            done.removed += usize::from(!metadata.is_dir() && wanted.is_none());
        }
        let mut damaged = Vec::new();
        for (path, kept) in &self.kept {
            let changed = self.restore(path, kept, now.get(path), &mut damaged)?;
            done.restored += usize::from(changed);
        }
        if !damaged.is_empty() {
            let root = self.root.display().to_string();
            return Err(FixError::Damaged { root, files: damaged });
        }
        self.end()?;
        Ok(done)
    }

    /// Restores one entry; returns whether it had changed.
    fn restore(
        &self,
        path: &Path,
        kept: &BackupEntry,
        now: Option<&Metadata>,
        damaged: &mut Vec<String>,
    ) -> Result<bool, FixError> {
        let whole = self.root.join(path);
        let failed = |error| FixError::io(&whole)(error);
        match kept {
            BackupEntry::Folder if now.is_some_and(Metadata::is_dir) => Ok(false),
            BackupEntry::Folder => fs::create_dir(&whole).map_err(failed).map(|()| false),
            BackupEntry::Link { target } => {
                if now.is_some() && fs::read_link(&whole).is_ok_and(|there| there == *target) {
                    return Ok(false);
                }
                let _ = fs::remove_file(&whole);
                symlink(target, &whole).map_err(failed)?;
                Ok(true)
            }
            BackupEntry::File { bytes, modified, mode } => {
                let backup = self.folder.join("files").join(path);
                let there = fs::symlink_metadata(&backup).map_err(FixError::io(&backup))?;
                let is_it = |it: &Metadata| it.len() == *bytes && time(it) == *modified;
                if !is_it(&there) {
                    damaged.push(path.display().to_string());
                    return Ok(false);
                }
                // The same file, or one with unchanged size and time.
                if now.is_some_and(|now| now.is_file() && is_it(now) && now.mode() == *mode) {
                    return Ok(false);
                }
                let beside = whole.with_file_name(".firstlight-put-back");
                let _ = fs::remove_file(&beside);
                // A hard link if the backup is one, or else another copy: the backup stays complete until the end.
                copy(&backup, &beside, there.nlink() > 1)?;
                fs::set_permissions(&beside, fs::Permissions::from_mode(*mode)).map_err(failed)?;
                fs::rename(&beside, &whole).map_err(failed)?;
                // Renaming one hard link of a file over another has no effect.
                let _ = fs::remove_file(&beside);
                Ok(true)
            }
        }
    }

    /// Removes the backup: the environment keeps its current state.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn end(self) -> Result<(), FixError> {
        let done = self.root.join(DONE);
        remove(&done)?;
        // After this rename nothing will be restored.
        fs::rename(&self.folder, &done).map_err(FixError::io(&self.folder))?;
        remove(&done)
    }
}

/// Backs up everything below the root, folders first.
fn keep(root: &Path, folder: &Path) -> Result<BTreeMap<PathBuf, BackupEntry>, FixError> {
    let mut kept = BTreeMap::new();
    let files = folder.join("files");
    fs::create_dir(&files).map_err(FixError::io(&files))?;
    let mut budget = None;
    walk(root, Path::new(""), &mut |path, metadata| {
        let (whole, backup) = (root.join(path), files.join(path));
        let entry = if metadata.is_dir() {
            fs::create_dir(&backup).map_err(FixError::io(&backup))?;
            BackupEntry::Folder
        } else if metadata.is_symlink() {
            BackupEntry::Link { target: fs::read_link(&whole).map_err(FixError::io(&whole))? }
        } else if metadata.is_file() {
            if !copy(&whole, &backup, !is_edited(path))? && metadata.len() > 0 {
                spend(&mut budget, root, metadata.len())?;
            }
            BackupEntry::File {
                bytes: metadata.len(),
                modified: time(metadata),
                mode: metadata.mode(),
            }
        } else {
            // Sockets and pipes are not installed files.
            return Ok(());
        };
        kept.insert(path.to_owned(), entry);
        Ok(())
    })?;
    Ok(kept)
}

/// Counts copied bytes against the free space, so that a backup never fills a disk.
fn spend(budget: &mut Option<(u64, u64)>, root: &Path, bytes: u64) -> Result<(), FixError> {
    let free = || statvfs(root).map_or(u64::MAX, |it| it.f_bavail.saturating_mul(it.f_frsize));
    let (spent, free) = budget.get_or_insert_with(|| (0, free()));
    *spent += bytes;
    // Installing needs space as well.
    if *spent > *free / 2 {
        let (needed, free) = (*spent, *free);
        return Err(FixError::Space { root: root.display().to_string(), needed, free });
    }
    Ok(())
}

/// Whether tools edit files of this kind in place.
fn is_edited(path: &Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    let inside = parts.by_ref().any(|part| part == "site-packages");
    let rest: Vec<_> = parts.collect();
    !inside || rest.len() < 2 || rest[0].ends_with("-info")
}

/// Clones a file, links it if `link` is set, or copies it with its time. Returns whether it takes no additional space.
fn copy(from: &Path, to: &Path, link: bool) -> Result<bool, FixError> {
    if link && fs::hard_link(from, to).is_ok() {
        return Ok(true);
    }
    let failed = |error| FixError::io(to)(error);
    let source = File::open(from).map_err(FixError::io(from))?;
    let metadata = source.metadata().map_err(FixError::io(from))?;
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

/// Everything below a folder except the backup, each folder before its entries.
fn walk(
    root: &Path,
    folder: &Path,
    see: &mut dyn FnMut(&Path, &Metadata) -> Result<(), FixError>,
) -> Result<(), FixError> {
    let whole = root.join(folder);
    let entries = fs::read_dir(&whole).map_err(FixError::io(&whole))?;
    for entry in entries {
        let entry = entry.map_err(FixError::io(&whole))?;
        let path = folder.join(entry.file_name());
        if path == Path::new(FOLDER) || path == Path::new(DONE) {
            continue;
        }
        let metadata = entry.metadata().map_err(FixError::io(entry.path()))?;
        see(&path, &metadata)?;
        if metadata.is_dir() {
            walk(root, &path, see)?;
        }
    }
    Ok(())
}

fn write_list(
    folder: &Path,
    kept: &BTreeMap<PathBuf, BackupEntry>,
    packages: &[String],
) -> Result<(), FixError> {
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
    written().map_err(FixError::io(folder))
}

type List = (Vec<String>, BTreeMap<PathBuf, BackupEntry>);

fn read_list(path: &Path) -> Result<List, FixError> {
    let read = || -> std::io::Result<List> {
        let mut lines = BufReader::new(File::open(path)?).lines();
        let head: Head = serde_json::from_str(&lines.next().transpose()?.unwrap_or_default())?;
        let kept = lines.map(|line| Ok(serde_json::from_str(&line?)?));
        Ok((head.packages, kept.collect::<std::io::Result<_>>()?))
    };
    read().map_err(FixError::io(path))
}

/// Locks out other fixes, and waits a moment for a program of a killed fix.
fn lock(root: &Path, folder: &Path) -> Result<File, FixError> {
    let path = folder.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(FixError::io(&path))?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if std::time::Instant::now() > end {
            return Err(FixError::Locked { root: root.display().to_string() });
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(file)
}

fn remove(folder: &Path) -> Result<(), FixError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FixError::io(folder)(error))
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
        // As installers do: another file with the same name.
        fs::remove_file(site.join("a/__init__.py")).unwrap();
        fs::write(site.join("a/__init__.py"), "two").unwrap();
        fs::remove_dir_all(site.join("a/deep")).unwrap();
        fs::write(site.join("a/deep"), "a file instead of a folder").unwrap();
        fs::create_dir_all(site.join("b/more")).unwrap();
        fs::write(site.join("b/more/c.py"), "new").unwrap();
        // As users do: writing into the file.
        fs::write(site.join("x.pth"), "/elsewhere, longer\n").unwrap();
        fs::write(root.join("bin/tool"), "#!other\n").unwrap();
        fs::remove_file(root.join("bin/python")).unwrap();
        symlink("/nowhere", root.join("bin/python")).unwrap();
    }

    #[test]
    fn a_restored_environment_equals_the_original() {
        let folder = environment();
        let before = contents(folder.path());
        let snapshot = EnvironmentSnapshot::take(folder.path(), vec!["a==1".into()]).unwrap();
        harm(folder.path());
        assert_ne!(contents(folder.path()), before);
        let done = snapshot.put_back().unwrap();
        assert_eq!(done, RestoreReport { restored: 5, removed: 1 });
        assert_eq!(contents(folder.path()), before);
        assert!(!folder.path().join(FOLDER).exists() && !folder.path().join(DONE).exists());
    }

    #[test]
    fn snapshot_of_a_killed_run_is_found() {
        let folder = environment();
        assert!(EnvironmentSnapshot::left(folder.path()).unwrap().is_none());
        let before = contents(folder.path());
        drop(EnvironmentSnapshot::take(folder.path(), vec!["a==1".into()]).unwrap());
        harm(folder.path());
        let left = EnvironmentSnapshot::left(folder.path()).unwrap().unwrap();
        assert_eq!(left.packages(), ["a==1"]);
        left.put_back().unwrap();
        assert_eq!(contents(folder.path()), before);
        // Killed while taking the backup: nothing had been changed, so nothing is restored.
        fs::create_dir_all(folder.path().join(FOLDER).join("files")).unwrap();
        assert!(EnvironmentSnapshot::left(folder.path()).unwrap().is_none());
        assert_eq!(contents(folder.path()), before);
        assert!(!folder.path().join(FOLDER).exists());
    }

    #[test]
    fn a_fixed_environment_stays_and_a_modified_backup_is_reported() {
        let folder = environment();
        let snapshot = EnvironmentSnapshot::take(folder.path(), Vec::new()).unwrap();
        harm(folder.path());
        let harmed = contents(folder.path());
        snapshot.end().unwrap();
        assert_eq!(contents(folder.path()), harmed);

        let folder = environment();
        let snapshot = EnvironmentSnapshot::take(folder.path(), Vec::new()).unwrap();
        // No installer does this to a package's module: the link makes it change the backup.
        let module = folder.path().join("lib/python3.12/site-packages/a/__init__.py");
        fs::write(&module, "written into, longer").unwrap();
        let error = snapshot.put_back().unwrap_err().to_string();
        assert!(error.ends_with("a/__init__.py"), "{error}");
    }
}
