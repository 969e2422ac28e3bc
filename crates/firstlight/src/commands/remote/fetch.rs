//! Fetches run folders from the other machine: the files in a run's manifest, each compared with its hash. No local
//! file is overwritten, and a folder is complete or absent.

use super::ssh::Ssh;
use super::survey::{Hashed, RemoteMachine};
use crate::failure::Failure;
use crate::run_folder::{INCOMPLETE, sha256};
use anyhow::Context;
use facts::RunManifest;
use report::MANIFEST_FILE;
use std::fs;
use std::path::{Component, Path, PathBuf};

const SCRIPT: &str = include_str!("send.sh");
/// The folder of run folders there.
pub(super) const RUNS: &str = "firstlight-runs";
/// Files of a run folder that are not in its manifest and have no hash, because they are generated from the others.
const UNLISTED: &[&str] = &["report.md", "report.html", INCOMPLETE];

/// A run folder there.
#[derive(Debug, Clone)]
pub(super) struct RemoteRun {
    /// Its name, a single path component.
    pub(super) name: String,
    /// Its `run.json` there.
    pub(super) manifest: Hashed,
    /// Its local path, existing or not.
    pub(super) path: PathBuf,
    /// Whether the same run exists locally.
    pub(super) is_here: bool,
}

/// The run folders there, and whether they exist in `output`.
pub(super) fn list_runs(machine: &RemoteMachine, output: &Path) -> Vec<RemoteRun> {
    let run = |manifest: &Hashed| {
        let name =
            manifest.path.strip_prefix(RUNS)?.strip_prefix('/')?.strip_suffix(MANIFEST_FILE)?;
        let name = name.strip_suffix('/').filter(|name| is_plain(name) && !name.contains('/'))?;
        let here = output.join(name);
        let same =
            fs::read(here.join(MANIFEST_FILE)).is_ok_and(|text| sha256(&text) == manifest.sha256);
        Some(RemoteRun {
            name: name.to_owned(),
            manifest: manifest.clone(),
            path: here,
            is_here: same,
        })
    };
    machine.runs.iter().filter_map(run).collect()
}

impl RemoteRun {
    /// Fetches the run to its local path.
    pub(super) fn fetch(&mut self, ssh: &Ssh, machine: &RemoteMachine) -> anyhow::Result<()> {
        if self.path.exists() {
            return Err(Failure::hinted(
                format!(
                    "{} differs from the run on {} and is not overwritten",
                    self.path.display(),
                    machine.name
                ),
                "fetch into another folder: -o DIR",
            ));
        }
        let folder = format!("{}/{RUNS}/{}", machine.folder, self.name);
        let text = files(ssh, &folder, &[MANIFEST_FILE])?.remove(0).unwrap_or_default();
        self.held(MANIFEST_FILE, &text, &self.manifest.sha256)?;
        let manifest: RunManifest = serde_json::from_slice(&text)
            .with_context(|| format!("cannot use {MANIFEST_FILE} of run {}", self.name))?;
        let listed: Vec<&str> = manifest.artefacts.iter().map(|file| file.path.as_str()).collect();
        if let Some(wrong) = listed.iter().find(|path| !is_plain(path)) {
            let what = format!("run {} lists `{wrong}`, which is not a path inside it", self.name);
            return Err(Failure::hinted(what, "inspect the run on its machine: it was edited"));
        }
        let contents = files(ssh, &folder, &[listed.as_slice(), UNLISTED].concat())?;
        for (artefact, content) in manifest.artefacts.iter().zip(&contents) {
            self.held(&artefact.path, content.as_deref().unwrap_or_default(), &artefact.sha256)?;
        }
        let names = listed.iter().chain(UNLISTED).zip(contents);
        let found = names.filter_map(|(name, content)| Some((*name, content?)));
        self.put([(MANIFEST_FILE, text)].into_iter().chain(found))?;
        self.is_here = true;
        Ok(())
    }

    fn held(&self, file: &str, content: &[u8], wanted: &str) -> anyhow::Result<()> {
        match sha256(content) == wanted {
            true => Ok(()),
            false => Err(Failure::hinted(
                format!(
                    "{file} of run {} is not the file that the run wrote: its hash differs",
                    self.name
                ),
                "it was edited there or truncated in transit; fetch again: firstlight remote HOST --fetch",
            )),
        }
    }

    /// Writes the folder under a temporary name next to its path, then renames it.
    fn put<'a>(&self, files: impl Iterator<Item = (&'a str, Vec<u8>)>) -> anyhow::Result<()> {
        let beside = self.path.with_file_name(format!("{}.{}.part", self.name, std::process::id()));
        let written = (|| {
            for (name, content) in files {
                let path = beside.join(name);
                fs::create_dir_all(path.parent().unwrap_or(&beside))?;
                fs::write(path, content)?;
            }
            fs::rename(&beside, &self.path)
        })();
        if written.is_err() {
            // Removes a partial copy, if there is one.
            let _ = fs::remove_dir_all(&beside);
        }
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Files of a folder there, `None` for a missing one.
fn files(ssh: &Ssh, folder: &str, names: &[&str]) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
    let answer = ssh.ask(SCRIPT, &[&[folder], names].concat())?;
    parse(&answer, names.len()).ok_or_else(|| {
        Failure::hinted(
            "the files of a run were truncated in transit",
            "fetch again: firstlight remote HOST --fetch",
        )
    })
}

/// Each file is a line with its size, or with `-`, and its bytes.
fn parse(mut answer: &[u8], count: usize) -> Option<Vec<Option<Vec<u8>>>> {
    let mut files = Vec::new();
    for _ in 0..count {
        let end = answer.iter().position(|byte| *byte == b'\n')?;
        let size = std::str::from_utf8(&answer[..end]).ok()?.trim();
        answer = &answer[end + 1..];
        if size == "-" {
            files.push(None);
            continue;
        }
        let (content, rest) = answer.split_at_checked(size.parse().ok()?)?;
        files.push(Some(content.to_vec()));
        answer = rest;
    }
    answer.is_empty().then_some(files)
}

/// Whether a path of another machine stays inside its target folder.
fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answer_gives_no_files() {
        let answer = b"  3\na\nb-\n0\n";
        // A dash after a file is not one of its bytes: sizes delimit the files.
        assert_eq!(parse(b"4\na\nb-0\n", 2), Some(vec![Some(b"a\nb-".to_vec()), Some(Vec::new())]));
        assert_eq!(parse(b"-\n", 1), Some(vec![None]));
        assert_eq!(parse(answer, 3), Some(vec![Some(b"a\nb".to_vec()), None, Some(Vec::new())]));
        for end in 0..answer.len() {
            assert_eq!(parse(&answer[..end], 3), None, "{end}");
        }
        assert_eq!(parse(b"1\nab", 1), None);
        assert_eq!(parse(b"-1\n", 1), None);
    }

    #[test]
    fn r3_10_no_path_of_another_machine_leads_out_of_its_folder() {
        for plain in ["parity.csv", "logs/run.log"] {
            assert!(is_plain(plain), "{plain}");
        }
        for wrong in ["", "/etc/passwd", "../run.json", "logs/../../x", "./a"] {
            assert!(!is_plain(wrong), "{wrong}");
        }
    }
}
