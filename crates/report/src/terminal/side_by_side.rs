//! Native and Python kernels side by side: a row for each call, a column for each kernel.

use super::Style;
use super::layout::{Cell, Column, cell, paragraph, plain, render, table};
use crate::counts::status;
use crate::format;
use crate::installed::installed;
use facts::{ParityRow, Status};

/// Heads of the columns; a legend has the names, which do not fit.
const HEADS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

/// The table of one op; empty if no installed package ran.
pub(super) fn side_by_side(rows: &[&ParityRow], style: Style) -> String {
    let peers = installed(rows.iter().copied());
    if peers.is_empty() || peers.len() > HEADS.len() {
        return String::new();
    }
    let mut out = paragraph(style, "side by side:");
    for (peer, head) in peers.iter().zip(HEADS) {
        out.push_str(&paragraph(style, &format!("  {head}  {} ({})", peer.name, peer.package)));
    }
    let mut columns =
        vec![Column::wrapped("case"), Column::word("type"), Column::word("firstlight")];
    columns.extend(HEADS.iter().take(peers.len()).map(|head| Column::word(*head)));
    let mut table = table(style, &columns);
    let backends: Vec<_> =
        rows.iter().filter(|row| row.peer.is_some()).map(|row| row.backend).collect();
    for first in rows.iter().filter(|row| row.peer.is_none() && backends.contains(&row.backend)) {
        let same = |row: &&&ParityRow| {
            (&row.case, &row.dtype, row.backend) == (&first.case, &first.dtype, first.backend)
        };
        let line: Vec<&&ParityRow> = rows.iter().filter(same).collect();
        // One row per call, for all variants of firstlight's own.
        let native: Vec<&&&ParityRow> = line.iter().filter(|row| row.peer.is_none()).collect();
        if native.first().is_none_or(|row| row.variant != first.variant) {
            continue;
        }
        let worst = native.iter().find(|row| row.status != Status::Pass).unwrap_or(&native[0]);
        let mut cells = vec![plain(&first.case), plain(&first.dtype), status_cell(worst)];
        cells.extend(peers.iter().map(|peer| {
            let row = line.iter().find(|row| row.peer.is_some() && row.variant == peer.name);
            row.map_or_else(|| plain(format::ABSENT), |row| status_cell(row))
        }));
        table.add_row(cells);
    }
    out + &render(&table)
}

fn status_cell(row: &ParityRow) -> Cell {
    let (tone, word) = status(row);
    cell(tone, word)
}
