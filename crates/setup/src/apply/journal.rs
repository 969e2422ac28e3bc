//! The journal: one line per completed operation, on disk before the next one starts.

use super::ApplyError;
use super::places::{self, ApplyPaths};
use facts::{AppliedBuild, AppliedPackage, InstallPlan};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub(super) enum JournalEntry {
    /// The first line: the plan, and a unique id of this apply.
    Begun { plan_sha256: String, id: String },
    /// A source was built; its wheel is among the built ones.
    Built { package: String, file: String, sha256: String, build: AppliedBuild },
    /// The whole plan is installed in the new environment.
    Installed { packages: Vec<AppliedPackage> },
    /// The new environment is about to be switched to.
    Switching { discard_old: bool },
    /// It did not run there, and the old one was restored.
    PutBack,
}

/// The journal of one environment.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    lines: Vec<JournalEntry>,
    /// Bytes of complete lines in the file; a partial line of a killed apply may follow.
    bytes: u64,
    /// Whether it resumes a killed apply.
    pub(super) resumed: bool,
}

impl Journal {
    /// The existing journal, or an empty one. A partial line was not done.
    pub(super) fn open(places: &ApplyPaths) -> Self {
        let path = places.work.join("journal.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut journal = Self { path, lines: Vec::new(), bytes: 0, resumed: false };
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let Ok(done) = serde_json::from_str(line) else { break };
            journal.lines.push(done);
            journal.bytes += line.len() as u64;
        }
        journal
    }

    /// Whether something was started that another apply can resume.
    pub(super) fn is_begun(&self) -> bool {
        !self.lines.is_empty()
    }

    fn is_of(&self, plan: &str) -> bool {
        matches!(self.lines.first(), Some(JournalEntry::Begun { plan_sha256, .. }) if plan_sha256 == plan)
    }

    /// Starts a new journal for this plan, unless it already belongs to it.
    pub(super) fn begin(&mut self, plan_sha256: &str) -> Result<(), ApplyError> {
        if self.is_of(plan_sha256) {
            self.resumed = true;
            return Ok(());
        }
        (self.lines, self.bytes) = (Vec::new(), 0);
        places::write(&self.path, b"")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = format!("{}-{}", now.as_nanos(), std::process::id());
        self.add(JournalEntry::Begun { plan_sha256: plan_sha256.to_owned(), id })
    }

    /// Writes a line; when this returns it is on disk.
    pub(super) fn add(&mut self, done: JournalEntry) -> Result<(), ApplyError> {
        // These records contain only strings and numbers, which always serialize.
        let line = serde_json::to_string(&done).unwrap_or_default() + "\n";
        let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&self.path);
        let written = opened.and_then(|mut file| {
            file.set_len(self.bytes)?;
            file.seek(SeekFrom::End(0))?;
            file.write_all(line.as_bytes())?;
            file.sync_all()
        });
        written.map_err(ApplyError::io(&self.path))?;
        self.lines.push(done);
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// The id of this apply.
    pub(super) fn id(&self) -> &str {
        match self.lines.first() {
            Some(JournalEntry::Begun { id, .. }) => id,
            _ => "",
        }
    }

    /// The installed packages of this plan, once everything is installed.
    pub(super) fn installed(&self, plan_sha256: &str) -> Option<&[AppliedPackage]> {
        let lines = self.is_of(plan_sha256).then_some(&self.lines)?;
        lines.iter().find_map(|line| match line {
            JournalEntry::Installed { packages } => Some(packages.as_slice()),
            _ => None,
        })
    }

    /// The wheel built for a package, its hash and its build record.
    pub(super) fn built(&self, wanted: &str) -> Option<(&str, &str, &AppliedBuild)> {
        self.lines.iter().find_map(|line| match line {
            JournalEntry::Built { package, file, sha256, build } if package == wanted => {
                Some((file.as_str(), sha256.as_str(), build))
            }
            _ => None,
        })
    }

    /// Whether the switch was in progress, and whether the old environment was to be discarded.
    pub(super) fn switching(&self) -> Option<bool> {
        match self.lines.last() {
            Some(JournalEntry::Switching { discard_old }) => Some(*discard_old),
            _ => None,
        }
    }
}

/// The hash of a plan's text.
pub(super) fn plan_sha256(plan: &InstallPlan) -> String {
    hex(&Sha256::digest(serde_json::to_string(plan).unwrap_or_default()))
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_journal_line_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let places = ApplyPaths::of(&folder.path().join("venv")).unwrap();
        fs::create_dir_all(&places.work).unwrap();
        let mut journal = Journal::open(&places);
        journal.begin("p").unwrap();
        journal.add(JournalEntry::Installed { packages: Vec::new() }).unwrap();
        let (path, whole) = (journal.path.clone(), fs::read(&journal.path).unwrap());
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let mut journal = Journal::open(&places);
            let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(journal.lines.len(), lines, "{length} bytes");
            journal.begin("p").unwrap();
            assert_eq!(journal.resumed, lines > 0, "{length} bytes");
            // Lines written after it are read back.
            journal.add(JournalEntry::Switching { discard_old: true }).unwrap();
            assert_eq!(Journal::open(&places).lines, journal.lines, "{length} bytes");
            assert_eq!(Journal::open(&places).switching(), Some(true));
        }
    }

    #[test]
    fn another_plan_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let places = ApplyPaths::of(&folder.path().join("venv")).unwrap();
        fs::create_dir_all(&places.work).unwrap();
        let mut journal = Journal::open(&places);
        journal.begin("p").unwrap();
        journal.add(JournalEntry::Installed { packages: Vec::new() }).unwrap();
        let first = journal.id().to_owned();
        assert!(journal.installed("p").is_some() && journal.installed("q").is_none());
        journal.begin("q").unwrap();
        assert!(!journal.resumed && journal.installed("q").is_none() && journal.id() != first);
        assert_eq!(Journal::open(&places).lines, journal.lines);
    }
}
