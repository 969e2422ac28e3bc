//! The sections of a report, in reading order. A new one is a file in `sections/` and a line in [`SECTIONS`].

mod artefacts;
mod bench;
mod environment;
mod fabric;
mod findings;
mod gpus;
mod installed;
mod matrix;
mod model;
pub(crate) mod model_speed;
mod parity;
mod pending;
mod processes;
mod provenance;
mod summary;
mod sustained;

use crate::document::Block;
use crate::run::Run;

pub(crate) use bench::raised_words;
pub(crate) use environment::{describe, kind as machine_kind, version};
pub use findings::unexplained_problems;
pub(crate) use findings::{
    card as finding_card, sentence as findings_sentence, tone as finding_tone,
};
pub(crate) use matrix::support;
pub(crate) use model::status as kernel_status;
pub(crate) use pending::pending as pending_items;
pub(crate) use summary::{verdict, why as verdict_reason};

/// Builds a section of a run's report. A section without content is omitted with its heading.
pub(crate) type Build = fn(&Run<'_>) -> Vec<Block>;

/// Name (also the anchor and the file's stem), title and builder.
pub(crate) const SECTIONS: &[(&str, &str, Build)] = &[
    ("summary", "Summary", summary::build),
    ("findings", "Findings", findings::build),
    ("bench", "Speed", bench::build),
    ("model-speed", "Speed of the model", model_speed::build),
    ("installed", "Installed kernels", installed::build),
    ("parity", "Parity with the f64 reference", parity::build),
    ("model", "Model fit", model::build),
    ("environment", "Environment", environment::build),
    ("gpus", "GPUs side by side", gpus::build),
    ("fabric", "Between the GPUs", fabric::build),
    ("sustained", "GPUs under load", sustained::build),
    ("processes", "Processes on the GPUs", processes::build),
    ("matrix", "What works where", matrix::build),
    ("pending", "Done, pending and limits", pending::build),
    ("provenance", "Provenance", provenance::build),
    ("artefacts", "Artefacts", artefacts::build),
];

#[cfg(test)]
mod tests {
    use super::SECTIONS;
    use std::collections::BTreeSet;

    #[test]
    fn sections_list_each_file_once() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sections");
        let files: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                entry.unwrap().path().file_stem().unwrap().to_str().unwrap().replace('_', "-")
            })
            .collect();
        let listed: BTreeSet<String> =
            SECTIONS.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(files, listed);
        assert_eq!(listed.len(), SECTIONS.len(), "a section is listed twice");
    }
}
