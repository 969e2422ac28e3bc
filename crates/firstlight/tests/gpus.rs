//! `firstlight check` on several GPUs with stand-ins for the driver and NVML: faults injected into one GPU are named. The tests check one
//! op; `FIRSTLIGHT_GPUS_OPS=all cargo test --test gpus` checks all ops on three GPUs, which takes two CPU minutes.
#![cfg(target_os = "linux")] // The stand-ins are found by LD_LIBRARY_PATH.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use support::expect;
use support::fake_driver::with_gpus;
use tempfile::tempdir;

/// The one-line error of a refused command, with its hint.
fn refused(arguments: &[&str], behaviour: &[(&str, &str)]) -> String {
    let folder = tempdir().unwrap();
    let output = with_gpus(folder.path(), arguments, behaviour).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.lines().count()), (Some(2), 2), "{err}");
    err
}

#[test]
fn rejects_absent_or_hidden_gpu() {
    let two = ("FAKE_CUDA_GPUS", "2");
    let err = refused(&["check", "--gpu", "5"], &[two]);
    assert!(err.starts_with("error: there is no GPU 5 here, NVML lists 0, 1\nhint: "), "{err}");
    // The same for every command that runs kernels.
    for line in [
        "run m -p x",
        "chat m",
        "serve m",
        "verify rmsnorm",
        "bench rmsnorm",
        "bench model m",
        "model logits m --ids 1 -o x",
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--gpu", "5"]).collect();
        let err = refused(&words, &[two]);
        assert!(
            err.starts_with("error: there is no GPU 5 here, NVML lists 0, 1\n"),
            "{line}: {err}"
        );
    }
    let uuid = "GPU-00000000-0000-0000-0000-000000000001";
    let err = refused(&["check", "--gpu", "1,0"], &[two, ("CUDA_VISIBLE_DEVICES", uuid)]);
    let words = "error: GPU 0 is hidden from this process by CUDA_VISIBLE_DEVICES\nhint: unset";
    assert!(err.starts_with(words), "{err}");
}

/// Every process of a check queries all GPUs, so this query skips links, memory errors and pairs.
#[test]
fn moment_query_reads_only_clocks_and_processes() {
    let folder = tempdir().unwrap();
    let driver = [("FAKE_NVML_COUNT", "3"), ("FAKE_NVML_CRASH", "nvmlDeviceGetNvLinkState")];
    let moment = with_gpus(folder.path(), &["ask-nvml", "--moment"], &driver).output().unwrap();
    let told = String::from_utf8(moment.stdout).unwrap();
    assert!(moment.status.success() && told.ends_with("complete = true\n"), "{told}");
    assert_eq!(told.matches("GetClockInfo").count(), 3, "{told}");
    assert_eq!(told.matches("GetComputeRunningProcesses").count(), 3, "{told}");

    let bench = ["bench", "conv1d", "--quick", "--backend", "cuda", "--json"];
    let output = with_gpus(folder.path(), &bench, &driver).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let before = &report["conditions"][0]["before"]["gpus"];
    assert_eq!(before.as_array().unwrap().len(), 3, "{report}");
}

