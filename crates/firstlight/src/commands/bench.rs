//! `firstlight bench`: ceilings and kernels.

use crate::Outcome;
use crate::cli::Bench;
use crate::output::Output;
use crate::progress::Progress;
use crate::run_folder::write_atomically;
use ::bench::{Plan, Size};
use anyhow::Context;
use facts::BenchReport;
use report::{BENCH_FILE, SAMPLES_FILE, bench_csv, samples_csv, terminal};
use std::path::Path;

pub(super) fn run(arguments: &Bench, output: &Output) -> anyhow::Result<Outcome> {
    if let Some(file) = &arguments.tune {
        return tune(file, output);
    }
    let name = |name: &String| if name == "conv" { "conv1d".to_owned() } else { name.clone() };
    let plan = Plan {
        names: arguments.names.iter().map(name).collect(),
        backend: arguments.backend.into(),
        size: if arguments.quick { Size::Quick } else { Size::Standard },
        reference: arguments.reference,
    };
    let report = measure(&plan)?;
    if let Some(folder) = &arguments.output {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        write_atomically(&folder.join(BENCH_FILE), bench_csv(&report).as_bytes())?;
        write_atomically(&folder.join(SAMPLES_FILE), samples_csv(&report).as_bytes())?;
    }
    output.either(&report, |style| terminal::bench(&report, style))?;
    // A kernel that may not be timed failed its check.
    Ok(if report.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Writes the choice table that measurements here give.
fn tune(file: &Path, output: &Output) -> anyhow::Result<Outcome> {
    let progress = Progress::start("tune");
    let tuned = ::bench::tune(|row| {
        progress.step(format!("D {} {} queries {}", row.channels, row.queries, row.variant));
    })?;
    drop(progress);
    write_atomically(file, tuned.table.as_bytes())?;
    let mut text = String::from("variant\tqueries\tchannels\tmillis\n");
    for row in &tuned.measured {
        text += &format!("{}\t{}\t{}\t{:.4}\n", row.variant, row.queries, row.channels, row.millis);
    }
    output.text(&format!("{text}\nwrote {}\n", file.display()))?;
    for why in &tuned.not_timed {
        output.text(&format!("not timed: {why}\n"))?;
    }
    Ok(if tuned.not_timed.is_empty() { Outcome::Good } else { Outcome::Bad })
}

/// Runs a bench with progress.
pub(super) fn measure(plan: &Plan) -> anyhow::Result<BenchReport> {
    let progress = Progress::start("bench");
    Ok(::bench::run(plan, |row| progress.step(format!("{} {} {}", row.op, row.case, row.dtype)))?)
}
