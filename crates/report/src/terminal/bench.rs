use super::Style;
use super::layout::{Column, fields, paragraph, plain, render, table};
use crate::format;
use crate::sections::raised_words;
use crate::{conditions, shares};
use facts::BenchReport;

/// Ceilings, then every timed kernel with its share of the limiting ceiling, then what was not timed.
pub fn bench(report: &BenchReport, style: Style) -> String {
    let rate = |rate: Option<f64>, unit: &str| {
        rate.map_or_else(
            || "not measured".to_owned(),
            |rate| format!("{} {unit}", format::significant(rate, 4)),
        )
    };
    let mut out = String::new();
    for ceilings in &report.ceilings {
        let here = format!("ceilings on {}, measured in this run", ceilings.backend);
        out.push_str(&paragraph(style, &here));
        let gemm = &ceilings.gemm_gflops;
        let mut measured = vec![("copy".to_owned(), rate(Some(ceilings.copy_gbps), "GB/s"))];
        if ceilings.read_gbps.is_some() {
            measured.push(("read".to_owned(), rate(ceilings.read_gbps, "GB/s")));
        }
        measured.extend([
            ("GEMM f32".to_owned(), rate(gemm.f32, "GFLOP/s")),
            ("GEMM bf16".to_owned(), rate(gemm.bf16, "GFLOP/s")),
        ]);
        measured.extend(ceilings.gemm_by.iter().map(|by| ("GEMM by".to_owned(), by.clone())));
        out.push_str(&fields(style, &measured));
        for raised in &ceilings.raised {
            out.push_str(&paragraph(style, &raised_words(raised)));
        }
    }
    for why in conditions::all(report) {
        out.push_str(&paragraph(style, &format!("disturbed, {why}")));
    }
    out.push('\n');
    if report.rows.is_empty() {
        out.push_str(&paragraph(style, "no kernel was timed"));
    } else {
        out.push_str(&rows(report, style));
        if let Some(row) = report.rows.iter().find(|row| row.replays > 1) {
            let runs = row.replays;
            let what = format!(
                "decode: each sample is the mean of {runs} runs back to back, whose caches are warm"
            );
            out.push_str(&paragraph(style, &what));
        }
    }
    for row in &report.rows {
        let Some(dense_ms) = row.dense_ms else { continue };
        let words = format!(
            "{} {}: {} times as fast as dense attention of the same step, {}",
            row.op,
            row.case,
            format::significant(dense_ms / row.median_ms, 3),
            format::duration(dense_ms)
        );
        out.push_str(&paragraph(style, &words));
    }
    let mut shown = Vec::new();
    for row in report.rows.iter().filter(|row| row.peer.is_some()) {
        if !shown.contains(&&row.variant) {
            shown.push(&row.variant);
            let by = row.peer.as_deref().unwrap_or_default();
            let words = format!("{}: {by}; {} ran {}", row.variant, row.case, row.evidence);
            out.push_str(&paragraph(style, &words));
        }
    }
    for why in &report.not_timed {
        out.push_str(&paragraph(style, &format!("not timed: {why}")));
    }
    let not_run: Vec<String> = report
        .not_run
        .iter()
        .map(|left| format!("{}: {}: not run, {}", left.case, left.peer, left.why))
        .collect();
    for (why, of) in by_reason(&report.not_applicable).into_iter().chain(by_reason(&not_run)) {
        let of = match of.as_slice() {
            [one] => (*one).to_owned(),
            many => format::count(many.len(), "workload"),
        };
        out.push_str(&paragraph(style, &format!("not here: {why} ({of})")));
    }
    out
}

/// Lines `workload: peer: why`, grouped by the part after the workload, in order of first appearance.
fn by_reason(lines: &[String]) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        let (workload, why) = line.split_once(": ").unwrap_or(("", line));
        match found.iter_mut().find(|(known, _)| *known == why) {
            Some((_, workloads)) => workloads.push(workload),
            None => found.push((why, vec![workload])),
        }
    }
    found
}

fn rows(report: &BenchReport, style: Style) -> String {
    let columns = [
        Column::wrapped("op, case"),
        Column::word("type"),
        Column::wrapped("kernel"),
        Column::number("median"),
        Column::number("p95"),
        Column::number("GFLOP/s"),
        Column::number("GB/s"),
        Column::number("of ceiling"),
    ];
    let mut table = table(style, &columns);
    let mut op = "";
    for row in &report.rows {
        // The op is on a separate line, so that the cases below need not be wrapped.
        if row.op != op {
            op = &row.op;
            table.add_row(vec![plain(op)]);
        }
        let share = match shares::sound(report, row) {
            Some(share) => format!("{share:.0}% {}", shares::name(row)),
            None if shares::percent(row).is_some() => "in doubt".to_owned(),
            None if row.cache_resident => shares::words(row),
            // The HTML page has the reason.
            None => format::ABSENT.to_owned(),
        };
        table.add_row(vec![
            plain(format!("  {}", row.case)),
            plain(&row.dtype),
            plain(format!("{} {}", row.variant, row.backend)),
            plain(format::duration(row.median_ms)),
            plain(format::duration(row.p95_ms)),
            plain(format::significant(row.gflops, 3)),
            plain(format::significant(row.gbps, 3)),
            plain(share),
        ]);
    }
    render(&table)
}

#[cfg(test)]
mod tests {
    use super::by_reason;

    #[test]
    fn workloads_with_one_reason_are_grouped() {
        let lines =
            ["kda a: fla: N/A, no GPU", "kda b: fla: N/A, no GPU", "ssd a: mamba: N/A, x: y"];
        let lines: Vec<String> = lines.map(str::to_owned).into();
        let grouped = by_reason(&lines);
        assert_eq!(
            grouped,
            [("fla: N/A, no GPU", vec!["kda a", "kda b"]), ("mamba: N/A, x: y", vec!["ssd a"])]
        );
    }
}
