//! Every file of the plan into the cache, each held against its hash and opened while the next ones come.

use super::steps::Outcome;
use super::{ApplyError, Progress};
use crate::fetch::{Event, Fetch, Hash, Wanted};
use crate::wheel::{self, Layout};
use facts::AppliedPackage;
use facts::CompactSort;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// A file that was chosen of those the plan allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Normalised name of the package.
    pub(super) package: String,
    /// Its version.
    pub(super) version: String,
    /// File name.
    pub(super) file: String,
    /// Its address.
    pub(super) url: String,
    /// The hash the plan has.
    pub(super) sha256: String,
    /// Its size in bytes, where the plan has it.
    pub(super) bytes: Option<u64>,
}

impl Chosen {
    /// Where the cache keeps it: under its hash, so that no other file can be taken for it.
    pub(super) fn path(&self, cache: &Path) -> PathBuf {
        cache.join(&self.sha256).join(&self.file)
    }

    /// What is to be fetched.
    pub(super) fn wanted(&self, cache: &Path) -> Wanted {
        let Self { url, sha256, bytes, .. } = self.clone();
        Wanted { url, path: self.path(cache), hash: Some(Hash::Sha256(sha256)), bytes }
    }
}

/// Hears of the files that come, and opens each wheel below `made`, beside the others and in their order.
pub(super) fn run(
    files: &[Chosen],
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
                hear(event, files, &mut fetched, progress, |number: usize| {
                    // A source is opened where it is built. When every opener has failed, its error is the one that
                    // counts.
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
        count => {
            format!("; {count} files are in more than one wheel, and the last one's are taken")
        }
    };
    let words = format!(
        "{} files, {there} of them kept from before; each has its hash{shared}",
        files.len()
    );
    Ok(((packages, layout), bytes, words))
}

fn hear(
    event: Event,
    files: &[Chosen],
    fetched: &mut [Option<u64>],
    progress: &mut dyn Progress,
    ready: impl FnOnce(usize),
) -> Result<(), ApplyError> {
    match event {
        Event::Bytes(number, bytes) => progress.advance(bytes, &files[number].file),
        Event::Dropped(number, reason) => {
            progress.advance(0, &format!("{}: {reason}, going on", files[number].file));
        }
        Event::Done(number, bytes) => {
            fetched[number] = Some(bytes);
            ready(number);
        }
        Event::Mismatch(number, found) => {
            let Chosen { file, url, sha256, .. } = files[number].clone();
            return Err(ApplyError::Hash { file, url, wanted: sha256, found });
        }
        Event::Failed(number, reason) => {
            let Chosen { file, url, .. } = files[number].clone();
            return Err(ApplyError::Fetch { file, url, reason });
        }
    }
    Ok(())
}

fn applied(
    file: &Chosen,
    cache: &Path,
    fetched: Option<u64>,
) -> Result<AppliedPackage, ApplyError> {
    let path = file.path(cache);
    // A script that ended early without a word about this file has not fetched it.
    let fetched_bytes = fetched.ok_or_else(|| ApplyError::Fetch {
        file: file.file.clone(),
        url: file.url.clone(),
        reason: "the fetching program ended before it came".to_owned(),
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
