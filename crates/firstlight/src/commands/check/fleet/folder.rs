//! Transfers a run folder to rank 0: each file with its size and hash, within limits.

use super::wire::{Kind, Link, MAX_CONTENT};
use crate::run_folder::sha256;
use facts::CompactSort;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

/// Maximum number of files of a run folder, and maximum bytes of one and of all. A check of eight GPUs writes about 60
/// files and 30 MB.
const FILES: usize = 1024;
const BYTES_OF_ONE: u64 = 128 << 20;
const BYTES: u64 = 512 << 20;

/// Header of a transferred file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileHeader {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Sends every file of a folder.
pub(super) fn send(folder: &Path, link: &Link) -> anyhow::Result<()> {
    let mut files = Vec::new();
    list(folder, folder, &mut files)?;
    for path in files {
        let content = std::fs::read(folder.join(&path))?;
        link.send_record(
            Kind::File,
            &FileHeader { path, bytes: content.len() as u64, sha256: sha256(&content) },
        );
        content.chunks(MAX_CONTENT).for_each(|piece| link.send(Kind::Data, piece));
    }
    Ok(())
}

fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files)?;
        } else if let Ok(below) = path.strip_prefix(root) {
            files.push(below.display().to_string());
        }
    }
    Ok(())
}

/// A run folder that is being received.
pub(super) struct IncomingFolder {
    folder: PathBuf,
    files: usize,
    bytes: u64,
    now: Option<Open>,
}

struct Open {
    sent: FileHeader,
    file: File,
    hasher: Sha256,
    read: u64,
}

impl IncomingFolder {
    pub(super) fn into(folder: PathBuf) -> Self {
        Self { folder, files: 0, bytes: 0, now: None }
    }

    /// Starts the next file; the previous one must be complete.
    pub(super) fn file(&mut self, sent: FileHeader) -> Result<(), String> {
        self.whole()?;
        let below = Path::new(&sent.path);
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        self.files += 1;
        self.bytes = self.bytes.saturating_add(sent.bytes);
        if sent.path.is_empty() || sent.path.len() > 200 || !plain {
            return Err("it sent a file with a path outside its folder".to_owned());
        }
        if self.files > FILES || sent.bytes > BYTES_OF_ONE || self.bytes > BYTES {
            return Err("it sent more files than a run folder has".to_owned());
        }
        let path = self.folder.join(below);
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        path.parent().map(std::fs::create_dir_all).transpose().map_err(failed)?;
        // No file is overwritten, and no link is followed.
        let file = File::create_new(&path).map_err(failed)?;
        self.now = Some(Open { sent, file, hasher: Sha256::new(), read: 0 });
        self.whole_already()
    }

    /// Receives bytes of the current file.
    pub(super) fn data(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(open) = &mut self.now else {
            return Err("it sent bytes without a file".to_owned());
        };
        open.read += bytes.len() as u64;
        if open.read > open.sent.bytes {
            return Err(format!("it sent more bytes of {} than announced", open.sent.path));
        }
        open.hasher.update(bytes);
        open.file
            .write_all(bytes)
            .map_err(|error| format!("cannot write {}: {error}", open.sent.path))?;
        self.whole_already()
    }

    fn whole_already(&mut self) -> Result<(), String> {
        match &self.now {
            Some(open) if open.read == open.sent.bytes => self.whole(),
            _ => Ok(()),
        }
    }

    /// Checks that the last file is complete.
    pub(super) fn whole(&mut self) -> Result<(), String> {
        let Some(Open { sent, hasher, read, .. }) = self.now.take() else { return Ok(()) };
        let hash: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if read != sent.bytes || hash != sent.sha256 {
            return Err(format!("{} did not arrive as it was sent", sent.path));
        }
        Ok(())
    }
}

/// A hash over the names and hashes of all files of a folder, which its sender authenticates.
pub(super) fn seal(folder: &Path) -> anyhow::Result<String> {
    let mut files = Vec::new();
    list(folder, folder, &mut files)?;
    files.compact_sort();
    let mut hasher = Sha256::new();
    for path in files {
        let mut content = Vec::new();
        File::open(folder.join(&path))?.read_to_end(&mut content)?;
        hasher.update(format!("{path} {}\n", sha256(&content)));
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(path: &str, content: &[u8]) -> FileHeader {
        FileHeader { path: path.to_owned(), bytes: content.len() as u64, sha256: sha256(content) }
    }

    #[test]
    fn files_arrive_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let mut arriving = IncomingFolder::into(folder.path().to_owned());
        arriving.file(sent("gpu-1/a.csv", b"abcd")).unwrap();
        arriving.data(b"ab").unwrap();
        arriving.data(b"cd").unwrap();
        arriving.file(sent("empty", b"")).unwrap();
        arriving.whole().unwrap();
        assert_eq!(std::fs::read(folder.path().join("gpu-1/a.csv")).unwrap(), b"abcd");
        assert!(folder.path().join("empty").exists());
        let twice = arriving.file(sent("empty", b"")).unwrap_err();
        assert!(twice.contains("exists"), "{twice}");
    }

    #[test]
    fn rejects_unexpected_and_damaged_files() {
        let check = |files: &[(FileHeader, &[u8])], words: &str| {
            let folder = tempfile::tempdir().unwrap();
            let mut arriving = IncomingFolder::into(folder.path().join("run"));
            let mut all = || -> Result<(), String> {
                for (sent, content) in files {
                    let FileHeader { path, bytes, sha256 } = sent;
                    arriving.file(FileHeader {
                        path: path.clone(),
                        bytes: *bytes,
                        sha256: sha256.clone(),
                    })?;
                    if !content.is_empty() {
                        arriving.data(content)?;
                    }
                }
                arriving.whole()
            };
            let said = all().unwrap_err();
            assert!(said.contains(words), "{said}");
            assert!(!folder.path().join("out").exists());
        };
        check(&[(sent("../out", b""), b"")], "outside its folder");
        check(&[(sent("/tmp/out", b""), b"")], "outside its folder");
        check(&[(sent("", b""), b"")], "outside its folder");
        check(
            &[(FileHeader { bytes: BYTES_OF_ONE + 1, ..sent("a", b"") }, b"")],
            "more files than a run folder has",
        );
        check(&[(sent("a", b"abc"), b"abcd")], "more bytes of a than announced");
        check(&[(sent("a", b"abc"), b"abd")], "a did not arrive as it was sent");
        check(&[(sent("a", b"abc"), b"ab")], "a did not arrive as it was sent");
    }
}
