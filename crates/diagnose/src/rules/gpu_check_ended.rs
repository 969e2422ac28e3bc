use super::Rule;
use facts::{Confidence, Finding, GpuPart, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-check-ended",
    title: "the check of one GPU did not finish",
    about: "\
`firstlight check` checks each GPU after the first in a separate process, so that a GPU that hangs, loses its context or
is used by another program affects only its own results. The evidence is the error of that process, or that it timed
out while the others had finished.

A GPU that hangs while its siblings work is often about to fall off the bus (Xid 79), or is still used by a crashed
program. Exclusive compute mode, another program that uses all its memory, and a driver that waits for the fabric
manager have the same symptom.

Read the kernel log and list the processes on the GPU, then check it alone.",
    links: &["https://docs.nvidia.com/deploy/xid-errors/index.html"],
    remedy: |_| commands(0),
    check_gpus: Some(|gpus: &GpusReport| gpus.gpus.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

fn judge(gpu: &GpuPart) -> Option<Finding> {
    let why = gpu.broke.as_ref()?;
    let GpuPart { index, name, .. } = gpu;
    let title = format!("the check of GPU {index} ({name}) did not finish");
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let draft = draft.evidence(why, format!("the process of GPU {index}"));
    Some(
        draft
            .cause("Its process ended, or stopped answering, before the check was complete.")
            .fix(commands(*index))
            .done(),
    )
}

/// Commands to diagnose the GPU with this index.
fn commands(gpu: u32) -> Vec<String> {
    vec![
        "firstlight ps".to_owned(),
        "sudo dmesg | grep -E 'NVRM|Xid'".to_owned(),
        format!("firstlight check --gpu {gpu}"),
    ]
}

#[cfg(test)]
mod tests {
    use crate::gpus::records::part;
    use crate::{GpuRows, gpus, run_on_gpus};
    use facts::GpuPart;

    #[test]
    fn reports_an_ended_process_with_its_error() {
        let broke = Some("killed by signal 6".to_owned());
        let parts = [part(0), GpuPart { broke, ..part(1) }];
        let rows = parts.map(|part| GpuRows {
            backend: facts::BackendKind::Cuda,
            part,
            parity: &[],
            bench: None,
        });
        let found = run_on_gpus(&gpus(&rows));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].title.contains("GPU 1 (NVIDIA H200)"), "{found:?}");
        assert_eq!(found[0].evidence[0].what, "killed by signal 6");
    }
}
