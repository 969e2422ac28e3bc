use super::Style;
use super::layout::{Column, cell, paragraph, plain, render, table};
use crate::sections::support;
use facts::SupportMatrix;

/// The support matrix; with `verbose`, each cell's reason and source below.
pub fn matrix(matrix: &SupportMatrix, verbose: bool, style: Style) -> String {
    let mut table = table(
        style,
        &[
            Column::word("component"),
            Column::word("platform"),
            Column::word(""),
            Column::wrapped("why"),
        ],
    );
    for row in &matrix.rows {
        for (place, part) in row.cells.iter().enumerate() {
            let (tone, word) = support(part.support);
            let name = if place == 0 { row.component.as_str() } else { "" };
            let words = match verbose {
                true => format!("{} ({}, {})", part.reason, part.source, part.date),
                false => part.reason.clone(),
            };
            table.add_row(vec![plain(name), plain(&part.platform), cell(tone, word), plain(words)]);
        }
    }
    let mut out = render(&table);
    out.push('\n');
    // With a named machine there is one column, and no line about this machine.
    if matrix.platforms.len() > 1 {
        out.push_str(&paragraph(
            style,
            &match &matrix.here {
                Some(platform) => format!("this machine is {platform}"),
                None => "this machine is of a kind that the matrix does not have; `firstlight plan` chooses a stack for it".to_owned(),
            },
        ));
    }
    if !verbose {
        out.push_str(&paragraph(style, "--explain shows where each cell was read, and when"));
    }
    out
}
