//! Copies files to the other machine: each completely, verified by its hash, or not at all. None is overwritten.

use super::ssh::Ssh;
use super::survey::RemoteMachine;
use crate::failure::Failure;
use crate::run_folder::sha256;
use anyhow::Context;
use serde::Serialize;
use std::path::Path;

const SCRIPT: &str = include_str!("receive.sh");

/// A file to be copied.
#[derive(Debug, Serialize)]
pub(super) struct CopiedFile {
    /// Its remote path.
    pub(super) path: String,
    /// Its size.
    pub(super) bytes: usize,
    /// Its hash, in lower-case hexadecimal.
    pub(super) sha256: String,
    /// Whether it already exists there, with the same hash.
    pub(super) is_there: bool,
    #[serde(skip)]
    pub(super) content: Vec<u8>,
    /// Mode for `chmod`.
    #[serde(skip)]
    pub(super) mode: &'static str,
}

impl CopiedFile {
    /// A file of the user, under its own name.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let content = std::fs::read(path).with_context(|| path.display().to_string())?;
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| !name.contains(|c: char| c.is_control()));
        let Some(name) = name.filter(|name| !["bin", super::fetch::RUNS].contains(name)) else {
            let what = format!("{} cannot be sent under its name", path.display());
            return Err(Failure::hinted(what, "give it another name, of printable characters"));
        };
        Ok(Self::new(content, "600", |_| name.to_owned()))
    }

    /// `path` computes the remote path from the hash.
    pub(super) fn new(
        content: Vec<u8>,
        mode: &'static str,
        path: impl FnOnce(&str) -> String,
    ) -> Self {
        let sha256 = sha256(&content);
        let path = path(&sha256);
        Self { path, bytes: content.len(), sha256, is_there: false, content, mode }
    }

    /// Checks whether it exists there; another file under its name is not touched.
    pub(super) fn check_remote(&mut self, machine: &RemoteMachine) -> anyhow::Result<()> {
        match machine.hash_of(&self.path) {
            None if machine.entries.contains(&self.path) => {}
            None => return Ok(()),
            Some(sha256) if sha256 == self.sha256 => {
                self.is_there = true;
                return Ok(());
            }
            Some(_) => {}
        }
        Err(Failure::hinted(
            format!(
                "{}/{} differs from the local file and is not overwritten",
                machine.folder, self.path
            ),
            "send it under another name, or work in another folder: --at DIR",
        ))
    }

    /// Copies it unless it exists.
    pub(super) fn send(&mut self, ssh: &Ssh, machine: &RemoteMachine) -> anyhow::Result<()> {
        if self.is_there {
            return Ok(());
        }
        let arguments = [machine.folder.as_str(), &self.path, &self.sha256, self.mode];
        let said = ssh.feed(SCRIPT, &arguments, std::mem::take(&mut self.content))?;
        match said.status.success() {
            true => Ok(()),
            false => {
                let error = ssh.failed(
                    &said,
                    "did not accept it",
                    "run the same command again to copy it again",
                );
                Err(error.context(format!(
                    "{} was not copied completely, and no file of that name was created",
                    self.path
                )))
            }
        }
    }

    /// One line about the planned copy.
    pub(super) fn words(&self) -> String {
        let done = if self.is_there { "already there, by its hash" } else { "copied" };
        format!("{} ({} KiB): {done}", self.path, self.bytes.div_ceil(1024))
    }
}
