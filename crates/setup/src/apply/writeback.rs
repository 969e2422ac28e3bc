//! Writes files back to disk while further ones arrive.
//!
//! An environment has tens of thousands of small files: one call for the whole file system (`syncfs`) costs far less
//! than one per file. A single call at the end would be awaited while nothing else is left to do. Here it is repeated
//! while files are downloaded and opened, so that little is left for the last one.

use super::ApplyError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Minimum time between two calls.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after a call as a multiple of its duration, because others use the disk too.
const REST: u32 = 4;

/// Writes back a file system until it is dropped or finished.
#[derive(Debug)]
pub(super) struct Writeback {
    folder: PathBuf,
    stop: Sender<()>,
    thread: JoinHandle<io::Result<Call>>,
}

/// When it returns, everything written before is on disk.
type Call = Box<dyn FnMut() -> io::Result<()> + Send>;

impl Writeback {
    /// Starts for the file system of a folder.
    pub(super) fn start(folder: &Path) -> Result<Self, ApplyError> {
        // Opened once: a write error is reported once per open file, and may not be reported to one opened later.
        let file = File::open(folder).map_err(ApplyError::io(folder))?;
        Ok(Self::of(folder, Box::new(move || sync(&file))))
    }

    fn of(folder: &Path, mut call: Call) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut pause = PAUSE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                call()?;
                pause = PAUSE.max(REST * began.elapsed());
            }
            Ok(call)
        });
        Self { folder: folder.to_owned(), stop, thread }
    }

    /// Returns when everything written so far is on disk.
    ///
    /// # Errors
    /// If some of it could not be written, now or earlier.
    pub(super) fn finish(self) -> Result<(), ApplyError> {
        drop(self.stop);
        let ended = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Data written since its last call started may not be part of that call.
        ended.and_then(|mut call| call()).map_err(ApplyError::io(&self.folder))
    }
}

/// Syncs the file system of the folder.
#[cfg(target_os = "linux")]
fn sync(folder: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(folder)?)
}

/// macOS has no call for one file system.
#[cfg(not(target_os = "linux"))]
fn sync(_: &File) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A writeback with counted calls, of which the first `failing` fail.
    fn counted(failing: usize) -> (Writeback, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let call = move || match counter.fetch_add(1, Ordering::SeqCst) < failing {
            true => Err(io::Error::other("the disk is broken")),
            false => Ok(()),
        };
        (Writeback::of(Path::new("/"), Box::new(call)), count)
    }

    fn wait_for(count: &AtomicUsize, calls: usize) {
        let began = Instant::now();
        while count.load(Ordering::SeqCst) < calls {
            assert!(began.elapsed() < Duration::from_secs(60), "no call was made");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn callback_runs_during_the_wait_and_at_the_end() {
        let (writeback, count) = counted(0);
        wait_for(&count, 2);
        let before = count.load(Ordering::SeqCst);
        writeback.finish().unwrap();
        assert!(count.load(Ordering::SeqCst) > before);
    }

    #[test]
    fn a_failed_write_is_an_error_at_the_end() {
        let (writeback, count) = counted(1);
        wait_for(&count, 1);
        let error = writeback.finish().unwrap_err().to_string();
        assert!(error.contains("the disk is broken"), "{error}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn callbacks_end_with_a_failed_apply() {
        let (writeback, count) = counted(0);
        let Writeback { stop, thread, .. } = writeback;
        drop(stop);
        assert!(thread.join().unwrap().is_ok());
        let calls = count.load(Ordering::SeqCst);
        thread::sleep(3 * PAUSE);
        assert_eq!(count.load(Ordering::SeqCst), calls);
    }

    #[test]
    fn a_real_file_system_is_written_back() {
        let folder = tempfile::tempdir().unwrap();
        let writeback = Writeback::start(folder.path()).unwrap();
        std::fs::write(folder.path().join("file"), "text").unwrap();
        writeback.finish().unwrap();
        assert!(Writeback::start(&folder.path().join("absent")).is_err());
    }
}
