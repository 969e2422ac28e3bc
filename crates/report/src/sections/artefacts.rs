//! Every file of the run folder with its hash.

use crate::document::{Block, Prose, Table};
use crate::format;
use crate::run::{MANIFEST_FILE, Run};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let artefacts = &run.manifest.artefacts;
    let intro = Prose::new()
        .text(format!("{} listed in ", verb(artefacts.len())))
        .file(MANIFEST_FILE)
        .text(", which cannot hold its own hash; nor can the two reports, which are made from it. Check the others with ")
        .code("sha256sum")
        .text(".");
    if artefacts.is_empty() {
        return vec![Block::Paragraph(intro)];
    }
    let mut table = Table::new(
        Prose::new().text("Files of this run, from ").file(MANIFEST_FILE).text("."),
        &["File", "What it holds", ">Size", "SHA-256"],
    );
    for artefact in artefacts {
        table.row(vec![
            Prose::new().file(&artefact.path),
            Prose::from(&artefact.what),
            Prose::from(format::file_size(artefact.bytes)),
            Prose::new().code(&artefact.sha256),
        ]);
    }
    vec![Block::Paragraph(intro), Block::Table(table)]
}

fn verb(files: usize) -> String {
    match files {
        0 => "No artefact is".to_owned(),
        1 => "1 artefact is".to_owned(),
        files => format!("{files} artefacts are"),
    }
}
