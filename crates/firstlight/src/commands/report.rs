//! `firstlight report RUN`: the documents again, from the files of a run.

use crate::Outcome;
use crate::cli::Report;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_folder::{INCOMPLETE, write_documents};
use anyhow::Context;
use facts::{DoctorReport, RunManifest, RunState, SCHEMA};
use report::{
    BENCH_FILE, FACTS_FILE, MANIFEST_FILE, PARITY_FILE, Run, Verdict, read_bench_csv,
    read_parity_csv, run_report, terminal,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

#[derive(Serialize)]
struct Summary<'a> {
    schema: u32,
    run: String,
    verdict: &'static str,
    manifest: &'a RunManifest,
    documents: [String; 2],
}

pub(super) fn run(arguments: &Report, output: &Output) -> anyhow::Result<Outcome> {
    let folder = &arguments.run;
    let mut manifest: RunManifest = read_json(folder, MANIFEST_FILE)?;
    if folder.join(INCOMPLETE).exists() {
        manifest.state = RunState::Incomplete;
    }
    let doctor: DoctorReport = read_json(folder, FACTS_FILE)?;
    let parity = read_text(folder, PARITY_FILE)?.map(|text| read_parity_csv(&text)).transpose()?;
    let bench = read_text(folder, BENCH_FILE)?.map(|text| read_bench_csv(&text)).transpose()?;
    let run = Run {
        manifest: &manifest,
        doctor: &doctor,
        parity: parity.as_ref(),
        bench: bench.as_ref(),
    };
    write_documents(folder, &run_report(&run))?;
    let verdict = Verdict::of(&run);
    let documents =
        ["report.md", "report.html"].map(|name| folder.join(name).display().to_string());
    if output.json {
        let run = folder.display().to_string();
        output.document(&Summary {
            schema: SCHEMA,
            run,
            verdict: verdict.as_str(),
            manifest: &manifest,
            documents,
        })?;
    } else {
        output.text(&terminal::summary(&run, output.style()))?;
        output.text(&documents.map(|document| format!("wrote {document}")).join("\n"))?;
    }
    Ok(if matches!(verdict, Verdict::Verified | Verdict::Partial) {
        Outcome::Good
    } else {
        Outcome::Bad
    })
}

fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> anyhow::Result<T> {
    let Some(text) = read_text(folder, name)? else {
        let what = format!("{} is no run folder: it has no {name}", folder.display());
        return Err(Failure::hinted(what, "name a folder that `firstlight check` wrote"));
    };
    let version: Option<u64> = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|value| value.get("schema")?.as_u64());
    if version.is_some_and(|version| version != u64::from(SCHEMA)) {
        let what = format!(
            "{} has schema {}, this firstlight reads {SCHEMA}",
            folder.join(name).display(),
            version.unwrap_or(0)
        );
        return Err(Failure::hinted(what, "render it with the firstlight that wrote it"));
    }
    serde_json::from_str(&text)
        .with_context(|| format!("cannot use {}", folder.join(name).display()))
}

/// A file of the run; `None` when the run ended before it was written.
fn read_text(folder: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let path = folder.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
