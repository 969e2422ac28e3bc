use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::sections::model_speed::{HEADS, cells, limits, ran, subject};
use facts::{ModelSpeedReport, Status};

/// What was timed, how it was checked, then each test with its share of what memory allows.
pub fn model_speed(model: &ModelSpeedReport, style: Style) -> String {
    let mut out = paragraph(style, &subject(model));
    let passed = model.checks.iter().filter(|row| row.status == Status::Pass).count();
    let worst = model.checks.iter().filter_map(|row| row.rel_err).fold(0.0, f64::max);
    let words = format!(
        "{passed} of {} checks against float32 on the processor passed, relative error at most {worst:.1e}",
        model.checks.len()
    );
    out.push_str(&paragraph(style, &words));
    for row in model.checks.iter().filter(|row| row.status != Status::Pass) {
        out.push_str(&paragraph(style, &format!("{} {}: {}", row.status, row.case, row.reason)));
    }
    if !model.speeds.is_empty() {
        let columns = HEADS.map(|head| match head {
            "test" => Column::word(head),
            _ => Column::number(head),
        });
        let mut rows = table(style, &columns);
        for speed in &model.speeds {
            rows.add_row(cells(speed).map(plain).to_vec());
        }
        out.push('\n');
        out.push_str(&render(&rows));
        out.push('\n');
        out.push_str(&paragraph(style, &limits(model)));
        out.push_str(&paragraph(style, &ran(model)));
    }
    for why in &model.not_timed {
        out.push_str(&paragraph(style, &format!("not timed: {why}")));
    }
    out
}
