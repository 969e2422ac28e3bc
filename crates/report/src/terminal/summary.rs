use super::gpus::checked;
use super::layout::{fields, paint, paragraph};
use super::together::{fabric, sustained};
use super::{Style, bench, parity_summary};
use crate::format;
use crate::run::Run;
use crate::sections::{findings_sentence, pending_items, verdict_reason};
use crate::verdict::{Verdict, scope};

/// The end of a `check`: parity by kernel, timings, findings in one line, pending work, and the verdict on the last line.
pub fn summary(run: &Run<'_>, style: Style) -> String {
    let mut out = String::new();
    for part in [
        run.parity.map(|parity| parity_summary(parity, style)),
        run.bench.map(|report| bench(report, style)),
        run.gpus.map(|report| checked(report, style)),
        run.gpus.and_then(|report| Some(fabric(report.fabric.as_ref()?, style))),
        run.gpus.and_then(|report| Some(sustained(report.sustained.as_ref()?, style))),
    ] {
        out.extend(part.map(|part| part + "\n"));
    }
    let pending = pending_items(run);
    let lines: Vec<_> = pending.iter().map(|item| (item.what.clone(), item.why.clone())).collect();
    if !pending.is_empty() {
        out.push_str(&paragraph(
            style,
            &format!("pending: {}", format::count(pending.len(), "entry")),
        ));
        out.push_str(&fields(style, &lines));
        out.push('\n');
    }
    out + &verdict(run, style)
}

/// The findings in one line, and the verdict.
pub fn verdict(run: &Run<'_>, style: Style) -> String {
    let mut out = paragraph(style, &findings_sentence(run.doctor));
    let verdict = Verdict::of(run);
    let words = format!("verdict: {verdict}. {} {}", scope(run), verdict_reason(run, verdict));
    let line = paragraph(style, &words);
    out.push_str(&line.replacen(
        verdict.as_str(),
        &paint(style, verdict.tone(), verdict.as_str()),
        1,
    ));
    out
}
