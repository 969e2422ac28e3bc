use super::Rule;
use facts::{Confidence, Finding, GpuPart, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-check-ended",
    title: "the check of one GPU did not come to its end",
    about: "\
`firstlight check` runs each GPU beside the first in a process of its own, so that one that hangs, loses its context or
is taken by another program spoils nothing but its own part. Why it ended is in the words of that process, or that it
did not answer while the others had long ended.

A GPU that hangs where its siblings work is often on its way to fall off the bus (Xid 79), or held by a program that
died. Its exclusive compute mode, another program that has all its memory, and a driver that waits for the fabric
manager show in the same way.

Look at the kernel's log and at who uses the GPU, then check it alone.",
    links: &["https://docs.nvidia.com/deploy/xid-errors/index.html"],
    remedy: |_| commands(0),
    check_gpus: Some(|gpus: &GpusReport| gpus.gpus.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

fn judge(gpu: &GpuPart) -> Option<Finding> {
    let why = gpu.broke.as_ref()?;
    let GpuPart { index, name, .. } = gpu;
    let title = format!("the check of GPU {index} ({name}) did not come to its end");
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let draft = draft.evidence(why, format!("the process of GPU {index}"));
    Some(
        draft
            .cause("Its process ended, or did not answer, before its part was done.")
            .fix(commands(*index))
            .finish(),
    )
}

/// What to do about the GPU with this number.
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
    fn a_process_that_ended_is_named_with_its_words() {
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
