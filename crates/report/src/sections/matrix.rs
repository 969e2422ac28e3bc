//! The support matrix: this kind of machine and others, each cell with its reason and source.

use crate::document::{Block, Prose, Table, Tone};
use crate::run::{FACTS_FILE, Run};
use facts::{Support, SupportCell, SupportMatrix};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(matrix) = &run.doctor.matrix else { return Vec::new() };
    // Empty for a machine that is not in the matrix; `firstlight plan --matrix` shows the others.
    let Some(platform) = &matrix.here else { return Vec::new() };
    let here = format!("This machine is {platform}, by ");
    let mut blocks = vec![Block::Paragraph(Prose::new().text(here).file(FACTS_FILE).text("."))];
    // The table of this machine is expanded; that of the other platforms is collapsed.
    blocks.push(Block::Table(table(matrix, None, |cell| &cell.platform == platform)));
    let others =
        table(matrix, Some("Platform"), |cell| Some(&cell.platform) != matrix.here.as_ref());
    let summary = Prose::from("The other platforms");
    blocks.push(Block::Details { summary, blocks: vec![Block::Table(others)] });
    blocks
}

/// `platform` is the head of the column of this machine, if it has one.
fn table(
    matrix: &SupportMatrix,
    platform: Option<&str>,
    wanted: impl Fn(&SupportCell) -> bool,
) -> Table {
    let caption = Prose::new().text("Support, from ").file(FACTS_FILE).text(".");
    let head: Vec<&str> = std::iter::once("Component")
        .chain(platform)
        .chain(["Support", "Why", "Source", "Read on"])
        .collect();
    let mut table = Table::new(caption, &head);
    for row in &matrix.rows {
        for cell in row.cells.iter().filter(|cell| wanted(cell)) {
            let (tone, word) = support(cell.support);
            let mut cells = vec![Prose::from(row.component.as_str())];
            cells.extend(platform.map(|_| Prose::from(cell.platform.as_str())));
            cells.extend([
                Prose::new().chip(tone, word),
                Prose::from(cell.reason.as_str()),
                source(&cell.source),
                Prose::from(cell.date.as_str()),
            ]);
            table.row(cells);
        }
    }
    table
}

fn source(words: &str) -> Prose {
    if words.starts_with("https://") { Prose::new().web(words) } else { Prose::from(words) }
}

/// The support level, as a word with its tone.
pub(crate) fn support(support: Support) -> (Tone, &'static str) {
    match support {
        Support::Yes => (Tone::Good, "yes"),
        Support::Partly => (Tone::Warn, "partly"),
        Support::No => (Tone::Bad, "no"),
    }
}
