use super::Style;
use super::layout::{Column, fields, paragraph, plain, render, table};
use crate::format;
use facts::{ApplyOutcome, ApplyReport};

/// The result of an apply: each step with its time and bytes, the lines of the proof, and what happened to the old
/// environment.
pub fn apply(report: &ApplyReport, style: Style) -> String {
    let columns = [
        Column::word("step"),
        Column::number("time"),
        Column::number("bytes"),
        Column::wrapped("outcome"),
    ];
    let mut table = table(style, &columns);
    for step in &report.steps {
        let bytes =
            if step.bytes == 0 { format::ABSENT.to_owned() } else { format::file_size(step.bytes) };
        let cells = [&step.name, &format::duration(step.millis), &bytes, &step.outcome];
        table.add_row(cells.map(plain).to_vec());
    }
    let mut out = render(&table);
    out.push('\n');
    out.push_str(&fields(style, &report.proof));
    out.push('\n');
    out.push_str(&paragraph(style, &sentence(report)));
    if let Some(old) = &report.kept_old {
        let words = format!("the old environment is kept at {old}; --discard-old removes it");
        out.push_str(&paragraph(style, &words));
    }
    out
}

fn sentence(report: &ApplyReport) -> String {
    let packages = format::count(report.packages.len(), "package");
    let venv = &report.venv;
    let words = match report.outcome {
        ApplyOutcome::Made => format!("{venv} is made with {packages}"),
        ApplyOutcome::Replaced => {
            format!("{venv} is replaced by a new environment with {packages}")
        }
        ApplyOutcome::Unchanged => {
            format!("{venv} is already what the plan says, {packages}, and was left as it is")
        }
        ApplyOutcome::Repaired => {
            format!("{venv} is again what the plan installed, {packages}")
        }
    };
    let millis: f64 = report.steps.iter().map(|step| step.millis).sum();
    let time = format::duration(millis);
    if report.outcome == ApplyOutcome::Unchanged {
        return format!("{words}; {time}");
    }
    let built = report.packages.iter().filter(|package| package.build.is_some()).count();
    let fetched: u64 = report.packages.iter().map(|package| package.fetched_bytes).sum();
    let resumed = if report.resumed { ", resuming an interrupted apply" } else { "" };
    format!("{words}; {built} built here, {} fetched, {time}{resumed}", format::file_size(fetched))
}
