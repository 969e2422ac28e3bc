//! Lists what a check left out, so that nothing missing looks done.

use super::{Installed, group};
use crate::cli::Check;
use crate::run_folder::RunFolder;
use ::verify::Tuning;
use facts::{
    BackendKind, BenchReport, DoctorReport, Gpu, GpusReport, OUT_OF_TIME, ParityReport,
    SkippedTiming, Status,
};
use ops_cuda::is_partition;
use std::collections::BTreeMap;

/// The reason for a missing memory test within a budget.
const OUT_OF_TIME_OR_BUSY: &str =
    "--budget left no time for it, --memory-budget 0 was given, or other programs use its memory";

/// Lists the work that this run skipped because of its arguments or its time limit.
pub(super) fn of(
    folder: &mut RunFolder,
    doctor: &DoctorReport,
    arguments: &Check,
    python: &Installed,
    gpus: Option<&GpusReport>,
) {
    if !arguments.op.is_empty() {
        let why = format!("--op {} was given", arguments.op.join(","));
        folder.not_run("all other ops and models", &why);
    }
    if arguments.quick {
        folder.not_run("the standard matrix and the larger benchmarks", "--quick was given");
    }
    let ran =
        |gpu: &&Gpu| gpus.is_some_and(|gpus| gpus.gpus.iter().any(|it| it.index == gpu.index));
    for gpu in doctor.machine.gpus.iter().filter(|gpu| !ran(gpu)) {
        let why = match ops_cuda::visible_gpus() {
            Err(error) => error.to_string(),
            Ok(_) if !arguments.gpu.is_empty() => "--gpu names others".to_owned(),
            Ok(seen) => {
                let same = |seen: &&ops_cuda::VisibleGpu| seen.name == gpu.name.value;
                let unusable = seen.iter().find(same).and_then(|seen| seen.unusable.clone());
                unusable.unwrap_or_else(|| {
                    "not visible to this process: CUDA_VISIBLE_DEVICES selects the GPUs".to_owned()
                })
            }
        };
        folder.not_run(&format!("kernels on GPU {} ({})", gpu.index, gpu.name.value), &why);
    }
    for part in gpus.iter().flat_map(|gpus| &gpus.gpus).filter(|gpu| is_partition(&gpu.name)) {
        let what = format!("the rest of the board of GPU {} ({})", part.index, part.name);
        folder.not_run(&what, "this process sees only a MIG partition of it");
    }
    let untested = gpus.iter().flat_map(|gpus| &gpus.gpus);
    for gpu in untested.filter(|gpu| gpu.memory.is_none() && gpu.broke.is_none()) {
        let why = match arguments.memory_budget {
            _ if arguments.budget.is_some() => OUT_OF_TIME_OR_BUSY,
            Some(_) => "--memory-budget 0 was given",
            None => {
                "other programs use its memory and a test of all free memory could disturb them; --memory-budget enables it"
            }
        };
        folder.not_run(&format!("the memory test of GPU {} ({})", gpu.index, gpu.name), why);
    }
    if let Some(gpus) = gpus {
        if gpus.gpus.len() > 1 && gpus.fabric.is_none() {
            let what = "copies and collectives between the GPUs";
            folder.not_run(what, group::why_not_between(arguments));
        }
        for left in gpus.fabric.iter().flat_map(|fabric| &fabric.left_out) {
            folder.not_run(&left.what, &left.why);
        }
        if gpus.sustained.is_none() {
            let what = "a large product on all GPUs at once, for some time";
            folder.not_run(what, group::why_not_under_load(arguments));
        }
    }
    let installed = "the kernels of the installed Python packages";
    match python {
        Installed::Started(environment) if environment.backend() == BackendKind::Cuda => {
            folder.not_run(
                "Triton's own tuning of installed kernels",
                &format!(
                    "verification used the first configuration that runs; timing measured each for {} ms instead of 100 ms, with nothing else on the GPU",
                    Tuning::ALONE.millis
                ),
            );
        }
        Installed::Started(_) => {}
        Installed::Silent(why) => folder.not_run(installed, why),
        Installed::NotNamed if doctor.envs.iter().any(|env| env.torch.is_some()) => {
            folder.not_run(installed, "no environment was named: `--venv DIR` or `--python EXE`");
        }
        Installed::NotNamed => {}
    }
}

/// Whether the time limit of the whole check was reached.
pub(super) fn cut(parity: &ParityReport, bench: &BenchReport) -> bool {
    parity.rows.iter().any(|row| row.reason == OUT_OF_TIME)
        || bench.not_run.iter().any(|left| left.why == OUT_OF_TIME)
}

/// Work that ran out of time: a line for each of firstlight's ops, and for each peer.
pub(super) fn of_time(folder: &mut RunFolder, parity: &ParityReport, bench: &BenchReport) {
    let mut left: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for row in &parity.rows {
        if row.reason == OUT_OF_TIME {
            *left
                .entry((format!("checks of {} on {}", row.op, row.backend), &row.reason))
                .or_default() += 1;
        } else if row.status == Status::NotRun {
            *left.entry((format!("checks of {}", row.variant), &row.reason)).or_default() += 1;
        }
    }
    for SkippedTiming { peer, why, .. } in &bench.not_run {
        *left.entry((format!("timings of {peer}"), why)).or_default() += 1;
    }
    for ((what, why), count) in left {
        folder.not_run(&format!("{count} {what}"), why);
    }
}
