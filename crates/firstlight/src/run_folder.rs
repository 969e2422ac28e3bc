//! A run folder, marked incomplete while the run lasts.
//!
//! Invariant: at no time does a folder look complete without being so. `run.json` is `incomplete` until every artefact
//! is hashed, and a file named INCOMPLETE exists until the reports are written.

use crate::destination;
use crate::failure::Failure;
use crate::redact::Redaction;
use crate::source_tree;
use anyhow::Context;
use facts::{Artefact, RunManifest, RunState, SCHEMA, SkippedStage, Stage};
use report::MANIFEST_FILE;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

/// The marker file of an interrupted run.
pub(crate) const INCOMPLETE: &str = "INCOMPLETE";
/// The log of a run.
const LOG: &str = "logs/run.log";

pub(crate) struct RunFolder {
    path: PathBuf,
    pub(crate) manifest: RunManifest,
    log: String,
    redaction: Redaction,
    began: Instant,
}

impl RunFolder {
    /// Creates the folder; a folder with files is refused.
    pub(crate) fn create(
        wanted: Option<&Path>,
        host: &str,
        redaction: Redaction,
    ) -> anyhow::Result<Self> {
        let now = OffsetDateTime::now_utc();
        let path = match wanted {
            Some(path) => path.to_owned(),
            None => default_path(now, &redaction.of(host))?,
        };
        empty(&path)?;
        std::fs::create_dir_all(path.join("logs"))
            .with_context(|| format!("cannot make {}", path.display()))?;
        let mut run = Self {
            path,
            manifest: RunManifest {
                schema: SCHEMA,
                state: RunState::Incomplete,
                command: std::env::args().collect(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                built_from: source_tree::built_from(),
                run_in: source_tree::run_in(),
                host: host.to_owned(),
                started: now.format(&Rfc3339)?,
                finished: None,
                stages: Vec::new(),
                not_run: Vec::new(),
                coverage: None,
                artefacts: Vec::new(),
            },
            log: String::new(),
            redaction,
            began: Instant::now(),
        };
        write_atomically(
            &run.path.join(INCOMPLETE),
            b"This run was interrupted or is still running.\n",
        )?;
        run.save_manifest()?;
        run.note(&format!("started: {}", run.manifest.command.join(" ")));
        Ok(run)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn redaction(&self) -> &Redaction {
        &self.redaction
    }

    /// Adds a line to the log.
    pub(crate) fn note(&mut self, line: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        // Writing to a String cannot fail.
        let _ = writeln!(self.log, "{seconds:9.3} s  {line}");
    }

    /// Records a finished stage, and saves the manifest so that an interrupted run shows its progress.
    pub(crate) fn stage(
        &mut self,
        name: &str,
        since: Instant,
        outcome: String,
    ) -> anyhow::Result<()> {
        self.note(&format!("{name}: {outcome}"));
        let millis = since.elapsed().as_secs_f64() * 1e3;
        self.manifest.stages.push(Stage { name: name.to_owned(), millis, outcome });
        self.save_log()?;
        self.save_manifest()
    }

    /// Writes the log so far, so that an interrupted run shows its timings.
    pub(crate) fn save_log(&self) -> anyhow::Result<()> {
        write_atomically(&self.path.join(LOG), self.redaction.of(&self.log).as_bytes())
    }

    /// Writes an unfinished artefact, so that an interrupted run has what was measured; [`RunFolder::artefact`] replaces
    /// it.
    pub(crate) fn unfinished(&self, name: &str, content: &str) -> anyhow::Result<()> {
        write_atomically(&self.path.join(name), self.redaction.of(content).as_bytes())
    }

    /// Records omitted work.
    pub(crate) fn not_run(&mut self, what: &str, why: &str) {
        self.manifest.not_run.push(SkippedStage { what: what.to_owned(), why: why.to_owned() });
    }

    /// Writes an artefact and lists it with its hash; an existing one is replaced.
    pub(crate) fn artefact(&mut self, name: &str, what: &str, content: &str) -> anyhow::Result<()> {
        let content = self.redaction.of(content);
        let path = self.path.join(name);
        let folder = path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        write_atomically(&path, content.as_bytes())?;
        self.manifest.artefacts.retain(|artefact| artefact.path != name);
        self.manifest.artefacts.push(Artefact {
            path: name.to_owned(),
            what: what.to_owned(),
            bytes: content.len() as u64,
            sha256: sha256(content.as_bytes()),
        });
        Ok(())
    }

    /// Ends the run: writes the log, reports and manifest, and then removes the marker.
    pub(crate) fn finish(
        &mut self,
        render: impl FnOnce(&RunManifest) -> report::Documents,
    ) -> anyhow::Result<()> {
        self.note("writing the report");
        let log = std::mem::take(&mut self.log);
        self.artefact(LOG, "stages and times of this run", &log)?;
        self.manifest.finished = Some(OffsetDateTime::now_utc().format(&Rfc3339)?);
        self.manifest.state = RunState::Complete;
        let report::Documents { markdown, html } = render(&self.manifest);
        let documents = report::Documents {
            markdown: self.redaction.of(&markdown),
            html: self.redaction.of(&html),
        };
        write_documents(&self.path, "report", &documents)?;
        self.save_manifest()?;
        let mark = self.path.join(INCOMPLETE);
        std::fs::remove_file(&mark).with_context(|| format!("cannot remove {}", mark.display()))
    }

    fn save_manifest(&self) -> anyhow::Result<()> {
        let text = self.redaction.of(&(serde_json::to_string_pretty(&self.manifest)? + "\n"));
        write_atomically(&self.path.join(MANIFEST_FILE), text.as_bytes())
    }
}

/// Default folder of run folders.
pub(crate) const DEFAULT: &str = "firstlight-runs";

/// Checks, before anything is computed, that the default or selected run folder can be created.
pub(crate) fn check_creatable(wanted: &Path) -> anyhow::Result<()> {
    if wanted != Path::new(DEFAULT) {
        empty(wanted)?;
    }
    destination::folder(wanted)?;
    destination::room(wanted, RUN_BYTES)
}

/// Estimated size of a run folder: a report, tables, samples and a log.
pub(crate) const RUN_BYTES: u64 = 8 << 20;

fn empty(path: &Path) -> anyhow::Result<()> {
    if path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        let what = format!("run folder {} is not empty", path.display());
        let hint = match path.join(INCOMPLETE).exists() {
            true => format!(
                "it has an interrupted run: `firstlight check --report {0}` writes a report of it, `rm -r {0}` removes it; or name another folder",
                path.display()
            ),
            false => "name a folder that is empty or does not exist yet".to_owned(),
        };
        return Err(Failure::hinted(what, hint));
    }
    Ok(())
}

/// SHA-256 in lower-case hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes `<name>.md` and `<name>.html`.
pub(crate) fn write_documents(
    folder: &Path,
    name: &str,
    documents: &report::Documents,
) -> anyhow::Result<[PathBuf; 2]> {
    let paths = ["md", "html"].map(|kind| folder.join(format!("{name}.{kind}")));
    write_atomically(&paths[0], documents.markdown.as_bytes())?;
    write_atomically(&paths[1], documents.html.as_bytes())?;
    Ok(paths)
}

/// `firstlight-runs/<utc>-<host>`, with a number if two runs start in the same second.
fn default_path(now: OffsetDateTime, host: &str) -> anyhow::Result<PathBuf> {
    let stamp = now.format(format_description!("[year][month][day]T[hour][minute][second]Z"))?;
    let host: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    let name = format!("{stamp}-{host}");
    let folder = Path::new(DEFAULT);
    let numbered = (2..).map(|number| folder.join(format!("{name}-{number}")));
    let free = std::iter::once(folder.join(&name)).chain(numbered).find(|path| !path.exists());
    Ok(free.unwrap_or_else(|| folder.join(name)))
}

/// Writes a file completely or not at all: under a temporary name, then renamed. A device or a pipe is written
/// directly.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, content).with_context(failed);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::write(&beside, content).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // Removes a partial file, if there is one.
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(failed)
}
