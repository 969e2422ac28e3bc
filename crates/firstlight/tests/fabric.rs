//! `firstlight bench fabric` with stand-ins for the driver, NVML and NCCL: verified transfers have a rate, others are named.
#![cfg(target_os = "linux")] // The stand-ins are found by LD_LIBRARY_PATH.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use serde_json::Value;
use std::path::Path;
use support::fake_driver::{nccl, with_gpus};
use tempfile::tempdir;

const TWO: [(&str, &str); 4] = [
    ("FAKE_CUDA_GPUS", "2"),
    ("FAKE_NVML_COUNT", "2"),
    ("FAKE_NVML_GPU", "9.0 stand-in"),
    ("FAKE_CUDA_FILLS", "1"),
];

/// The JSON report on two stand-in GPUs with the settings `behaviour`, and with the stand-in NCCL at `library`, if given.
fn fabric_report(
    folder: &Path,
    library: Option<&Path>,
    behaviour: &[(&str, &str)],
    more: &[&str],
) -> Value {
    let small = if more.contains(&"--largest") { &[][..] } else { &["--largest", "1"] };
    let arguments = [&["bench", "fabric", "--json"], small, more].concat();
    let mut command = with_gpus(folder, &arguments, &TWO);
    let library = library.map(|library| library.display().to_string());
    command.env("FIRSTLIGHT_NCCL", library.as_deref().unwrap_or("/nowhere/libnccl.so.2"));
    command.env("FAKE_NCCL_COMPUTES", "1").env("FAKE_NCCL_SETTING", "1");
    let output = command.envs(behaviour.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The title and the evidence of each finding of a rule.
fn found(report: &Value, rule: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["rule"] == rule).map(Value::to_string).collect()
}

fn rows<'a>(report: &'a Value, of: &str) -> &'a [Value] {
    report["fabric"][of].as_array().unwrap()
}

