use super::layout::{Column, paragraph, plain, render, table};
use super::{Style, one_finding};
use crate::format;
use facts::{GpuProcess, ProcessReport};

/// Each GPU's memory, the processes that use it, and their problems, worst first.
pub fn processes(report: &ProcessReport, style: Style) -> String {
    let mut out = String::new();
    for gpu in &report.gpus {
        let memory = match (gpu.used_bytes, gpu.total_bytes) {
            (Some(used), Some(total)) => {
                let percent = 100.0 * used as f64 / total.max(1) as f64;
                format!("{} of {} in use ({percent:.0}%)", mib(used), mib(total))
            }
            _ => "memory is not counted by the driver".to_owned(),
        };
        out.push_str(&paragraph(style, &format!("GPU {} {}: {memory}", gpu.gpu, gpu.name)));
        // Less than this is the driver's own use.
        const WORTH_SAYING: u64 = 512 << 20;
        if let Some(unseen) = gpu.unseen_bytes.filter(|bytes| *bytes >= WORTH_SAYING) {
            let words = format!(
                "  {} of it belong to no process that can be seen here: another container, or one that is stuck",
                mib(unseen)
            );
            out.push_str(&paragraph(style, &words));
        }
    }
    out.push('\n');
    if report.processes.is_empty() {
        out.push_str(&paragraph(style, "no process uses GPU memory"));
    } else {
        out.push_str(&rows(&report.processes, style));
    }
    for note in &report.notes {
        out.push_str(&paragraph(style, &format!("note: {note}")));
    }
    for finding in &report.findings {
        out.push('\n');
        out.push_str(&one_finding(finding, style));
    }
    out
}

fn rows(processes: &[GpuProcess], style: Style) -> String {
    let columns = [
        Column::number("GPU"),
        Column::number("PID"),
        Column::number("memory"),
        Column::number("age"),
        Column::wrapped("parent"),
        Column::wrapped("command"),
    ];
    let mut table = table(style, &columns);
    for process in processes {
        for part in &process.uses {
            let age =
                process.age_seconds.as_ref().map(|age| format::duration(age.value as f64 * 1e3));
            let parent = process
                .parent
                .as_ref()
                .map(|parent| format!("{} {}", parent.value.0, parent.value.1));
            let place = process.container.as_ref().or(process.unit.as_ref());
            let command = process.command.as_ref().or(process.name.as_ref());
            let mut command = command
                .map_or("not to be seen from here".to_owned(), |fact| shortened(&fact.value));
            if let Some(place) = place {
                command.push_str(&format!(" [{}]", place.value));
            }
            table.add_row(vec![
                plain(part.gpu.to_string()),
                plain(process.pid.to_string()),
                plain(part.bytes.map_or(format::ABSENT.to_owned(), mib)),
                plain(age.unwrap_or(format::ABSENT.to_owned())),
                plain(parent.unwrap_or(format::ABSENT.to_owned())),
                plain(command),
            ]);
        }
    }
    render(&table)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// A command line, truncated to fit a table; `--json` has all of it.
fn shortened(command: &str) -> String {
    const LONGEST: usize = 100;
    match command.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.to_owned(),
    }
}
