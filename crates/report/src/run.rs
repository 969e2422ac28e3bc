use crate::document::{Document, Prose, Section, Tone};
use crate::format;
use crate::sections::{SECTIONS, verdict};
use crate::verdict::headline;
use facts::{
    BenchReport, DoctorReport, GpusReport, ModelSpeedReport, ParityReport, RunManifest, RunState,
};

/// The doctor's facts in a run folder; its content is a [`DoctorReport`] as JSON.
pub const FACTS_FILE: &str = "facts.json";
/// The parity matrix in a run folder, as [`crate::parity_csv`] writes it.
pub const PARITY_FILE: &str = "parity.csv";
/// Ceilings and timings in a run folder, as [`crate::bench_csv`] writes them.
pub const BENCH_FILE: &str = "bench.csv";
/// How fast a model runs, in a run folder; its content is a [`ModelSpeedReport`] as JSON.
pub const MODEL_SPEED_FILE: &str = "models.json";
/// The same as a table, as [`crate::model_speed_csv`] writes it.
pub const MODEL_SPEED_TABLE: &str = "models.csv";
/// Every timed sample in a run folder, as [`crate::samples_csv`] writes it.
pub const SAMPLES_FILE: &str = "samples.csv";
/// The load of the machine while kernels were timed, in a run folder; its content is a [`facts::ConditionsReport`] as JSON.
pub const CONDITIONS_FILE: &str = "conditions.json";
/// The comparison of the GPUs of a check, in a run folder; its content is a [`GpusReport`] as JSON.
pub const GPUS_FILE: &str = "gpus.json";
/// The measurements between those GPUs as a table, as [`crate::fabric_csv`] writes it.
pub const FABRIC_TABLE: &str = "fabric.csv";
/// The manifest in a run folder; its content is a [`RunManifest`] as JSON.
pub const MANIFEST_FILE: &str = "run.json";

/// Everything a report is made from.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The command, the source it was built from, and the artefacts.
    pub manifest: &'a RunManifest,
    /// Machine, environments and findings.
    pub doctor: &'a DoctorReport,
    /// The parity matrix; `None` when nothing was verified.
    pub parity: Option<&'a ParityReport>,
    /// The measurements; `None` when nothing was timed.
    pub bench: Option<&'a BenchReport>,
    /// How fast a model runs; `None` when none was timed.
    pub model_speed: Option<&'a ModelSpeedReport>,
    /// The GPUs that the check ran on; `None` where there was none, and in runs recorded before they were compared.
    pub gpus: Option<&'a GpusReport>,
}

/// The two documents of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// `report.md`.
    pub markdown: String,
    /// `report.html`: one file, nothing fetched.
    pub html: String,
}

/// Both documents of a run. The same input gives the same bytes.
pub fn run_report(run: &Run<'_>) -> Documents {
    let document = document(run);
    Documents { markdown: brief(&document), html: crate::html::render(&document) }
}

/// `report.md`: at most 300 lines. Tables are cut where that is needed; the rest is in the files that they name.
pub fn markdown(run: &Run<'_>) -> String {
    brief(&document(run))
}

/// Most lines of `report.md`.
const LINES: usize = 300;

fn brief(document: &Document) -> String {
    crate::markdown::render_within(document, LINES)
}

/// `report.html`: inline style and pictures, no script, no request.
pub fn html(run: &Run<'_>) -> String {
    crate::html::render(&document(run))
}

fn document(run: &Run<'_>) -> Document {
    let manifest = run.manifest;
    let machine = &run.doctor.machine;
    let processor = machine.cpu.model.as_ref().map(|model| format!("{} · ", model.value));
    let subtitle = Prose::from(format!(
        "{} · {}{} · {}",
        manifest.host,
        processor.unwrap_or_default(),
        machine.platform,
        format::time(&manifest.started)
    ));

    let banner = (manifest.state == RunState::Incomplete).then(|| {
        let reached = match manifest.stages.last() {
            Some(stage) => format!("the last stage on record is {}", stage.name),
            None => "no stage is on record".to_owned(),
        };
        let words = Prose::new()
            .strong("Incomplete run.")
            .text(format!(" It was interrupted or is still running: {reached}, artefacts may be missing, and nothing below covers the whole run ("))
            .file(MANIFEST_FILE)
            .text(").");
        (Tone::Bad, words)
    });

    let sections = SECTIONS
        .iter()
        .map(|(id, title, build)| Section { id, title, blocks: build(run) })
        .filter(|section| !section.blocks.is_empty())
        .collect();
    let verdict = Some(verdict(run));
    Document { title: headline(machine), subtitle, verdict, banner, sections }
}
