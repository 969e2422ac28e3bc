//! Finds models by their hub name: in the cache, or by downloading them into it.

use crate::cli::ModelName;
use crate::failure::Failure;
use crate::stopping;
use crate::transfer::Transfer;
use models::{Downloader, HubFile, HubHash, ModelError, NO_NETWORK};
use setup::fetch::{Bearer, Download, DownloadEvent, Fetch, Hash};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable with an account's token, as in the hub's own tools.
const TOKEN: &str = "HF_TOKEN";

/// The folder of a model that is to be run or changed.
///
/// # Errors
/// It does not exist; for the name of a shape, which has no weights, the hint explains how to get some.
pub(crate) fn locate(named: &ModelName) -> anyhow::Result<PathBuf> {
    let name = named.model.display().to_string();
    if !named.model.exists() && models::shape(&name).is_ok() {
        let what = format!("{name} is the name of a shape, and no folder of that name has weights");
        let hint = format!(
            "`firstlight model synth {name} my-model` writes one with random weights; a published model is org/{name} --download"
        );
        return Err(Failure::hinted(what, hint));
    }
    locate_or_shape(named)
}

/// The folder of a model, or the name of a shape, for commands that need no weights.
pub(crate) fn locate_or_shape(named: &ModelName) -> anyhow::Result<PathBuf> {
    if !named.download {
        return Ok(models::locate(&named.model)?);
    }
    let interrupted = format!(
        "interrupted: {} is incomplete; the same command resumes the download",
        named.model.display()
    );
    let _until_then = stopping::PrintOnSignals::start(interrupted, Some(job_file()))?;
    match models::download(&named.model, &Python) {
        Err(ModelError::Hub { what, .. }) if what == NO_PYTHON => {
            Err(Failure::hinted(what, setup::python::INSTALL))
        }
        downloaded => Ok(downloaded?),
    }
}

/// The error of a download without an interpreter.
const NO_PYTHON: &str = "--download needs Python 3, and there is no python3 on PATH";

/// The file with the addresses for the HTTP client.
fn job_file() -> PathBuf {
    std::env::temp_dir().join(format!("firstlight-{}.json", std::process::id()))
}

/// Downloads over HTTP through any Python, with the system's certificates, as `apply` does.
struct Python;

impl Downloader for Python {
    fn fetch(&self, files: &[HubFile]) -> Result<(), String> {
        let Some(first) = files.first() else { return Ok(()) };
        let secret = std::env::var_os(TOKEN).is_some_and(|token| !token.is_empty());
        let bearer = secret.then(|| Bearer { variable: TOKEN.to_owned(), url: first.url.clone() });
        let wanted: Vec<Download> = files.iter().map(wanted).collect();
        let python = setup::index::interpreter(std::env::var_os("PATH").as_deref());
        let mut python = Command::new(python.ok_or(NO_PYTHON)?);
        python.args(["-I", "-B"]).stdin(Stdio::null());
        let told = job_file();
        let fetched = Fetch::files(python, &told, &wanted, bearer.as_ref())
            .map_err(|error| format!("Python, which firstlight uses for HTTP: {error}"))
            .and_then(|mut fetch| receive_events(&mut fetch, files));
        // It contains only addresses, and may not exist.
        let _ = std::fs::remove_file(&told);
        fetched
    }
}

fn wanted(file: &HubFile) -> Download {
    let hash = file.hash.clone().map(|hash| match hash {
        HubHash::Sha256(hash) => Hash::Sha256(hash),
        HubHash::GitBlob(hash) => Hash::GitBlob(hash),
    });
    Download { url: file.url.clone(), path: file.path.clone(), hash, bytes: file.bytes }
}

/// Receives download events until all files are complete or one fails.
fn receive_events(fetch: &mut Fetch, files: &[HubFile]) -> Result<(), String> {
    let came = Arc::new(AtomicU64::new(0));
    let total = files.iter().filter_map(|file| file.bytes).sum();
    let _showing = Transfer::watch("download", total, Arc::clone(&came));
    let mut announced = false;
    while let Some(event) = fetch.next_event().map_err(|error| error.to_string())? {
        let url = |number: usize| &files[number].url;
        match event {
            DownloadEvent::Bytes(_, bytes) => {
                came.fetch_add(bytes, Ordering::Relaxed);
            }
            DownloadEvent::Dropped(number, reason) => {
                let why = failed(url(number), &reason);
                if why.starts_with(NO_NETWORK) && !std::mem::replace(&mut announced, true) {
                    eprintln!("note: {why}; trying again");
                }
            }
            DownloadEvent::Done(..) => {}
            DownloadEvent::Mismatch(number, hash) => {
                let url = url(number);
                return Err(format!("{url} differs from the hub's hash: it hashes to {hash}"));
            }
            DownloadEvent::Failed(number, reason) => return Err(failed(url(number), &reason)),
        }
    }
    Ok(())
}

/// Messages of Python's sockets for a host that cannot be resolved or reached.
const UNREACHABLE: &[&str] = &[
    "gaierror",
    "name or service not known",
    "temporary failure in name resolution",
    "nodename nor servname",
    "network is unreachable",
    "no route to host",
    "connection refused",
];

/// A sentence about a failed download, without the names of Python's exceptions.
fn failed(url: &str, reason: &str) -> String {
    let lower = reason.to_lowercase();
    if !UNREACHABLE.iter().any(|words| lower.contains(words)) {
        return format!("{url}: {reason}");
    }
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    match lower.contains("refused") {
        true => format!("{NO_NETWORK}{host} refuses connections"),
        false => format!("{NO_NETWORK}{host} cannot be reached"),
    }
}

#[cfg(test)]
mod tests {
    use super::failed;

    #[test]
    fn download_without_a_network_reports_it() {
        let url = "https://huggingface.co/api/models/org/name";
        for (reason, sentence) in [
            (
                "gaierror: [Errno -2] Name or service not known",
                "no network: huggingface.co cannot be reached",
            ),
            (
                "OSError: [Errno 101] Network is unreachable",
                "no network: huggingface.co cannot be reached",
            ),
            (
                "ConnectionRefusedError: [Errno 111] Connection refused",
                "no network: huggingface.co refuses connections",
            ),
            ("HTTP 404", "https://huggingface.co/api/models/org/name: HTTP 404"),
        ] {
            assert_eq!(failed(url, reason), sentence);
        }
    }
}