#[test]
fn injected_gpu_faults_are_named() {
    let folder = tempdir().unwrap();
    // The second selected GPU computes wrong results, is slow and drops a bit; the process of the third one crashes.
    let free = ((256_u64 + 8) << 20).to_string();
    let faults = [
        ("FAKE_CUDA_GPUS", "3"),
        ("FAKE_NVML_COUNT", "3"),
        ("FAKE_NVML_GPU", "9.0 stand-in"),
        ("FAKE_CUDA_FREE", &free),
        ("FAKE_CUDA_FILLS", "1"),
        ("FAKE_CUDA_WRONG", "0"),
        ("FAKE_CUDA_SLOW", "0"),
        ("FAKE_CUDA_BAD_MEMORY", "0"),
        ("FAKE_CUDA_ENDS", "2"),
    ];
    let mut arguments =
        vec!["check", "--quick", "--json", "--gpu", "1,0,2", "--fabric-budget", "1", "-o", "run"];
    if std::env::var_os("FIRSTLIGHT_GPUS_OPS").is_none_or(|ops| ops != "all") {
        arguments.extend(["--op", "conv1d"]);
    }
    let output = with_gpus(folder.path(), &arguments, &faults).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let gpus = summary["gpus"]["gpus"].as_array().unwrap();
    let indices: Vec<_> = gpus.iter().map(|gpu| gpu["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [1, 0, 2]);
    // The stand-in computes nothing, so nothing passes on the first two GPUs.
    let failed = |at: usize| gpus[at]["failed"].as_u64().unwrap();
    assert!(failed(0) > 50 && failed(0) == failed(1), "{gpus:?}");
    assert_eq!(gpus[0]["memory"]["errors"], 0);
    assert_eq!(gpus[0]["memory"]["patterns"].as_array().unwrap().len(), 6);
    // The highest bit of one word, in the patterns that set it.
    let memory = &gpus[1]["memory"];
    assert_eq!(memory["errors"], 3);
    assert_eq!(memory["examples"][0]["bits"], serde_json::json!([63]));

    let findings = summary["findings"].as_array().unwrap();
    for (rule, words) in [
        ("gpu-bits-differ", "GPU 0, GPU 1 (stand-in) differ in the bits of"),
        (
            "gpu-slower",
            "GPU 0 (stand-in) is slower than its siblings: its memory copy takes 100.0 % longer",
        ),
        ("gpu-memory-test", "memory of GPU 0 (stand-in) does not hold what is written: 3 words"),
        ("gpu-kernels-fail", "checks fail on GPU 0 (stand-in)"),
        ("gpu-check-ended", "the check of GPU 2 (stand-in) did not finish"),
    ] {
        let of_rule: Vec<_> = findings.iter().filter(|finding| finding["rule"] == rule).collect();
        assert_eq!(of_rule.len(), 1, "{rule} in {findings:?}");
        let title = of_rule[0]["title"].as_str().unwrap();
        assert!(title.contains(words), "no {words} in {title}");
    }

    // Each process records the other processes on its GPU before and after the timing.
    let conditions = summary["bench"]["conditions"].as_array().unwrap().iter();
    let on_gpus = |at: &str| {
        let of = |of: &serde_json::Value| of[at]["gpus"].as_array().unwrap().len();
        conditions.clone().map(of).sum::<usize>()
    };
    assert_eq!([on_gpus("before"), on_gpus("after")], [3, 3], "{summary}");

    // Each GPU has its rows; a run with several GPUs can be loaded, rendered and compared.
    let run = folder.path().join("run");
    // The fabric is measured without the GPU whose process crashed.
    assert_eq!(summary["gpus"]["fabric"]["gpus"], serde_json::json!([1, 0]));
    for file in [
        "parity.csv",
        "bench.csv",
        "gpu-0/parity.csv",
        "gpu-0/bench.csv",
        "gpus.json",
        "fabric.csv",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    let before = std::fs::read_to_string(run.join("report.md")).unwrap();
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("words that were wrong") && page.contains("gpu-0/"), "{before}");
    expect(folder.path(), &["check", "--report", "run"], 1);
    assert_eq!(std::fs::read_to_string(run.join("report.md")).unwrap(), before);
    expect(folder.path(), &["compare", "run", "run/gpu-0"], 0);
    let rows = std::fs::read_to_string(run.join("parity.csv")).unwrap();
    assert!(rows.lines().next().unwrap().ends_with(",bits"), "{rows}");
    expect(folder.path(), &["check", "--report", "run", "--redact", "-o", "shared"], 1);
    assert!(folder.path().join("shared/gpu-0/parity.csv").exists());
}
