//! Compares the GPUs of a check: writes the rows of each into the run folder, and applies the rules to them.

use super::group::GroupResults;
use super::siblings::Sibling;
use crate::commands::bench::conditions_json;
use crate::commands::gpu_group::chosen::WorkingGpu;
use crate::run_folder::RunFolder;
use diagnose::GpuRows;
use facts::CompactSort;
use facts::{
    BackendKind, BenchReport, DoctorReport, GpuPart, GpusReport, MemoryTest, ParityReport,
};
use report::{
    BENCH_FILE, CONDITIONS_FILE, FABRIC_TABLE, FACTS_FILE, GPUS_FILE, PARITY_FILE, SAMPLES_FILE,
    bench_csv, fabric_csv, parity_csv, samples_csv,
};

/// Writes the rows of the further GPUs into separate folders, and compares all; `None` without a GPU.
pub(super) fn of(
    gpus: &[WorkingGpu],
    (parity, bench, memory): (&ParityReport, &BenchReport, Option<MemoryTest>),
    together: GroupResults,
    siblings: Vec<Sibling>,
    folder: &mut RunFolder,
) -> anyhow::Result<Option<GpusReport>> {
    let Some(first) = gpus.first() else { return Ok(None) };
    let part =
        GpuPart { index: first.index, name: first.name.clone(), memory, ..GpuPart::default() };
    let mut rows = vec![GpuRows {
        backend: BackendKind::Cuda,
        part,
        parity: &parity.rows,
        bench: Some(bench),
    }];
    for Sibling { part, parity, bench, .. } in &siblings {
        let whose = format!("GPU {}", part.index);
        let mut keep = |file: &str, what: &str, text: &str| {
            folder.artefact(&format!("{}/{file}", part.folder), &format!("{whose}: {what}"), text)
        };
        if let Some(parity) = parity {
            keep(PARITY_FILE, "every kernel against the float64 reference", &parity_csv(parity))?;
        }
        if let Some(bench) = bench {
            keep(BENCH_FILE, "ceilings and timed kernels", &bench_csv(bench))?;
            keep(SAMPLES_FILE, "every timed sample", &samples_csv(bench))?;
            let conditions = conditions_json(bench)?;
            keep(CONDITIONS_FILE, "other load on the machine", &conditions)?;
        }
        if let Some(why) = &part.broke {
            folder.note(&format!("{whose}: {why}"));
        }
        let parity = parity.as_ref().map_or(&[][..], |parity| &parity.rows);
        rows.push(GpuRows {
            backend: BackendKind::Cuda,
            part: part.clone(),
            parity,
            bench: bench.as_ref(),
        });
    }
    let GroupResults { fabric, sustained } = together;
    if let Some(fabric) = &fabric {
        folder.artefact(FABRIC_TABLE, "transfers between the GPUs", &fabric_csv(fabric))?;
    }
    Ok(Some(GpusReport { fabric, sustained, ..diagnose::gpus(&rows) }))
}

/// Adds the findings of the rules to the doctor's findings and to the run folder.
pub(super) fn judge(
    gpus: &GpusReport,
    doctor: &mut DoctorReport,
    folder: &mut RunFolder,
) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(gpus)? + "\n";
    folder.artefact(GPUS_FILE, "the GPUs side by side, and their memory tests", &text)?;
    let found = diagnose::run_on_gpus(gpus);
    if found.is_empty() {
        return Ok(());
    }
    doctor.findings.extend(found);
    doctor.findings.compact_sort_by(|a, b| (a.severity, &a.rule).cmp(&(b.severity, &b.rule)));
    let text = serde_json::to_string_pretty(doctor)? + "\n";
    folder.artefact(FACTS_FILE, "machine, environments and findings", &text)
}