#[test]
fn only_verified_transfers_have_a_rate() {
    let folder = tempdir().unwrap();
    let library = nccl(folder.path());
    let report = fabric_report(folder.path(), Some(&library), &[], &["-o", "out"]);
    let copies = rows(&report, "copies");
    assert_eq!(copies.len(), 2);
    for copy in copies {
        assert_eq!((&copy["wrong"], &copy["direct"]), (&0.into(), &true.into()), "{copy}");
        for rate in ["gbps", "both_gbps", "micros"] {
            assert!(copy[rate].as_f64().unwrap() > 0.0, "{copy}");
        }
    }
    // Four collectives of 1 MiB, 64 KiB and 4 KiB: every rank has the expected sums and copies.
    let collectives = rows(&report, "collectives");
    assert_eq!(collectives.len(), 4 * 3);
    for sum in collectives {
        assert_eq!(sum["wrong"], 0, "{sum}");
        let (bus, algorithm) =
            (sum["bus_gbps"].as_f64().unwrap(), sum["algorithm_gbps"].as_f64().unwrap());
        let factor = if sum["kind"] == "all-reduce" { 1.0 } else { 0.5 };
        assert!((bus / algorithm - factor).abs() < 1e-9, "{sum}");
    }
    let [library, kernel] = rows(&report, "recorded") else { panic!("{report}") };
    assert_eq!((&library["by"], &library["wrong"]), (&"NCCL".into(), &0.into()));
    assert!(library["micros"].as_f64().unwrap() > 0.0);
    // This stand-in launches the kernel but computes nothing.
    assert_eq!((&kernel["wrong"], &kernel["micros"]), (&8192.into(), &Value::Null), "{kernel}");
    let wrong = found(&report, "fabric-wrong");
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("in sums by decoder.join_peers"), "{wrong:?}");
    let table = std::fs::read_to_string(folder.path().join("out/fabric.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 + 12 + 2, "{table}");
}

#[test]
fn wrong_or_slow_transfers_are_named() {
    let folder = tempdir().unwrap();
    let library = nccl(folder.path());
    let wrong = [("FAKE_CUDA_WRONG_COPIES", "1"), ("FAKE_NCCL_WRONG", "0")];
    let report = fabric_report(folder.path(), Some(&library), &wrong, &[]);
    let [there, back] = rows(&report, "copies") else { panic!("{report}") };
    assert!(there["wrong"].as_u64().unwrap() > 0 && there["gbps"].is_null(), "{there}");
    assert!(back["wrong"] == 0 && back["gbps"].is_number(), "{back}");
    for sum in rows(&report, "collectives") {
        assert_eq!((&sum["wrong"], &sum["bus_gbps"]), (&1.into(), &Value::Null), "{sum}");
    }
    let titles = found(&report, "fabric-wrong").concat();
    assert!(titles.contains("from GPU 0 to GPU 1 and"), "{titles}");
    assert!(titles.contains("in NCCL's reduce-scatter: 1 values"), "{titles}");

    let slow =
        fabric_report(folder.path(), None, &[("FAKE_CUDA_SLOW_COPIES", "1")], &["--largest", "16"]);
    let titles = found(&slow, "fabric-slow").concat();
    assert!(titles.contains("copies from GPU 0 to GPU 1 are slow: 50 %"), "{titles}");
}

#[test]
fn skipped_measurements_have_a_reason() {
    let folder = tempdir().unwrap();
    let left = |report: &Value| report["fabric"]["left_out"].to_string();
    let apart = fabric_report(folder.path(), None, &[("FAKE_CUDA_NO_PEERS", "1")], &[]);
    let said = left(&apart);
    for words in [
        "direct copies between GPU 0 and GPU 1",
        "copies go through the host",
        "NCCL at /nowhere/libnccl.so.2 does not load",
        "it writes to the others' memory, which not all of them reach",
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    assert!(rows(&apart, "copies")[0]["gbps"].is_number(), "{apart}");
    // NVML reports four links between them.
    let titles = found(&apart, "peers-unreachable").concat();
    assert!(
        titles.contains("GPU 0 and GPU 1 do not reach") && titles.contains("4 NVLinks"),
        "{titles}"
    );

    let library = nccl(folder.path());
    let refused = fabric_report(folder.path(), Some(&library), &[("FAKE_NCCL_REFUSES", "1")], &[]);
    let titles = found(&refused, "fabric-wrong").concat();
    assert!(titles.contains("did not finish") && titles.contains("ncclCommInitRank"), "{titles}");
    assert!(titles.contains("2 copies and 0 collectives were measured before"), "{titles}");
    let ended = fabric_report(folder.path(), None, &[("FAKE_CUDA_ENDS_COPIES", "1")], &[]);
    let titles = found(&ended, "fabric-wrong").concat();
    assert!(titles.contains("its process ended, signal: 6"), "{titles}");
}

#[test]
fn wrong_product_under_load_has_no_rate() {
    let folder = tempdir().unwrap();
    let report = fabric_report(folder.path(), None, &[], &["--sustain", "1"]);
    // The stand-in computes nothing, so no GPU passes; the reason is reported for each.
    let gpus = report["sustained"]["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    for gpu in gpus {
        assert!(gpu["wrong"].is_string() && gpu["rates"] == Value::Array(Vec::new()), "{gpu}");
    }
    assert_eq!(found(&report, "gpu-under-load").len(), 2);
    // The process that samples NVML under load reports times and throttle reasons.
    let mut command = with_gpus(folder.path(), &["ask-nvml", "--every", "20"], &TWO);
    command.env("FAKE_NVML_FAULTS", "1").stdout(std::process::Stdio::piped());
    let mut process = command.spawn().unwrap();
    let output = process.stdout.take().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(output));
    let looks: Vec<Value> =
        lines.take(3).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    process.kill().unwrap();
    process.wait().unwrap();
    let seconds = |look: &Value| look[1][1]["seconds"].as_f64().unwrap();
    assert!(seconds(&looks[2]) >= 0.039 && seconds(&looks[2]) > seconds(&looks[0]), "{looks:?}");
    let bad = &looks[0][1];
    assert_eq!((&bad[0], &bad[1]["watts"]), (&1.into(), &76.123.into()));
    let held = bad[1]["held_down_by"].to_string();
    assert!(held.contains("HW_THERMAL_SLOWDOWN"), "{held}");
}

/// The message of a refused command: one line and a hint.
fn refused(arguments: &[&str], behaviour: &[(&str, &str)]) -> String {
    let folder = tempdir().unwrap();
    let behaviour = [&TWO[..], behaviour].concat();
    let output = with_gpus(folder.path(), arguments, &behaviour).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 2), "{said}");
    said
}

#[test]
fn refuses_single_partitioned_or_busy_gpu() {
    let one = ("CUDA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000001");
    let part = ("CUDA_VISIBLE_DEVICES", "MIG-00000000-0000-0000-0000-000000000001");
    let mig = ("FAKE_CUDA_MIG", "1");
    let said = refused(&["bench", "fabric"], &[one]);
    assert!(said.contains("needs two GPUs: this process sees GPU 1 (stand-in) alone"), "{said}");
    let said = refused(&["bench", "fabric"], &[part, mig]);
    assert!(said.contains("(stand-in MIG 1g.10gb) alone"), "{said}");
    assert!(said.contains("a process sees at most one MIG partition"), "{said}");
    let said = refused(&["check", "--gpu", "1"], &[part, mig]);
    assert!(said.contains("CUDA_VISIBLE_DEVICES selects a MIG partition (MIG-0000"), "{said}");

    let folder = tempdir().unwrap();
    let report = fabric_report(folder.path(), None, &[("FAKE_CUDA_TAKEN", "1")], &[]);
    let titles = found(&report, "fabric-wrong").concat();
    let words = "the GPU (stand-in) is taken: its compute mode lets one program use it at a time";
    assert!(titles.contains(words), "{titles}");
    let arguments = ["verify", "rmsnorm", "--backend", "cuda"];
    let taken = [("FAKE_CUDA_TAKEN", "0")];
    let output =
        with_gpus(folder.path(), &arguments, &[&TWO[..], &taken].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(words), "{said}");
}
