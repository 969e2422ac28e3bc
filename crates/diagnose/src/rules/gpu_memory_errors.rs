use super::{Context, Rule, Text};
use crate::gpu::nvidia;
use crate::host;
use facts::{Confidence, Finding, Gpu, GpuHealth, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-memory-errors",
    title: "a GPU's memory has uncorrectable errors, or a row waits to be remapped",
    about: "\
ECC memory corrects single-bit errors and detects double-bit errors. A program that reads a double-bit error is ended
(Xid 48, 94 or 95). The driver then retires the page (before Ampere) or marks the row to be remapped to a spare row
(since Ampere), which takes effect at the next reset of the GPU. Until then programs run without that memory; when a
bank has no spare row left, the GPU has to be replaced.

It shows as
  RuntimeError: CUDA error: uncorrectable ECC error encountered

Detected by asking NVML for error counts, pending pages and remapped rows.

Stop the programs on the GPU and reset it. Return a GPU whose row could not be remapped to its vendor (RMA).",
    links: &["https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"],
    texts: &[Text::new("uncorrectable ECC error encountered", "RuntimeError: CUDA error: uncorrectable ECC error encountered")],
    remedy: |seen| commands(seen.machine(), "0"),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands(machine: &Machine, gpu: &str) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    lines.push("nvidia-smi --query --display=ECC,ROW_REMAPPER,PAGE_RETIREMENT".into());
    lines.push("# with no program on it:".into());
    lines.push(format!("sudo nvidia-smi --gpu-reset --id={gpu}"));
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    nvidia(context.machine).filter_map(|gpu| judge(context.machine, gpu)).collect()
}

fn judge(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let GpuHealth { remapped, retirement_pending, ecc_volatile, .. } = &gpu.health;
    let failed = remapped.as_ref().filter(|rows| rows.value.failed);
    let pending = remapped.as_ref().filter(|rows| rows.value.pending);
    let page = retirement_pending.as_ref().filter(|pending| pending.value);
    let errors = ecc_volatile.as_ref().filter(|counts| counts.value.uncorrected > 0);
    let name = format!("GPU {} ({})", gpu.index, gpu.name.value);
    let (severity, title, cause) = if failed.is_some() {
        (
            Severity::Error,
            format!("{name} has a row of memory that could not be remapped"),
            "A row of its memory has errors and there is no spare row left for it: the GPU has to be replaced.",
        )
    } else if pending.is_some() || page.is_some() {
        (
            Severity::Warning,
            format!("{name} needs a reset to replace memory with errors"),
            "A row or page of its memory had errors; the next reset replaces it by a spare one.",
        )
    } else if errors.is_some() {
        (
            Severity::Warning,
            format!("{name} had uncorrectable memory errors"),
            "Programs that read this memory were ended. A reset sets the counts to 0; a count that rises again means a failing board.",
        )
    } else {
        return None;
    };
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    if let Some(rows) = failed.or(pending) {
        let rows_of = rows.value;
        let what = format!(
            "rows remapped: {} for corrected and {} for uncorrected errors; pending {}, failed {}",
            rows_of.corrected, rows_of.uncorrected, rows_of.pending, rows_of.failed
        );
        draft = draft.evidence(what, rows.source.clone());
    }
    if let Some(page) = page {
        draft = draft.evidence("a page waits to be retired", page.source.clone());
    }
    if let Some(counts) = errors {
        let what =
            format!("{} uncorrected errors since the driver was loaded", counts.value.uncorrected);
        draft = draft.evidence(what, counts.source.clone());
    }
    Some(draft.cause(cause).fix(commands(machine, &gpu.index.to_string())).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, EccCounts, Fact, RemappedRows, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let rows = |pending, failed| {
            let mut machine = machines::h200();
            let rows = RemappedRows { corrected: 1, uncorrected: 2, pending, failed };
            machine.gpus[0].health.remapped =
                Some(Fact::new(rows, "NVML nvmlDeviceGetFieldValues"));
            machine
        };
        let mut page = machines::h200();
        page.gpus[0].health.retirement_pending = Some(Fact::new(true, "NVML"));
        let counts = |corrected, uncorrected| {
            let mut machine = machines::h200();
            let counts = EccCounts { corrected, uncorrected };
            machine.gpus[0].health.ecc_volatile = Some(Fact::new(counts, "NVML"));
            machine
        };
        let case = |what, machine| Case::new(what, machine, Vec::new());
        vec![
            case("no spare row", rows(true, true)).finds(
                Error,
                Certain,
                &["could not be remapped"],
            ),
            case("a row that waits", rows(true, false)).finds(
                Warning,
                Certain,
                &["GPU 0 (NVIDIA H200) needs a reset", "2 for uncorrected", "--gpu-reset --id=0"],
            ),
            case("a page that waits", page).finds(Warning, Certain, &["a page waits"]),
            case("double-bit errors", counts(0, 3)).finds(
                Warning,
                Certain,
                &["3 uncorrected errors"],
            ),
            case("corrected single-bit errors", counts(12, 0)),
            case("remapped rows", rows(false, false)),
            case("no counts were read", machines::h200()),
        ]
    }
}
