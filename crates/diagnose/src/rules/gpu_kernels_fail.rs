use super::Rule;
use facts::{Confidence, Finding, GpuPart, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-kernels-fail",
    title: "kernels fail on a GPU beside the first",
    about: "\
The tables of a check are those of its first GPU; each further one has a folder of its own with the same tables. A
kernel that fails its check against the float64 reference there is as wrong as on the first. One that fails on a single
GPU of several of a kind is that GPU's fault: the binary and the inputs are the same.

Look at the rows that failed in the GPU's own parity.csv, test its memory, and read the kernel's log.",
    links: &["https://docs.nvidia.com/deploy/rma-process/index.html"],
    remedy: |_| commands(0, "gpu-0"),
    check_gpus: Some(|gpus: &GpusReport| gpus.gpus.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

fn judge(gpu: &GpuPart) -> Option<Finding> {
    let GpuPart { index, name, folder, passed, failed, .. } = gpu;
    // Those of the first GPU are the run's own rows, which are counted where they stand.
    if folder.is_empty() || *failed == 0 {
        return None;
    }
    let all = passed + failed;
    let title = format!("{failed} of {all} checks fail on GPU {index} ({name})");
    let draft = RULE.finding(Severity::Error, Confidence::Certain, title);
    let draft =
        draft.evidence(format!("{failed} rows that failed"), format!("{folder}/parity.csv"));
    Some(
        draft
            .cause("What kernels compute there is not what the float64 reference says.")
            .fix(commands(*index, folder))
            .finish(),
    )
}

/// What to do about the GPU with this number.
fn commands(gpu: u32, folder: &str) -> Vec<String> {
    vec![
        format!("grep -E ',(FAIL|FALLBACK),' {folder}/parity.csv"),
        "sudo dmesg | grep -E 'NVRM|Xid'".to_owned(),
        format!("firstlight check --gpu {gpu}"),
    ]
}

#[cfg(test)]
mod tests {
    use crate::gpus::records::{checked, part};
    use crate::{GpuRows, gpus, run_on_gpus};
    use facts::{GpuPart, Status};

    #[test]
    fn failures_on_another_gpu_are_findings() {
        let failed = facts::ParityRow { status: Status::Fail, ..checked("b", None) };
        let rows = [checked("a", None), failed];
        let check = |folder: &str, expect: usize| {
            let part = GpuPart { folder: folder.to_owned(), ..part(1) };
            let found = run_on_gpus(&gpus(&[GpuRows {
                backend: facts::BackendKind::Cuda,
                part,
                parity: &rows,
                bench: None,
            }]));
            assert_eq!(found.len(), expect, "{found:?}");
            assert!(found.iter().all(|it| it.title.starts_with("1 of 2 checks fail on GPU 1")));
        };
        check("", 0);
        check("gpu-1", 1);
    }
}
