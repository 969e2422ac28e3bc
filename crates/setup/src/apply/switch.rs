//! Switches from the old environment to the new one.
//!
//! The new one is renamed: uv makes relocatable environments (`--relocatable`), whose scripts find the interpreter in
//! their own folder and whose packages are at a relative path. The alternative, switching a link between two folders,
//! would turn a `.venv` folder into a link, which `uv venv --clear`, `rm -r` and container builds treat differently,
//! and the first switch would have to replace a folder by a link, which no file system does atomically.
//!
//! If the file system can exchange two folders, there is no moment without an environment. Otherwise (NFS) there are
//! two renames, and an apply that was killed between them is finished by the next one.

use super::ApplyError;
use super::journal::{Journal, JournalEntry};
use super::places::{self, ApplyPaths};
use facts::{ApplyOutcome, ApplyReport};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The folder of an environment with the record of its apply.
pub(super) const KEPT: &str = "firstlight";

/// The record in an environment.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The id of the apply.
    pub(super) id: String,
    /// Its report up to the switch.
    pub(super) report: ApplyReport,
}

/// The record of the environment's last apply.
pub(super) fn record(environment: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(record_file(environment)).ok()?).ok()
}

fn record_file(environment: &Path) -> PathBuf {
    environment.join(KEPT).join("apply.json")
}

/// Whether an environment will be replaced, or created.
pub(super) fn outcome(places: &ApplyPaths) -> ApplyOutcome {
    match places.venv.join("pyvenv.cfg").exists() {
        true => ApplyOutcome::Replaced,
        false => ApplyOutcome::Made,
    }
}

/// Switches to the new environment; `proven` checks it there, and if it fails everything is restored.
pub(super) fn run(
    places: &ApplyPaths,
    report: &ApplyReport,
    discard_old: bool,
    journal: &mut Journal,
    proven: impl FnOnce() -> Result<(), ApplyError>,
) -> Result<(), ApplyError> {
    let record = Record { id: journal.id().to_owned(), report: report.clone() };
    let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
    let kept = places.new.join(KEPT);
    fs::create_dir_all(&kept).map_err(ApplyError::io(&kept))?;
    places::write(&record_file(&places.new), &text)?;
    // Everything else is on disk since the journal says that it is installed.
    sync_folder(&kept)?;
    journal.add(JournalEntry::Switching { discard_old })?;
    put(places)?;
    sync_folder(&places.venv)?;
    proven().or_else(|unproven| {
        put_back(places, report.outcome)?;
        journal.add(JournalEntry::PutBack)?;
        Err(unproven)
    })
}

/// Finishes the switch of a killed apply: once its journal has that line, the new environment is complete and proven.
pub(super) fn finish(places: &ApplyPaths, journal: &Journal) -> Result<(), ApplyError> {
    let Some(discard_old) = journal.switching() else { return Ok(()) };
    let new_is_ours = record(&places.new).is_some_and(|it| it.id == journal.id());
    match (new_is_ours, places.venv.exists()) {
        // The exchange has not happened yet.
        (true, true) => return Ok(()),
        (true, false) => rename(&places.new, &places.venv)?,
        // The folder with the new one's name is the old environment.
        (false, _) => {}
    }
    settle(places, discard_old).map(drop)
}

/// Keeps or removes the replaced environment; returns the path of the backup.
pub(super) fn settle(
    places: &ApplyPaths,
    discard_old: bool,
) -> Result<Option<PathBuf>, ApplyError> {
    if discard_old {
        places::remove(&places.old)?;
        places::remove(&places.new)?;
    } else if places.new.exists() {
        // An empty folder is not worth keeping.
        match fs::remove_dir(&places.new) {
            Ok(()) => {}
            Err(_) => rename(&places.new, &places.old)?,
        }
    }
    Ok(places.old.exists().then(|| places.old.clone()))
}

fn put(places: &ApplyPaths) -> Result<(), ApplyError> {
    if !places.venv.exists() {
        return rename(&places.new, &places.venv);
    }
    match renameat_with(CWD, &places.new, CWD, &places.venv, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => one_after_the_other(places),
        Err(error) => Err(ApplyError::io(&places.venv)(error.into())),
    }
}

/// For file systems without exchange. A backup of an earlier apply only exists here if it is to be discarded.
fn one_after_the_other(places: &ApplyPaths) -> Result<(), ApplyError> {
    places::remove(&places.old)?;
    rename(&places.venv, &places.old)?;
    rename(&places.new, &places.venv).inspect_err(|_| {
        // The old one is restored; if that fails too, the next apply moves the new one here.
        let _ = rename(&places.old, &places.venv);
    })
}

