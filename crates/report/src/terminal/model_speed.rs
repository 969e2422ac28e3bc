use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::sections::model_speed::{HEADS, cells, comparisons, limits, ran, subject};
use facts::{ModelSpeedReport, Status};

/// The model that was timed, its checks, then each test with its share of the limit by memory bandwidth.
pub fn model_speed(model: &ModelSpeedReport, style: Style) -> String {
    let mut out = paragraph(style, &subject(model));
    let (own, installed): (Vec<_>, Vec<_>) =
        model.checks.iter().partition(|row| row.peer.is_none());
    let passed = own.iter().filter(|row| row.status == Status::Pass).count();
    let worst = own.iter().filter_map(|row| row.rel_err).fold(0.0, f64::max);
    let words = format!(
        "{passed} of {} checks against float32 on the processor passed, relative error at most {worst:.1e}",
        own.len()
    );
    out.push_str(&paragraph(style, &words));
    for row in own.iter().filter(|row| row.status != Status::Pass) {
        out.push_str(&paragraph(style, &format!("{} {}: {}", row.status, row.case, row.reason)));
    }
    // Cases of one peer often have the same reason, so they share a line.
    for rows in installed.chunk_by(|a, b| (a.status, &a.variant) == (b.status, &b.variant)) {
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let why = if rows[0].status == Status::Pass { &rows[0].evidence } else { &rows[0].reason };
        let (status, peer) = (rows[0].status, &rows[0].variant);
        out.push_str(&paragraph(style, &format!("{status} {peer} in {}: {why}", cases.join(", "))));
    }
    if !model.speeds.is_empty() {
        let columns = HEADS.map(|head| match head {
            "test" | "by" => Column::word(head),
            _ => Column::number(head),
        });
        let mut rows = table(style, &columns);
        for speed in &model.speeds {
            rows.add_row(cells(model, speed).map(plain).to_vec());
        }
        out.push('\n');
        out.push_str(&render(&rows));
        out.push('\n');
        out.push_str(&paragraph(style, &limits(model)));
        out.push_str(&paragraph(style, &ran(model)));
        comparisons(model).iter().for_each(|words| out.push_str(&paragraph(style, words)));
    }
    for why in &model.not_timed {
        out.push_str(&paragraph(style, &format!("not timed: {why}")));
    }
    out
}
