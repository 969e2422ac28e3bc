use crate::document::{Document, Prose, Section, Tone};
use crate::format;
use crate::sections::{SECTIONS, verdict};
use crate::verdict::headline;
use facts::{
    BenchReport, DoctorReport, GpusReport, ModelSpeedReport, ParityReport, RunManifest, RunState,
};

/// The doctor's facts in a run folder: a [`DoctorReport`] as JSON.
pub const FACTS_FILE: &str = "facts.json";
/// The parity matrix in a run folder, as [`crate::parity_csv`] writes it.
pub const PARITY_FILE: &str = "parity.csv";
/// Ceilings and timings in a run folder, as [`crate::bench_csv`] writes them.
pub const BENCH_FILE: &str = "bench.csv";
/// The speed of a model in a run folder: a [`ModelSpeedReport`] as JSON.
pub const MODEL_SPEED_FILE: &str = "models.json";
/// The same as a table, as [`crate::model_speed_csv`] writes it.
pub const MODEL_SPEED_TABLE: &str = "models.csv";
/// The timed samples in a run folder.
pub const SAMPLES_FILE: &str = "samples.csv";
/// The conditions while kernels were timed, in a run folder: a [`facts::ConditionsReport`] as JSON.
pub const CONDITIONS_FILE: &str = "conditions.json";
/// The comparison of a check's GPUs in a run folder: a [`GpusReport`] as JSON.
pub const GPUS_FILE: &str = "gpus.json";
/// The measurements between those GPUs as a table, as [`crate::fabric_csv`] writes it.
pub const FABRIC_TABLE: &str = "fabric.csv";
/// The manifest in a run folder: a [`RunManifest`] as JSON.
pub const MANIFEST_FILE: &str = "run.json";

/// All records of a report.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Command, source and artefacts.
    pub manifest: &'a RunManifest,
    /// Machine, environments and findings.
    pub doctor: &'a DoctorReport,
    /// The parity matrix; `None` when nothing was verified.
    pub parity: Option<&'a ParityReport>,
    /// The measurements; `None` when nothing was timed.
    pub bench: Option<&'a BenchReport>,
    /// The speed of a model; `None` if none was timed.
    pub model_speed: Option<&'a ModelSpeedReport>,
    /// The GPUs of the check; `None` without a GPU, and in runs recorded before GPUs were compared.
    pub gpus: Option<&'a GpusReport>,
}

/// The two documents of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// `report.md`.
    pub markdown: String,
    /// `report.html`: one file, no requests.
    pub html: String,
}

/// Both documents of a run. The same input gives the same bytes.
pub fn run_report(run: &Run<'_>) -> Documents {
    let document = document(run);
    Documents { markdown: brief(&document), html: crate::html::render(&document) }
}

/// `report.md`: at most 300 lines. Tables are cut if necessary; the files that they name have the rest.
pub fn markdown(run: &Run<'_>) -> String {
    brief(&document(run))
}

/// Maximum lines of `report.md`.
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
            .text(format!(" It was interrupted or is still running: {reached}, artefacts may be missing, and nothing below is complete ("))
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
