//! Reads, compares and reports the run folders of all ranks.

use super::leader::RankState;
use crate::Outcome;
use crate::commands::check::stack::STACK_FILE;
use crate::run_files::{RunFiles, read_json};
use crate::run_folder::{INCOMPLETE, RunFolder, write_documents};
use diagnose::{GpuRows, RankRows};
use facts::{BackendKind, FleetReport, GpuPart, RankPart, Severity, SkippedStage, StackReport};
use report::{FLEET_FILE, Run, Verdict, fleet_report};
use std::path::Path;

/// The result of the comparison.
pub(super) struct FleetComparison {
    pub(super) report: FleetReport,
    pub(super) outcome: Outcome,
}

/// The content of one rank's folder, and of those of its further GPUs.
struct RankFiles {
    files: RunFiles,
    gpus: Vec<(GpuPart, Option<RunFiles>)>,
    stack: Option<StackReport>,
}

/// Reads every rank's folder and compares them. A folder that cannot be read counts as an unfinished rank; `because` is
/// why unfinished ranks had to stop.
pub(super) fn of<'a>(
    launcher: &str,
    out: &Path,
    known: impl Iterator<Item = &'a mut RankState>,
    because: Option<&str>,
) -> FleetComparison {
    let mut unclear = false;
    let mut bad = false;
    let read: Vec<_> = known
        .map(|known| {
            let name = format!("rank-{}", known.part.rank);
            let folder = out.join(&name);
            let because = because.filter(|_| !known.done && known.part.broke.is_none());
            let read = folder.is_dir().then(|| read(&folder)).transpose();
            let part = &mut known.part;
            if let Some(why) = because {
                // Rank 0 stopped it, so its missing results are not an error of this rank.
                let (what, why) = ("the rest of its check".to_owned(), why.to_owned());
                part.not_run.push(SkippedStage { what, why });
            }
            let read = match read {
                Ok(Some(read)) => {
                    part.folder = name;
                    fill(part, &read);
                    bad |= known.code == Some(1);
                    unclear |= known.code == Some(3);
                    Some(read)
                }
                Ok(None) if because.is_some() => None,
                Ok(None) => {
                    part.broke.get_or_insert_with(|| "it wrote no run folder".to_owned());
                    None
                }
                Err(error) => {
                    let why = format!("its run folder cannot be used: {error:#}");
                    part.broke.get_or_insert(why);
                    None
                }
            };
            (part.clone(), read)
        })
        .collect();
    let rows: Vec<RankRows<'_>> = read
        .iter()
        .map(|(part, read)| RankRows {
            part: part.clone(),
            devices: read.iter().flat_map(devices).collect(),
            stack: read.as_ref().and_then(|read| read.stack.as_ref()),
            doctor: read.as_ref().and_then(|read| read.files.doctor.as_ref()),
        })
        .collect();
    let report = diagnose::fleet(launcher, &rows);
    bad |= report.findings.iter().any(|finding| finding.severity != Severity::Info);
    unclear |= report.ranks.iter().any(|rank| rank.unread > 0);
    let outcome = match (bad, unclear) {
        (true, _) => Outcome::Bad,
        (false, true) => Outcome::Unclear,
        (false, false) => Outcome::Good,
    };
    FleetComparison { report, outcome }
}

fn read(folder: &Path) -> anyhow::Result<RankFiles> {
    let files = RunFiles::read(folder)?;
    let parts = files.gpus.iter().flat_map(|gpus| gpus.gpus.iter().cloned());
    let gpus = parts
        .map(|part| {
            let below = folder.join(&part.folder);
            // A GPU whose process failed has none.
            let apart = !part.folder.is_empty() && below.is_dir();
            let files = if apart { Some(RunFiles::read(&below)?) } else { None };
            Ok((part, files))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(RankFiles { files, gpus, stack: read_json(folder, STACK_FILE)? })
}

fn fill(part: &mut RankPart, read: &RankFiles) {
    let (Some(manifest), Some(doctor)) = (&read.files.manifest, &read.files.doctor) else { return };
    part.host.clone_from(&manifest.host);
    part.not_run.extend(manifest.not_run.iter().cloned());
    let files = read.stack.iter().flat_map(|stack| &stack.files);
    part.unread = files.filter(|file| file.sha256.is_none()).count() as u32;
    let run = Run {
        manifest,
        doctor,
        parity: read.files.parity.as_ref(),
        bench: read.files.bench.as_ref(),
        model_speed: None,
        gpus: read.files.gpus.as_ref(),
    };
    part.verdict = Verdict::of(&run).as_str().to_owned();
}

/// The GPUs and the processor of a rank.
fn devices(read: &RankFiles) -> Vec<GpuRows<'_>> {
    let mut devices = Vec::new();
    for (part, files) in &read.gpus {
        // The rows of the first GPU are in the run folder itself.
        let own = part.folder.is_empty().then_some(&read.files);
        let files = files.as_ref().or(own);
        devices.push(GpuRows {
            backend: BackendKind::Cuda,
            part: part.clone(),
            parity: files
                .and_then(|files| files.parity.as_ref())
                .map_or(&[], |parity| &parity.rows),
            bench: files.and_then(|files| files.bench.as_ref()),
        });
    }
    let cpu = read.files.doctor.as_ref().map(|doctor| &doctor.machine.cpu);
    let model = cpu.and_then(|cpu| cpu.model.as_ref()).map_or("a processor", |model| &model.value);
    let cores = cpu.and_then(|cpu| cpu.usable_cores.as_ref()).map_or(0, |cores| cores.value);
    devices.push(GpuRows {
        backend: BackendKind::Cpu,
        part: GpuPart { name: format!("{model}, {cores} cores"), ..GpuPart::default() },
        parity: read.files.parity.as_ref().map_or(&[], |parity| &parity.rows),
        bench: read.files.bench.as_ref(),
    });
    devices
}

/// Writes the comparison and its report. A fleet that lost a rank stays marked as incomplete.
pub(super) fn write(
    report: &FleetReport,
    folder: &mut RunFolder,
    whole: bool,
) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    folder.artefact(FLEET_FILE, "the checks of all ranks side by side", &text)?;
    if whole {
        return folder.finish(|manifest| fleet_report(report, manifest));
    }
    folder.save_log()?;
    write_documents(folder.path(), "report", &fleet_report(report, &folder.manifest))?;
    debug_assert!(folder.path().join(INCOMPLETE).exists());
    Ok(())
}
