//! Comparison of the GPUs of a check, in text shared by terminal and documents.

use crate::format;
use facts::CompactSort;
use facts::{GpuKind, GpuPart, GpusReport, MemoryTest};

/// A row of the comparison: its name, and a value for each GPU.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
}

/// The results of each GPU: checks, times relative to those of its siblings, and the memory test.
pub(crate) fn lines(report: &GpusReport) -> Vec<Line> {
    let line = |name: &str, value: &dyn Fn(&GpuPart) -> String| Line {
        name: name.to_owned(),
        values: report.gpus.iter().map(value).collect(),
    };
    let mut lines = vec![
        line("checks passed", &|gpu| gpu.passed.to_string()),
        line("checks failed", &|gpu| gpu.failed.to_string()),
        line("kernels timed", &|gpu| gpu.timed.to_string()),
    ];
    let speed = |gpu: &GpuPart| {
        let all = report.kinds.iter().flat_map(|kind| &kind.speed);
        all.into_iter().find(|speed| speed.gpu == gpu.index)
    };
    let ratio = |ratio: Option<f64>| ratio.map_or(format::ABSENT.to_owned(), of_siblings);
    if !report.kinds.is_empty() {
        lines
            .push(line("time of the siblings'", &|gpu| ratio(speed(gpu).and_then(|it| it.median))));
        for ceiling in facts::CeilingKind::ALL {
            let of = |gpu: &GpuPart| {
                let mut all = speed(gpu)?.ceilings.iter();
                Some(1.0 / all.find(|it| it.ceiling == ceiling)?.ratio)
            };
            if report.gpus.iter().any(|gpu| of(gpu).is_some()) {
                let name = format!("{} of the siblings'", ceiling.words());
                lines.push(line(&name, &|gpu| ratio(of(gpu))));
            }
        }
    }
    let of_memory = |words: &dyn Fn(&MemoryTest) -> String| {
        let value = |gpu: &GpuPart| gpu.memory.as_ref().map_or(format::ABSENT.to_owned(), words);
        report.gpus.iter().map(value).collect()
    };
    if report.gpus.iter().any(|gpu| gpu.memory.is_some()) {
        let mut push = |name: &str, values| lines.push(Line { name: name.to_owned(), values });
        push("memory tested", of_memory(&|test| format::file_size(test.bytes)));
        push(
            "patterns, seconds",
            of_memory(&|test| {
                let all = test.patterns.len() + test.left_out.len();
                let seconds = format::significant(test.seconds, 2);
                format!("{} of {all}, {seconds}", test.patterns.len())
            }),
        );
        push("words that were wrong", of_memory(&|test| test.errors.to_string()));
    }
    lines
}

/// A ratio to the siblings' value: `102.3 %`.
pub(crate) fn of_siblings(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

/// One sentence per kind of GPU on the comparison of its bits.
pub(crate) fn votes(report: &GpusReport) -> Vec<String> {
    report.kinds.iter().map(vote).collect()
}

fn vote(kind: &GpuKind) -> String {
    let GpuKind { name, gpus, compared, varying, differing, .. } = kind;
    let checks = format::count(*compared as usize, "check");
    let result = match differing.len() {
        _ if *compared == 0 => "no check could be compared".to_owned(),
        0 => format!("the outputs of {checks} were compared bit by bit and are the same"),
        some => {
            let mut odd: Vec<u32> = differing.iter().flat_map(|it| &it.odd).copied().collect();
            odd.compact_sort();
            odd.dedup();
            let who = if odd.is_empty() {
                "no majority says which is wrong".to_owned()
            } else {
                let odd: Vec<String> = odd.iter().map(|gpu| format!("GPU {gpu}")).collect();
                format!("most disagree with {}", odd.join(", "))
            };
            format!("the outputs of {some} of {checks} differ: {who}")
        }
    };
    let left = if varying.is_empty() {
        String::new()
    } else {
        format!("; not compared, as a second run has other bits: {}", varying.join(", "))
    };
    format!("{} × {name}: {result}{left}.", gpus.len())
}

/// Records for tests.
#[cfg(test)]
pub(crate) mod records {
    use super::*;
    use facts::{BitDifference, CeilingKind, CeilingRatio, GpuSpeed, SCHEMA};
    use std::collections::BTreeMap;

    /// A report of `count` GPUs, of which GPU 1 has different bits, is slow and has a memory error.
    pub(crate) fn checked(count: u32) -> GpusReport {
        let part = |index| GpuPart {
            index,
            name: "NVIDIA H200".into(),
            folder: if index == 0 { String::new() } else { format!("gpu-{index}") },
            passed: 900,
            timed: 150,
            memory: Some(MemoryTest {
                bytes: 140 << 30,
                patterns: vec!["0x00".into()],
                errors: u64::from(index == 1),
                seconds: 1.25,
                ..MemoryTest::default()
            }),
            ..GpuPart::default()
        };
        let speed = |gpu| {
            let ratio = if gpu == 1 { 1.25 } else { 1.0 };
            GpuSpeed {
                gpu,
                rows: 150,
                median: Some(ratio),
                by_op: BTreeMap::from([("kda".to_owned(), ratio)]),
                slowest: Vec::new(),
                ceilings: vec![CeilingRatio {
                    ceiling: CeilingKind::Copy,
                    rate: 4e3,
                    usual: 4e3 * ratio,
                    ratio,
                }],
            }
        };
        let odd = if count > 2 { vec![1] } else { Vec::new() };
        let bits = (0..count).map(|gpu| (gpu, if gpu == 1 { "bb" } else { "aa" }.repeat(32)));
        let differ = BitDifference { check: "kda a bf16 chunk".into(), odd, bits: bits.collect() };
        let kind = GpuKind {
            name: "NVIDIA H200".into(),
            gpus: (0..count).collect(),
            compared: 900,
            varying: Vec::new(),
            differing: vec![differ],
            speed: (0..count).map(speed).collect(),
        };
        GpusReport {
            schema: SCHEMA,
            gpus: (0..count).map(part).collect(),
            kinds: vec![kind],
            fabric: None,
            sustained: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_name_the_odd_gpu_and_omitted_checks() {
        let check = |count: u32, change: &dyn Fn(&mut GpuKind), expect: &str| {
            let mut report = records::checked(count);
            change(&mut report.kinds[0]);
            assert_eq!(votes(&report), [expect]);
        };
        let head = "NVIDIA H200: the outputs of";
        let same =
            "8 × NVIDIA H200: the outputs of 900 checks were compared bit by bit and are the same.";
        check(8, &|kind| kind.differing.clear(), same);
        check(3, &|_| (), &format!("3 × {head} 1 of 900 checks differ: most disagree with GPU 1."));
        let none = "no majority says which is wrong";
        check(2, &|_| (), &format!("2 × {head} 1 of 900 checks differ: {none}."));
        let varying = |kind: &mut GpuKind| {
            kind.differing.clear();
            kind.varying = vec!["moe scatter".into()];
        };
        let left = "; not compared, as a second run has other bits: moe scatter.";
        check(8, &varying, &same.replace('.', left));
        check(2, &|kind| kind.compared = 0, "2 × NVIDIA H200: no check could be compared.");
    }
}
