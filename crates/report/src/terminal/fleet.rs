use super::Style;
use super::layout::{Column, cell, paragraph, plain, render, table, tagged};
use crate::document::Tone;
use crate::fleet::sentence;
use crate::sections::finding_tone;
use facts::FleetReport;

/// Ranks that are shown; the report has all.
const LISTED: usize = 32;

/// The ranks of a fleet side by side, and the ranks that differ.
pub fn fleet(fleet: &FleetReport, style: Style) -> String {
    let columns = [
        Column::number("rank"),
        Column::word("host"),
        Column::number("passed"),
        Column::number("failed"),
        Column::number("timed"),
        Column::wrapped("verdict"),
    ];
    let mut rows = table(style, &columns);
    for rank in fleet.ranks.iter().take(LISTED) {
        let verdict = match &rank.broke {
            Some(why) => cell(Tone::Bad, why),
            None if rank.verdict.is_empty() => plain("not done"),
            None => plain(&rank.verdict),
        };
        let counts = [rank.passed, rank.failed, rank.timed].map(|count| plain(count.to_string()));
        let [passed, failed, timed] = counts;
        rows.add_row(vec![
            plain(rank.rank.to_string()),
            plain(&rank.host),
            passed,
            failed,
            timed,
            verdict,
        ]);
    }
    let mut out = render(&rows);
    if fleet.ranks.len() > LISTED {
        let words = format!("{} more ranks are in the report", fleet.ranks.len() - LISTED);
        out += &paragraph(style, &words);
    }
    let items = fleet.findings.iter().map(|finding| {
        let (tone, word) = finding_tone(finding.severity);
        (cell(tone, &word.to_lowercase()), format!("{} [{}]", finding.title, finding.rule))
    });
    let items: Vec<_> = items.collect();
    if !items.is_empty() {
        out.push('\n');
        out += &tagged(style, items);
    }
    out.push('\n');
    out + &paragraph(style, &sentence(fleet))
}
