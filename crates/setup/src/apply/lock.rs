//! One apply at a time for one environment, and none while a program of a killed one still writes.
//!
//! Two locks of the kernel's, which end with whoever holds them and leave nothing to clean up. The first is held by this
//! process alone. The second is handed to every program it starts, as its standard input: it is held until the last of
//! them has ended, so that an apply that follows a killed one never writes beside a uv or a compiler left behind by it.

use super::ApplyError;
use super::places::{self, Places};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long the programs of a killed apply may take to end. uv takes seconds; a compiler that was left behind is worth
/// an error that says so.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the first lock may be held: an apply that is at work holds it for longer, while a program that anyone starts at this
/// moment holds a copy of every open file until it has become that program.
const MOMENT: Duration = Duration::from_millis(500);

/// Both locks of an environment.
#[derive(Debug)]
pub(super) struct Lock {
    _own: File,
    programs: File,
}

impl Lock {
    /// Takes both locks, and makes the folder of the work for them.
    pub(super) fn take(places: &Places) -> Result<Self, ApplyError> {
        let locked = |what| ApplyError::Locked { venv: places.venv.clone(), what };
        let own = take(&places.work, "lock", MOMENT)?
            .ok_or_else(|| locked("another apply is at work on this environment"))?;
        let programs = take(&places.work, "programs.lock", PATIENCE)?.ok_or_else(|| {
            locked("a program that a killed apply started still works on this environment")
        })?;
        Ok(Self { _own: own, programs })
    }

    /// The standard input of a program that this apply starts: empty, and it carries the lock.
    pub(super) fn stdin(&self) -> std::io::Result<Stdio> {
        Ok(self.programs.try_clone()?.into())
    }

    /// Removes the folder of the work while it is still locked.
    pub(super) fn release(self, places: &Places) -> Result<(), ApplyError> {
        places::remove(&places.work)
    }
}

/// Opens and locks a file of the folder; `None` where somebody else holds it for longer than `patience`.
fn take(folder: &Path, name: &str, patience: Duration) -> Result<Option<File>, ApplyError> {
    let path = folder.join(name);
    let began = Instant::now();
    loop {
        fs::create_dir_all(folder).map_err(ApplyError::io(folder))?;
        let opened =
            OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
        let file = match opened {
            // The holder removed the folder as it ended.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            opened => opened.map_err(ApplyError::io(&path))?,
        };
        match file.try_lock() {
            // A lock on a file that was removed in between keeps nobody out.
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
    fn a_second_apply_is_kept_out_until_the_first_and_its_programs_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::of(&folder.path().join("venv")).unwrap();
        let lock = Lock::take(&places).unwrap();
        let refused = Lock::take(&places).unwrap_err().to_string();
        assert!(refused.starts_with("another apply is at work"), "{refused}");
        let mut left =
            Command::new("sleep").arg("0.3").stdin(lock.stdin().unwrap()).spawn().unwrap();
        let began = Instant::now();
        drop(lock);
        // The first is gone, as if killed; what it started is not.
        let lock = Lock::take(&places).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
        left.wait().unwrap();
        lock.release(&places).unwrap();
        assert!(!places.work.exists());
        Lock::take(&places).unwrap();
    }
}