fn put_back(places: &ApplyPaths, outcome: ApplyOutcome) -> Result<(), ApplyError> {
    match outcome {
        ApplyOutcome::Replaced if places.new.exists() => put(places),
        ApplyOutcome::Replaced => {
            rename(&places.venv, &places.new).and_then(|()| rename(&places.old, &places.venv))
        }
        _ => rename(&places.venv, &places.new),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), ApplyError> {
    fs::rename(from, to).map_err(ApplyError::io(to))
}

/// Syncs the parent folder's entries.
fn sync_folder(path: &Path) -> Result<(), ApplyError> {
    let parent = path.parent().unwrap_or(path);
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(ApplyError::io(parent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Deref;

    /// An environment and a new one that is ready to replace it.
    struct World {
        places: ApplyPaths,
        journal: Journal,
        _folder: tempfile::TempDir,
    }

    impl Deref for World {
        type Target = ApplyPaths;

        fn deref(&self) -> &ApplyPaths {
            &self.places
        }
    }

    fn environment(folder: &Path, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("pyvenv.cfg"), text).unwrap();
    }

    fn report(outcome: ApplyOutcome) -> ApplyReport {
        ApplyReport {
            schema: facts::SCHEMA,
            venv: ".venv".to_owned(),
            plan_sha256: "p".to_owned(),
            outcome,
            resumed: false,
            steps: Vec::new(),
            packages: Vec::new(),
            proof: Vec::new(),
            findings: Vec::new(),
            kept_old: None,
        }
    }

    impl World {
        fn new(old: bool) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let places = ApplyPaths::of(&folder.path().join(".venv")).unwrap();
            environment(&places.new, "new");
            if old {
                environment(&places.venv, "old");
            }
            fs::create_dir_all(&places.work).unwrap();
            let mut journal = Journal::open(&places);
            journal.begin("p").unwrap();
            Self { places, journal, _folder: folder }
        }

        /// Up to the line in the journal.
        fn ready(mut self) -> Self {
            let id = self.journal.id().to_owned();
            let record = Record { id, report: report(ApplyOutcome::Replaced) };
            let file = record_file(&self.new);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, serde_json::to_vec(&record).unwrap()).unwrap();
            self.journal.add(JournalEntry::Switching { discard_old: false }).unwrap();
            self
        }

        /// The contents of the environment, the new one and the old one.
        fn is(&self) -> [String; 3] {
            [&self.venv, &self.new, &self.old]
                .map(|folder| fs::read_to_string(folder.join("pyvenv.cfg")).unwrap_or_default())
        }
    }

    #[test]
    fn a_killed_switch_is_completed_from_every_step() {
        type Act = fn(&World);
        let steps: [(&str, Act, [&str; 3]); 5] = [
            ("nothing was moved", |_| {}, ["old", "new", ""]),
            ("exchanged", |world| put(world).unwrap(), ["new", "", "old"]),
            (
                "exchanged and kept",
                |world| {
                    put(world).unwrap();
                    settle(world, false).unwrap();
                },
                ["new", "", "old"],
            ),
            (
                "between two renames",
                |world| rename(&world.venv, &world.old).unwrap(),
                ["new", "", "old"],
            ),
            ("both renames", |world| one_after_the_other(world).unwrap(), ["new", "", "old"]),
        ];
        for (name, act, expect) in steps {
            let world = World::new(true).ready();
            act(&world);
            finish(&world, &Journal::open(&world)).unwrap();
            assert_eq!(world.is(), expect, "{name}");
        }
        // Without the line in the journal nothing is moved, whatever exists there.
        let world = World::new(true);
        finish(&world, &Journal::open(&world)).unwrap();
        assert_eq!(world.is(), ["old", "new", ""]);
    }

    #[test]
    fn an_environment_that_does_not_run_is_rolled_back() {
        for old in [true, false] {
            let World { places, mut journal, _folder } = World::new(old);
            let outcome = outcome(&places);
            let unproven =
                || Err(ApplyError::Io { path: "/".into(), source: std::io::Error::other("no") });
            run(&places, &report(outcome), false, &mut journal, unproven).unwrap_err();
            let expect = if old { ["old", "new", ""] } else { ["", "new", ""] };
            let world = World { places, journal, _folder };
            assert_eq!(world.is(), expect);
            // The next apply does not assume that it is proven.
            finish(&world, &Journal::open(&world)).unwrap();
            assert_eq!(world.is(), expect);
        }
    }

    #[test]
    fn an_old_environment_is_discarded_only_on_request() {
        for (discard, expect) in [(false, ["new", "", "old"]), (true, ["new", "", ""])] {
            let World { places, mut journal, _folder } = World::new(true);
            run(&places, &report(outcome(&places)), discard, &mut journal, || Ok(())).unwrap();
            settle(&places, discard).unwrap();
            let world = World { places, journal, _folder };
            assert_eq!(world.is(), expect);
        }
    }
}
