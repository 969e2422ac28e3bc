//! `firstlight check --report RUN`: regenerates the documents of a run from its files.

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

/// The command by its former name.
pub(super) fn run(arguments: &Report, output: &Output) -> anyhow::Result<Outcome> {
    of_run(&arguments.run, arguments.redact, arguments.output.as_deref(), output)
}

/// Writes the report of the folder `run` again, or of a redacted copy of it in `into`.
pub(super) fn of_run(
    run: &Path,
    redact: bool,
    into: Option<&Path>,
    output: &Output,
) -> anyhow::Result<Outcome> {
    if redact != into.is_some() {
        let what =
            "--redact and -o DIR are given together: the copy that can be shared needs a folder";
        let hint = format!("firstlight check --report {} --redact -o to-share", run.display());
        return Err(Failure::hinted(what, hint));
    }
    // A path that is not a folder is reported below.
    if run.is_dir()
        && let Some(fleet) = read_json(run, FLEET_FILE)?
    {
        return of_fleet(&fleet, run, into, output);
    }
    let redacted = into.map(|into| redacted::copy(run, into)).transpose()?;
    let folder = redacted.as_deref().unwrap_or(run);
    let verdict = rewrite(folder, output)?;
    Ok(if verdict.is_good() { Outcome::Good } else { Outcome::Bad })
}

/// Writes the documents of a run from its files, and prints their names with the run's verdict.
pub(super) fn rewrite(folder: &Path, output: &Output) -> anyhow::Result<Verdict> {
    let files = RunFiles::read(folder)?;
    let Some(manifest) = &files.manifest else {
        let what = format!("{} is not a run folder: it has no {MANIFEST_FILE}", folder.display());
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
fn of_fleet(
    fleet: &FleetReport,
    run: &Path,
    into: Option<&Path>,
    output: &Output,
) -> anyhow::Result<Outcome> {
    if into.is_some() {
        let what = "the folder of a fleet cannot be redacted as a whole";
        return Err(Failure::hinted(what, "check with --redact, or redact the folder of one rank"));
    }
    let Some(manifest) = RunFiles::read(run)?.manifest else {
        anyhow::bail!("{} has no {MANIFEST_FILE}", run.display());
    };
    let documents = write_documents(run, "report", &fleet_report(fleet, &manifest))?;
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

/// A machine without recorded facts.
fn unknown() -> DoctorReport {
    let note = format!(
        "{FACTS_FILE} is not in this folder: the machine, its environments and findings are unknown"
    );
    let machine = Machine { notes: vec![note], ..Machine::unknown() };
    DoctorReport::new(machine, Vec::new(), Vec::new())
}
