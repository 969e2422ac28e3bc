//! `firstlight report RUN`: the documents again, from the files of a run.

use crate::Outcome;
use crate::cli::Report;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_files::RunFiles;
use crate::run_folder::write_documents;
use facts::{RunManifest, SCHEMA};
use report::{FACTS_FILE, MANIFEST_FILE, Run, Verdict, run_report, terminal};
use serde::Serialize;

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
    let files = RunFiles::read(folder)?;
    let (Some(manifest), Some(doctor)) = (&files.manifest, &files.doctor) else {
        let gone = if files.manifest.is_none() { MANIFEST_FILE } else { FACTS_FILE };
        let what = format!("{} is no run folder: it has no {gone}", folder.display());
        return Err(Failure::hinted(what, "name a folder that `firstlight check` wrote"));
    };
    let run = Run {
        manifest,
        doctor,
        parity: files.parity.as_ref(),
        bench: files.bench.as_ref(),
        model_speed: files.model_speed.as_ref(),
    };
    let documents = write_documents(folder, "report", &run_report(&run))?;
    let documents = documents.map(|path| path.display().to_string());
    let verdict = Verdict::of(&run);
    if output.json {
        let run = folder.display().to_string();
        output.document(&Summary {
            schema: SCHEMA,
            run,
            verdict: verdict.as_str(),
            manifest,
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
