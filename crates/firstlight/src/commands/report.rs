//! `firstlight report RUN`: the documents again, from the files of a run.

mod redacted;

use crate::Outcome;
use crate::cli::Report;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_files::{RunFiles, read_json};
use crate::run_folder::write_documents;
use facts::{DoctorReport, FleetReport, Machine, RunManifest, SCHEMA, Severity};
use report::{
    FACTS_FILE, FLEET_FILE, MANIFEST_FILE, Run, Verdict, fleet_report, run_report, terminal,
};
use serde::Serialize;
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
    // What is no folder is told of below.
    if arguments.run.is_dir()
        && let Some(fleet) = read_json(&arguments.run, FLEET_FILE)?
    {
        return of_fleet(&fleet, arguments, output);
    }
    let redacted = match &arguments.output {
        Some(into) => Some(redacted::copy(&arguments.run, into)?),
        None => None,
    };
    let folder = redacted.as_ref().unwrap_or(&arguments.run);
    let verdict = rewrite(folder, output)?;
    Ok(if verdict.is_good() { Outcome::Good } else { Outcome::Bad })
}

/// Writes the documents of a run from its files, and names them with the run's verdict.
pub(super) fn rewrite(folder: &Path, output: &Output) -> anyhow::Result<Verdict> {
    let files = RunFiles::read(folder)?;
    let Some(manifest) = &files.manifest else {
        let what = format!("{} is no run folder: it has no {MANIFEST_FILE}", folder.display());
        return Err(Failure::hinted(what, "name a folder that `firstlight check` wrote"));
    };
    // Recorded runs are published without it.
    let unknown = unknown();
    let doctor = files.doctor.as_ref().unwrap_or(&unknown);
    let run = Run {
        manifest,
        doctor,
        parity: files.parity.as_ref(),
        bench: files.bench.as_ref(),
        model_speed: files.model_speed.as_ref(),
        gpus: files.gpus.as_ref(),
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
        output.text(&terminal::verdict(&run, output.style()))?;
        output.text(&documents.map(|document| format!("wrote {document}")).join("\n"))?;
    }
    Ok(verdict)
}

/// The documents of a fleet's check.
fn of_fleet(fleet: &FleetReport, arguments: &Report, output: &Output) -> anyhow::Result<Outcome> {
    if arguments.output.is_some() {
        let what = "a fleet's folder is not redacted as a whole";
        return Err(Failure::hinted(what, "check with --redact, or redact the folder of one rank"));
    }
    let Some(manifest) = RunFiles::read(&arguments.run)?.manifest else {
        anyhow::bail!("{} has no {MANIFEST_FILE}", arguments.run.display());
    };
    let documents = write_documents(&arguments.run, "report", &fleet_report(fleet, &manifest))?;
    if output.json {
        output.document(fleet)?;
    } else {
        output.text(&terminal::fleet(fleet, output.style()))?;
        output.text(&documents.map(|path| format!("wrote {}", path.display())).join("\n"))?;
    }
    let fault = fleet.findings.iter().any(|finding| finding.severity != Severity::Info);
    let failed = fleet.ranks.iter().any(|rank| rank.failed > 0 || rank.broke.is_some());
    Ok(if fault || failed { Outcome::Bad } else { Outcome::Good })
}

/// A machine of which nothing was kept.
fn unknown() -> DoctorReport {
    let note = format!(
        "{FACTS_FILE} is not in this folder: the machine, its environments and findings are unknown"
    );
    let machine = Machine { notes: vec![note], ..Machine::unknown() };
    DoctorReport::new(machine, Vec::new(), Vec::new())
}
