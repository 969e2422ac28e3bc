//! Downloads every file of the plan into the cache; each is compared with its hash and opened while the next ones
//! arrive.

use super::steps::{Outcome, count};
use super::{ApplyError, Progress};
use crate::fetch::{Download, DownloadEvent, Fetch, Hash};
use crate::wheel::{self, Layout};
use facts::AppliedPackage;
use facts::CompactSort;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// A file selected from those that the plan allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SelectedFile {
    /// Normalised name of the package.
    pub(super) package: String,
    /// Its version.
    pub(super) version: String,
    /// File name.
    pub(super) file: String,
    /// Its address.
    pub(super) url: String,
    /// Its hash in the plan.
    pub(super) sha256: String,
    /// Its size in bytes, if the plan has it.
    pub(super) bytes: Option<u64>,
}

impl SelectedFile {
    /// Its path in the cache: named by its hash, so that no other file can be mistaken for it.
    pub(super) fn path(&self, cache: &Path) -> PathBuf {
        cache.join(&self.sha256).join(&self.file)
    }

    /// The download request.
    pub(super) fn wanted(&self, cache: &Path) -> Download {
        let Self { url, sha256, bytes, .. } = self.clone();
        Download { url, path: self.path(cache), hash: Some(Hash::Sha256(sha256)), bytes }
    }
}

/// Receives the downloaded files, and opens each wheel below `made` in parallel, in their order.
pub(super) fn run(
    files: &[SelectedFile],
    cache: &Path,
    fetch: Option<Fetch>,
    (made, python): (&Path, &str),
    progress: &mut dyn Progress,
) -> Outcome<(Vec<AppliedPackage>, Layout)> {
    let mut fetched = vec![None; files.len()];
    let (ready, wheels) = mpsc::channel::<usize>();
    let wheels = Mutex::new(wheels);
    let open = || {
        let mut opened = Vec::new();
        loop {
            let number = wheels.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(number) = number else { return Ok(opened) };
            opened.push((number, wheel::unpack(&files[number].path(cache), made, python)?));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut opened = thread::scope(|scope| {
        let openers: Vec<_> = (0..cores).map(|_| scope.spawn(open)).collect();
        let mut fetch = fetch;
        let mut next = || match &mut fetch {
            Some(fetch) => fetch.next_event().map_err(ApplyError::io(cache)),
            None => Ok(None),
        };
        let mut came = || {
            while let Some(event) = next()? {
                receive_event(event, files, &mut fetched, progress, |number: usize| {
                    // A source is opened when it is built. If every opener has failed, its error is the one to report.
                    if files[number].file.ends_with(".whl") {
                        let _ = ready.send(number);
                    }
                })?;
            }
            Ok(())
        };
        let came = came();
        drop(ready);
        let opened = openers
            .into_iter()
            .map(|opener| opener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let opened: Result<Vec<Vec<_>>, wheel::WheelError> = opened.collect();
        came.and(opened.map(|opened| opened.concat()).map_err(ApplyError::from))
    })?;
    opened.compact_sort_by_key(|(number, _)| *number);
    let mut layout = Layout::default();
    let shared = layout.add(opened.into_iter().map(|(_, wheel)| wheel).collect())?;
    let packages: Vec<AppliedPackage> = files
        .iter()
        .zip(&fetched)
        .map(|(file, fetched)| applied(file, cache, *fetched))
        .collect::<Result<_, _>>()?;
    let bytes = packages.iter().map(|package| package.fetched_bytes).sum();
    let there = packages.iter().filter(|package| package.fetched_bytes == 0).count();
    let shared = match shared {
        0 => String::new(),
        1 => "; 1 file is in more than one wheel, of which the last one is used".to_owned(),
        files => {
            format!("; {files} files are in more than one wheel, of which the last one is used")
        }
    };
    let words = format!(
        "{}, {there} of them from the cache; all hashes match{shared}",
        count(files.len(), "file")
    );
    Ok(((packages, layout), bytes, words))
}

fn receive_event(
    event: DownloadEvent,
    files: &[SelectedFile],
    fetched: &mut [Option<u64>],
    progress: &mut dyn Progress,
    ready: impl FnOnce(usize),
) -> Result<(), ApplyError> {
    match event {
        DownloadEvent::Bytes(number, bytes) => progress.advance(bytes, &files[number].file),
        DownloadEvent::Dropped(number, reason) => {
            progress.advance(0, &format!("{}: {reason}, continuing", files[number].file));
        }
        DownloadEvent::Done(number, bytes) => {
            fetched[number] = Some(bytes);
            ready(number);
        }
        DownloadEvent::Mismatch(number, found) => {
            let SelectedFile { file, url, sha256, .. } = files[number].clone();
            return Err(ApplyError::Hash { file, url, wanted: sha256, found });
        }
        DownloadEvent::Failed(number, reason) => {
            let SelectedFile { file, url, .. } = files[number].clone();
            return Err(ApplyError::Fetch { file, url, reason });
        }
    }
    Ok(())
}

fn applied(
    file: &SelectedFile,
    cache: &Path,
    fetched: Option<u64>,
) -> Result<AppliedPackage, ApplyError> {
    let path = file.path(cache);
    // If the script ended without reporting this file, it was not downloaded.
    let fetched_bytes = fetched.ok_or_else(|| ApplyError::Fetch {
        file: file.file.clone(),
        url: file.url.clone(),
        reason: "the download program ended before it arrived".to_owned(),
    })?;
    let bytes = path.metadata().map_err(ApplyError::io(&path))?.len();
    Ok(AppliedPackage {
        name: file.package.clone(),
        version: file.version.clone(),
        file: file.file.clone(),
        sha256: file.sha256.clone(),
        bytes,
        fetched_bytes,
        build: None,
    })
}
