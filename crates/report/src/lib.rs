//! Facts to text: the report of a run as Markdown and as one self-contained HTML page, its tables as CSV, and text for
//! terminals.
//!
//! Invariant: `report` never measures, and neither reads nor writes files. Every sentence with a number is computed
//! from the records, so re-rendering a run folder whose CSV was edited changes the prose.
//!
//! A section is one file in `sections/` and one line in `SECTIONS`. A section builds a document
//! (`document.rs`), which is rendered once to Markdown and once to HTML; no section writes either by hand.

mod baseline;
mod checked_gpus;
mod compare;
mod conditions;
mod counts;
mod csv;
mod document;
mod escape;
mod fleet;
mod format;
mod gpus;
mod html;
mod installed;
mod legend;
mod markdown;
mod pictures;
mod plot;
mod run;
mod sections;
mod shares;
mod stack;
pub mod terminal;
mod together;
mod verdict;

pub use crate::csv::{
    CsvError, bench_csv, branches_csv, fabric_csv, model_speed_csv, parity_csv, read_bench_csv,
    read_parity_csv, read_samples_csv, samples_csv,
};
pub use baseline::{BaselineShape, baseline, baselines};
pub use compare::{ComparedRun, TOLERANCE_PCT, compare, comparison_report, gate, gate_report};
pub use fleet::{FLEET_FILE, fleet_report};
pub use format::count;
pub use pictures::{Picture, bench_pictures};
pub use run::{
    BENCH_FILE, CONDITIONS_FILE, Documents, FABRIC_TABLE, FACTS_FILE, GPUS_FILE, MANIFEST_FILE,
    MODEL_SPEED_FILE, MODEL_SPEED_TABLE, PARITY_FILE, Run, SAMPLES_FILE, html, markdown,
    run_report,
};
pub use sections::unexplained_problems;
pub use verdict::{Verdict, coverage, evidence_gap, headline};
