//! Ensures one apply at a time per environment, and none while a program of a killed one still writes.
//!
//! There are two kernel locks, which are released when their holders end and leave nothing to clean up. The first is
//! held by this process only. The second is inherited by every program it starts, as standard input, and is held until
//! the last of them has ended, so that an apply after a killed one never writes concurrently with its uv or compiler.

use super::ApplyError;
use super::places::{self, ApplyPaths};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time for the programs of a killed apply to end. uv takes seconds; a remaining compiler is reported as an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time to wait for the first lock: a running apply holds it longer, while a program being started holds copies of all
/// open files for a moment, until it executes.
const MOMENT: Duration = Duration::from_millis(500);

/// Both locks of an environment.
#[derive(Debug)]
pub(super) struct Lock {
    _own: File,
    programs: File,
}

impl Lock {
    /// Acquires both locks, and creates the work folder for them.
    pub(super) fn take(places: &ApplyPaths) -> Result<Self, ApplyError> {
        let locked = |what| ApplyError::Locked { venv: places.venv.clone(), what };
        let own = take(&places.work, "lock", MOMENT)?
            .ok_or_else(|| locked("another apply is running on this environment"))?;
        let programs = take(&places.work, "programs.lock", PATIENCE)?
            .ok_or_else(|| locked("a program of a killed apply still uses this environment"))?;
        Ok(Self { _own: own, programs })
    }

    /// The standard input of a program that this apply starts: empty, and it holds the lock.
    pub(super) fn stdin(&self) -> std::io::Result<Stdio> {
        Ok(self.programs.try_clone()?.into())
    }

    /// Removes the work folder while it is still locked.
    pub(super) fn release(self, places: &ApplyPaths) -> Result<(), ApplyError> {
        places::remove(&places.work)
    }
}

/// Opens and locks a file of the folder; `None` if it is held for longer than `patience`.
fn take(folder: &Path, name: &str, patience: Duration) -> Result<Option<File>, ApplyError> {
    let path = folder.join(name);
    let began = Instant::now();
    loop {
        fs::create_dir_all(folder).map_err(ApplyError::io(folder))?;
        let opened =
            OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
        let file = match opened {
            // The holder removed the folder when it ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            opened => opened.map_err(ApplyError::io(&path))?,
        };
        match file.try_lock() {
            // A lock on a file that was removed in between protects nothing.
            Ok(()) if is_at(&file, &path) => return Ok(Some(file)),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if began.elapsed() >= patience => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(ApplyError::io(&path)(error)),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let there = fs::metadata(path).ok().map(id);
    there.is_some() && there == file.metadata().ok().map(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn second_apply_is_refused_until_the_first_and_its_programs_end() {
        let folder = tempfile::tempdir().unwrap();
        let places = ApplyPaths::of(&folder.path().join("venv")).unwrap();
        let lock = Lock::take(&places).unwrap();
        let refused = Lock::take(&places).unwrap_err().to_string();
        assert!(refused.starts_with("another apply is running"), "{refused}");
        let mut left =
            Command::new("sleep").arg("0.3").stdin(lock.stdin().unwrap()).spawn().unwrap();
        let began = Instant::now();
        drop(lock);
        // The first is released, as if its holder was killed; the program it started still runs.
        let lock = Lock::take(&places).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
        left.wait().unwrap();
        lock.release(&places).unwrap();
        assert!(!places.work.exists());
        Lock::take(&places).unwrap();
    }
}
