//! Reads the files of a run folder.

use crate::failure::Failure;
use crate::run_folder::{INCOMPLETE, sha256};
use anyhow::Context;
use facts::{
    BenchReport, ConditionsReport, DoctorReport, GpusReport, ModelSpeedReport, ParityReport,
    RunManifest, RunState, SCHEMA,
};
use report::{
    BENCH_FILE, CONDITIONS_FILE, ComparedRun, FACTS_FILE, GPUS_FILE, MANIFEST_FILE,
    MODEL_SPEED_FILE, PARITY_FILE, SAMPLES_FILE, read_bench_csv, read_parity_csv, read_samples_csv,
};
use serde::de::DeserializeOwned;
use std::path::Path;

/// The contents of a run folder. Files may be missing: `bench -o` writes only tables, and an interrupted run has only some
/// files.
pub(crate) struct RunFiles {
    name: String,
    pub(crate) manifest: Option<RunManifest>,
    pub(crate) doctor: Option<DoctorReport>,
    pub(crate) parity: Option<ParityReport>,
    pub(crate) bench: Option<BenchReport>,
    pub(crate) model_speed: Option<ModelSpeedReport>,
    pub(crate) gpus: Option<GpusReport>,
    /// Files that are missing or were changed after the run.
    edited: Vec<String>,
}

impl RunFiles {
    /// Reads the existing files. A folder without any file of a run is an error.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut manifest: Option<RunManifest> = read_json(folder, MANIFEST_FILE)?;
        if let Some(manifest) = &mut manifest
            && folder.join(INCOMPLETE).exists()
        {
            manifest.state = RunState::Incomplete;
        }
        let parity = read_text(folder, PARITY_FILE)?;
        let of_folder = || format!("in the run {}", folder.display());
        let mut bench = read_text(folder, BENCH_FILE)?
            .map(|text| read_bench_csv(&text))
            .transpose()
            .with_context(of_folder)?;
        if let (Some(bench), Some(text)) = (&mut bench, read_text(folder, SAMPLES_FILE)?) {
            read_samples_csv(&text, bench).with_context(of_folder)?;
        }
        let conditions: Option<ConditionsReport> = read_json(folder, CONDITIONS_FILE)?;
        if let (Some(bench), Some(conditions)) = (&mut bench, conditions) {
            bench.conditions = conditions.backends;
        }
        let edited = edited(folder, manifest.as_ref())?;
        let files = Self {
            name: folder.display().to_string(),
            manifest,
            doctor: read_json(folder, FACTS_FILE)?,
            parity: parity
                .map(|text| read_parity_csv(&text))
                .transpose()
                .with_context(of_folder)?,
            bench,
            model_speed: read_json(folder, MODEL_SPEED_FILE)?,
            gpus: read_json(folder, GPUS_FILE)?,
            edited,
        };
        if files.manifest.is_none() && files.parity.is_none() && files.bench.is_none() {
            let what = format!(
                "{} is not a run folder: it has no {MANIFEST_FILE}, {PARITY_FILE} or {BENCH_FILE}",
                folder.display()
            );
            let hint = "name a folder that `firstlight check` or `firstlight bench -o` wrote";
            return Err(Failure::hinted(what, hint));
        }
        Ok(files)
    }

    pub(crate) fn recorded(&self) -> ComparedRun<'_> {
        ComparedRun {
            name: &self.name,
            manifest: self.manifest.as_ref(),
            doctor: self.doctor.as_ref(),
            parity: self.parity.as_ref(),
            bench: self.bench.as_ref(),
            edited: &self.edited,
        }
    }
}

/// Artefacts that are missing or whose hash has changed.
fn edited(folder: &Path, manifest: Option<&RunManifest>) -> anyhow::Result<Vec<String>> {
    let mut edited = Vec::new();
    for artefact in manifest.iter().flat_map(|manifest| &manifest.artefacts) {
        let text = read_text(folder, &artefact.path)?;
        if text.is_none_or(|text| sha256(text.as_bytes()) != artefact.sha256) {
            edited.push(artefact.path.clone());
        }
    }
    Ok(edited)
}

/// A document of the run; `None` if the run ended before it was written.
pub(crate) fn read_json<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
) -> anyhow::Result<Option<T>> {
    let Some(text) = read_text(folder, name)? else { return Ok(None) };
    let version: Option<u64> = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|value| value.get("schema")?.as_u64());
    if version.is_some_and(|version| version != u64::from(SCHEMA)) {
        let what = format!(
            "{} has schema {}, this firstlight reads {SCHEMA}",
            folder.join(name).display(),
            version.unwrap_or(0)
        );
        return Err(Failure::hinted(what, "use the firstlight that wrote it"));
    }
    serde_json::from_str(&text).map(Some).map_err(|error| {
        let what = format!("cannot use {}: {error}", folder.join(name).display());
        Failure::hinted(what, "the file is damaged or cut: copy the run again, or repeat the check")
    })
}

/// A file of the run; `None` if the run ended before it was written.
fn read_text(folder: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let path = folder.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
