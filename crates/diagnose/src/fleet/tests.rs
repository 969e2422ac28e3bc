use super::*;
use crate::gpus::records::{checked, part, timed};
use facts::{BenchReport, Ceilings, Finding, ParityRow};

fn rank(number: u32) -> RankPart {
    RankPart { rank: number, host: format!("node-{number}"), ..RankPart::default() }
}

fn bare(number: u32) -> RankRows<'static> {
    RankRows { part: rank(number), devices: Vec::new(), stack: None, doctor: None }
}

fn titles(fleet: &FleetReport) -> Vec<&str> {
    fleet.findings.iter().map(|finding| finding.title.as_str()).collect()
}

fn file(what: &str, hash: Option<&str>) -> StackFile {
    StackFile {
        what: what.to_owned(),
        path: format!("/usr/lib/{what}.so"),
        version: Some("2.28.3".to_owned()),
        bytes: 10,
        sha256: hash.map(str::to_owned),
    }
}

#[test]
fn names_the_rank_with_a_different_file() {
    // The hash of NCCL on each rank (`-` not installed, `?` not read), the number of compared files, and the title.
    let check = |hashes: &[&str], compared: u32, expect: Option<&str>| {
        let stacks: Vec<StackReport> = hashes
            .iter()
            .map(|hash| {
                let nccl = match *hash {
                    "-" => None,
                    "?" => Some(file("nccl", None)),
                    hash => Some(file("nccl", Some(hash))),
                };
                StackReport {
                    schema: SCHEMA,
                    files: nccl.into_iter().chain([file("libc", Some("same"))]).collect(),
                }
            })
            .collect();
        let ranks: Vec<RankRows<'_>> = (0..)
            .zip(&stacks)
            .map(|(at, stack)| RankRows { stack: Some(stack), ..bare(at) })
            .collect();
        let got = fleet("Slurm", &ranks);
        assert_eq!(got.stack_compared, compared, "{hashes:?}");
        assert_eq!(titles(&got).first().copied(), expect, "{hashes:?}");
        assert_eq!(titles(&got).len(), usize::from(expect.is_some()), "{hashes:?}");
    };
    check(&["aa", "aa", "aa"], 2, None);
    check(&["aa", "aa", "bb", "aa"], 2, Some("rank 2 (node-2) has another nccl than most ranks"));
    check(&["aa", "-", "aa"], 2, Some("rank 1 (node-1) has another nccl than most ranks"));
    check(&["-", "bb", "-"], 2, Some("rank 1 (node-1) has another nccl than most ranks"));
    check(&["aa", "bb"], 2, Some("the ranks differ in nccl, of 2 files, and no majority agrees"));
    // A file that was not read is neither equal nor different.
    check(&["aa", "?", "aa"], 2, None);
    check(
        &["aa", "?", "bb"],
        2,
        Some("the ranks differ in nccl, of 2 files, and no majority agrees"),
    );
    check(&["aa", "?"], 1, None);
}

#[test]
fn names_the_gpu_of_the_odd_rank_by_bits_and_by_speed() {
    let bits: Vec<Vec<ParityRow>> =
        ["aa", "aa", "bb", "aa"].iter().map(|bits| vec![checked("a", Some(bits))]).collect();
    let usual = [("ssd", "a", 1.0), ("kda", "a", 2.0)];
    let slow = usual.map(|(op, case, millis)| (op, case, 1.5 * millis));
    let benches =
        [timed(&usual, 4000.0), timed(&slow, 4000.0), timed(&usual, 4000.0), timed(&usual, 4000.0)];
    let ranks: Vec<RankRows<'_>> = (0..)
        .zip(bits.iter().zip(&benches))
        .map(|(at, (parity, bench))| {
            let device =
                GpuRows { backend: BackendKind::Cuda, part: part(0), parity, bench: Some(bench) };
            RankRows { devices: vec![device], ..bare(at) }
        })
        .collect();
    let got = fleet("Slurm", &ranks);
    assert_eq!(
        titles(&got),
        [
            "GPU 0 of rank 2 (node-2) (NVIDIA H200) computes different bits than most of the 4 of its kind: 1 of 1 checks",
            "GPU 0 of rank 1 (node-1) (NVIDIA H200) is slower than its siblings: kernels take 50.0 % longer",
        ]
    );
    assert!(
        got.findings[0].fix.iter().any(|line| line.ends_with("--id=0")),
        "{:?}",
        got.findings[0].fix
    );
    assert!(got.ranks.iter().all(|part| (part.passed, part.timed) == (1, 2)), "{:?}", got.ranks);
}

#[test]
fn names_a_processor_that_is_much_slower() {
    let on_cpu = |millis: f64, copy: f64| {
        let mut bench = timed(&[("ssd", "a", millis)], copy);
        bench.rows[0].backend = BackendKind::Cpu;
        bench.ceilings = vec![Ceilings { backend: BackendKind::Cpu, ..bench.ceilings[0].clone() }];
        bench
    };
    let check = |last: BenchReport, expect: &[&str]| {
        let benches = [on_cpu(1.0, 40.0), on_cpu(1.0, 40.0), last];
        let ranks: Vec<RankRows<'_>> = (0..)
            .zip(&benches)
            .map(|(at, bench)| {
                let device = GpuRows {
                    backend: BackendKind::Cpu,
                    part: part(0),
                    parity: &[],
                    bench: Some(bench),
                };
                RankRows { devices: vec![device], ..bare(at) }
            })
            .collect();
        assert_eq!(titles(&fleet("Slurm", &ranks)), expect);
    };
    check(on_cpu(1.2, 34.0), &[]);
    check(
        on_cpu(2.0, 40.0),
        &[
            "the processor of rank 2 (node-2) (NVIDIA H200) is slower than its siblings: kernels take 100.0 % longer",
        ],
    );
    // A ceiling is one measurement, which another process on the node may have disturbed.
    check(on_cpu(1.0, 20.0), &[]);
}

#[test]
fn names_the_ended_rank_and_gathers_rank_findings() {
    let finding = |severity, title: &str| Finding {
        rule: "xid".to_owned(),
        severity,
        title: title.to_owned(),
        evidence: Vec::new(),
        cause: String::new(),
        fix: Vec::new(),
        remedy: Vec::new(),
        confidence: facts::Confidence::Certain,
        links: Vec::new(),
    };
    let doctor = |findings| DoctorReport::new(facts::Machine::unknown(), Vec::new(), findings);
    let one = doctor(vec![
        finding(Severity::Error, "Xid 79 of GPU 1"),
        finding(Severity::Info, "Xid 43"),
    ]);
    let two = doctor(vec![finding(Severity::Error, "Xid 48 of GPU 0")]);
    let mut ranks = vec![bare(0), bare(1), bare(2)];
    ranks[0].doctor = Some(&one);
    ranks[2].doctor = Some(&two);
    ranks[1].part.broke = Some("killed by signal 9".to_owned());
    let got = fleet("Slurm", &ranks);
    assert_eq!(titles(&got), ["the check of rank 1 (node-1) did not finish"]);
    assert_eq!(got.found.len(), 1, "{:?}", got.found);
    assert_eq!(got.found[0].titles.keys().copied().collect::<Vec<_>>(), [0, 2]);
}
