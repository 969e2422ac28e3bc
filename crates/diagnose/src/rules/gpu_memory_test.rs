use super::Rule;
use facts::{Confidence, Finding, GpuPart, GpusReport, Severity};

pub(super) const RULE: Rule = Rule {
    id: "gpu-memory-test",
    title: "a GPU's memory does not retain written data",
    about: "\
`firstlight check` writes patterns to all free memory of a GPU and reads them back: each word's address and its inverse,
which detect aliased addresses, and 0x00, 0xff, 0xaa and 0x55, which detect stuck and coupled bits. No program can rely
on memory that fails this test. ECC corrects single-bit errors and ends a program at double-bit errors; the errors
reported here passed ECC and come from memory, caches or the path between them.

The address is a virtual address of the process; only the driver can map it to a memory chip.

Stop the programs on the GPU, reset it, and run a longer test. If words are wrong again, return it to its vendor (RMA).",
    links: &["https://docs.nvidia.com/deploy/rma-process/index.html"],
    remedy: |_| commands(0),
    check_gpus: Some(|gpus: &GpusReport| gpus.gpus.iter().filter_map(judge).collect()),
    ..Rule::BLANK
};

/// Maximum number of words in a finding.
const LISTED: usize = 4;
/// The file of the recorded test.
const SOURCE: &str = "gpus.json";

fn judge(gpu: &GpuPart) -> Option<Finding> {
    let test = gpu.memory.as_ref()?;
    let GpuPart { index, name, .. } = gpu;
    if test.errors > 0 {
        let title = format!(
            "memory of GPU {index} ({name}) does not hold what is written: {} words were wrong",
            test.errors
        );
        let mut draft = RULE.finding(Severity::Error, Confidence::Certain, title);
        for word in test.examples.iter().take(LISTED) {
            let bits: Vec<String> = word.bits.iter().map(u32::to_string).collect();
            let (bits, pattern) = (bits.join(", "), &word.pattern);
            let what = format!(
                "{pattern} at {}: {} was written, {} read, bits {bits} differ",
                word.address, word.written, word.read
            );
            draft = draft.evidence(what, SOURCE);
        }
        let cause = "The memory, or the path to it, changes bits, and ECC did not detect it.";
        return Some(draft.cause(cause).fix(commands(*index)).finish());
    }
    let why = test.broke.as_ref()?;
    let title = format!("the memory test of GPU {index} ({name}) ended early");
    let draft = RULE.finding(Severity::Warning, Confidence::Possible, title).evidence(why, SOURCE);
    let cause = "Another process took the memory, or the GPU failed during the test.";
    Some(draft.cause(cause).fix(commands(*index)).finish())
}

/// Commands to diagnose the GPU with this index.
fn commands(gpu: u32) -> Vec<String> {
    vec![
        format!("nvidia-smi --query --display=ECC,ROW_REMAPPER,PAGE_RETIREMENT --id={gpu}"),
        "# with no program on it:".to_owned(),
        format!("sudo nvidia-smi --gpu-reset --id={gpu}"),
        format!("firstlight check --gpu {gpu} --memory-budget 300"),
    ]
}

#[cfg(test)]
mod tests {
    use crate::gpus::records::part;
    use crate::{GpuRows, gpus, run_on_gpus};
    use facts::{GpuPart, MemoryError, MemoryTest, Severity};

    #[test]
    fn reports_wrong_words_with_address_and_bits() {
        let check = |test: MemoryTest, expect: Option<(Severity, &str)>| {
            let part = GpuPart { memory: Some(test), ..part(3) };
            let found = run_on_gpus(&gpus(&[GpuRows {
                backend: facts::BackendKind::Cuda,
                part,
                parity: &[],
                bench: None,
            }]));
            assert_eq!(found.len(), usize::from(expect.is_some()), "{found:?}");
            for (finding, (severity, words)) in found.iter().zip(expect) {
                assert_eq!(finding.severity, severity);
                assert!(format!("{finding:?}").contains(words), "no {words} in {finding:?}");
            }
        };
        let wrong = MemoryError {
            pattern: "0xaa".into(),
            address: "0x7f0000001008".into(),
            written: "0xaaaaaaaaaaaaaaaa".into(),
            read: "0x2aaaaaaaaaaaaaaa".into(),
            bits: vec![63],
        };
        check(MemoryTest::default(), None);
        let test = MemoryTest { errors: 1, examples: vec![wrong], ..MemoryTest::default() };
        let words = "0xaa at 0x7f0000001008: 0xaaaaaaaaaaaaaaaa was written, 0x2aaaaaaaaaaaaaaa read, bits 63 differ";
        check(test, Some((Severity::Error, words)));
        let test = MemoryTest { broke: Some("no memory".into()), ..MemoryTest::default() };
        check(test, Some((Severity::Warning, "GPU 3 (NVIDIA H200) ended early")));
    }
}
