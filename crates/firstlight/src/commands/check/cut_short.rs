//! The report of a check that was killed at its time limit.

use crate::Outcome;
use crate::cli::Check;
use crate::commands::report::rewrite;
use crate::output::Output;
use crate::redact::Redaction;
use crate::run_folder::{DEFAULT, INCOMPLETE, RunFolder, write_atomically};
use anyhow::Context;
use facts::{OUT_OF_TIME, RunManifest, SkippedStage};
use report::MANIFEST_FILE;
use std::path::{Path, PathBuf};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Writes a report of the finished part, and lists the rest as not run. The check proves nothing and has no findings.
pub(super) fn report(
    arguments: &Check,
    limit: Duration,
    began: OffsetDateTime,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let folder = match folder_of(arguments.output.as_deref(), began) {
        Some(folder) => folder,
        None => begun(arguments.output.as_deref())?,
    };
    let path = folder.join(MANIFEST_FILE);
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut manifest: RunManifest = serde_json::from_slice(&text)?;
    let what = match manifest.stages.last() {
        Some(stage) => {
            format!("timings of firstlight's kernels, and everything after `{}`", stage.name)
        }
        None => "checks and timings of firstlight's kernels, and everything after them".to_owned(),
    };
    manifest.not_run.push(SkippedStage { what, why: OUT_OF_TIME.to_owned() });
    write_atomically(&path, (serde_json::to_string_pretty(&manifest)? + "\n").as_bytes())?;
    let seconds = limit.as_secs();
    output.notice(|_| {
        format!("the check exceeded its budget of {seconds} s and was stopped; use a larger --budget, or --quick or --op for less work\n")
    });
    rewrite(&folder, output)?;
    Ok(Outcome::Unclear)
}

/// The folder of the killed run: the named one, or the newest of the default ones.
fn folder_of(named: Option<&Path>, began: OffsetDateTime) -> Option<PathBuf> {
    let is_run = |folder: &Path| folder.join(MANIFEST_FILE).is_file();
    if let Some(folder) = named {
        return is_run(folder).then(|| folder.to_owned());
    }
    let folders = std::fs::read_dir(DEFAULT).ok()?.flatten().map(|entry| entry.path());
    let started = |folder: PathBuf| {
        folder.join(INCOMPLETE).exists().then_some(())?;
        let text = std::fs::read(folder.join(MANIFEST_FILE)).ok()?;
        let manifest: RunManifest = serde_json::from_slice(&text).ok()?;
        let started = OffsetDateTime::parse(&manifest.started, &Rfc3339).ok()?;
        (started >= began).then_some((started, folder))
    };
    folders.filter_map(started).max().map(|(_, folder)| folder)
}

/// The folder of a run that was killed before it had one.
fn begun(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "unknown-host",
        host => host,
    };
    let folder = RunFolder::create(named, host, Redaction::from_environment())?;
    Ok(folder.path().to_owned())
}
