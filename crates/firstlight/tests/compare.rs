//! `compare` and `gate` on run folders (row R4-20): a gate passes an equal run and names each regression.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::path::Path;
use support::{expect, json, refuses};
use tempfile::{TempDir, tempdir};

/// A recorded run that has only tables.
const RECORDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../benchmarks/runs/2026-11-21-h200/ops");

/// A copy of the recorded run whose tables were edited.
fn copy(edit: impl Fn(&str, &str) -> Option<String>) -> TempDir {
    let folder = tempdir().unwrap();
    for file in ["bench.csv", "samples.csv"] {
        let text = std::fs::read_to_string(Path::new(RECORDED).join(file)).unwrap();
        let lines = text.lines().filter_map(|line| edit(file, line));
        std::fs::write(folder.path().join(file), lines.collect::<Vec<_>>().join("\n")).unwrap();
    }
    folder
}

fn gate(run: &Path, status: i32) -> String {
    let (out, err) = expect(run, &["compare", RECORDED, ".", "--fail"], status);
    assert_eq!(err, "");
    out
}

#[test]
fn r4_20_gate_passes_equal_run_and_fails_slower_one() {
    let same = copy(|_, line| Some(line.to_owned()));
    let out = gate(same.path(), 0);
    assert!(out.contains("gate: passed, 25 rows held"), "{out}");

    // One decode step is a fifth slower, and one kernel is not timed.
    let slower = copy(|file, line| {
        if line.contains(",decode-b256-c4352,") {
            return None;
        }
        let step = if file == "bench.csv" { ",decode-b1-h64," } else { "ssd,decode-b1-h64," };
        if !line.contains(step) {
            return Some(line.to_owned());
        }
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let columns: &[usize] = if file == "bench.csv" { &[8, 9] } else { &[6] };
        for column in columns {
            let millis: f64 = cells[*column].parse().unwrap();
            cells[*column] = (millis * 1.2).to_string();
        }
        Some(cells.join(","))
    });
    assert!(gate(slower.path(), 1).contains("gate: not passed, 2 reasons"));
    let report = json(slower.path(), &["compare", RECORDED, ".", "--fail"], 1);
    let failures: Vec<&str> =
        report["failures"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect();
    assert_eq!(
        failures,
        [
            "ssd decode-b1-h64 bf16 on cuda takes 3.27 µs instead of 2.72 µs, 20.0 % longer",
            "conv1d decode-b256-c4352 bf16 on cuda was timed in the baseline and is not in this run",
        ]
    );
    // `compare` does not fail on a regression.
    let (out, _) = expect(slower.path(), &["compare", RECORDED, "."], 0);
    assert!(out.contains("1 slower, 23 same, 1 gone"), "{out}");
    let document = json(slower.path(), &["compare", RECORDED, "."], 0);
    assert_eq!(document["speed"][0]["change"], "slower");
}

/// Multiplies the times and samples of every kernel by `times`.
fn longer(file: &str, line: &str, times: f64) -> Option<String> {
    let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
    let columns: &[usize] = if file == "bench.csv" { &[8, 9] } else { &[6] };
    for column in columns {
        if let Some(millis) = cells.get(*column).and_then(|cell| cell.parse::<f64>().ok()) {
            cells[*column] = (millis * times).to_string();
        }
    }
    Some(cells.join(","))
}

#[test]
fn shared_machine_run_is_unclear_in_both_directions() {
    let busy = copy(|file, line| longer(file, line, 1.4));
    let conditions = serde_json::json!({
        "schema": 1,
        "backends": [{
            "backend": "cuda",
            "before": { "load": null, "cpu_mhz": null, "gpus": [] },
            "after": { "load": null, "cpu_mhz": null, "gpus": [{
                "gpu": 0, "sm_mhz": null, "sm_mhz_most": null, "memory_mhz": null, "celsius": null, "held_down_by": null,
                "others": { "value": ["4711 python"], "source": "NVML" },
            }] },
            "meanwhile": { "seconds": 20.0, "cores": 16, "others_cores": null, "stolen_pct": null },
            "ceilings": [{ "ceiling": "copy", "before": 4270.0, "after": 3010.0 }],
        }],
    });
    let write = |folder: &Path| {
        std::fs::write(folder.join("conditions.json"), conditions.to_string()).unwrap();
    };
    write(busy.path());
    let out = gate(busy.path(), 3);
    assert!(out.contains("gate: unclear."), "{out}");
    assert!(out.contains("GPU 0 had other processes after the timing: 4711 python"), "{out}");
    assert!(out.contains("the ceiling of the memory copy moved by 29.5 %"), "{out}");
    let report = json(busy.path(), &["compare", RECORDED, ".", "--fail"], 3);
    assert_eq!((&report["outcome"], &report["passed"]), (&"unclear".into(), &false.into()));
    // As a baseline, the shared machine makes no kernel of a quiet run faster.
    let baseline = busy.path().to_str().unwrap().to_owned();
    let quiet = copy(|_, line| Some(line.to_owned()));
    expect(quiet.path(), &["compare", &baseline, ".", "--fail"], 3);
    let (out, _) = expect(quiet.path(), &["compare", &baseline, "."], 0);
    assert!(out.contains("25 unclear") && !out.contains("faster"), "{out}");
    // A missing timing is a loss, however busy the machine was.
    let lost = copy(|file, line| {
        let gone = line.contains(",decode-b256-c4352,");
        if gone { None } else { longer(file, line, 1.4) }
    });
    write(lost.path());
    gate(lost.path(), 1);
}

#[test]
fn writes_self_contained_documents() {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["compare", RECORDED, RECORDED, "-o", "deep/out"], 0);
    let html = std::fs::read_to_string(folder.path().join("deep/out/compare.html")).unwrap();
    assert!(html.contains("changes-ssd") && !html.contains("src=\"http"), "{html}");
    assert!(folder.path().join("deep/out/compare.md").is_file());
}

#[test]
fn damaged_file_is_named_with_its_run() {
    let sound = copy(|_, line| Some(line.to_owned()));
    let compared = |damaged: &Path| {
        let paths = [damaged, sound.path()].map(|path| path.to_str().unwrap().to_owned());
        let (_, said) = expect(sound.path(), &["compare", &paths[0], &paths[1]], 2);
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let table = copy(|_, line| Some(line.to_owned()));
    std::fs::write(table.path().join("parity.csv"), "status\n").unwrap();
    let said = compared(table.path());
    let words = format!("error: in the run {}: parity.csv: no column", table.path().display());
    assert!(said.contains(&words), "{said}");
    let manifest = copy(|_, line| Some(line.to_owned()));
    std::fs::write(manifest.path().join("run.json"), "{\"schema\": ").unwrap();
    let said = compared(manifest.path());
    let words = format!("error: cannot use {}: EOF", manifest.path().join("run.json").display());
    assert!(said.contains(&words), "{said}");
    assert!(said.contains("hint: the file is damaged or cut: copy the run again"), "{said}");
}

#[test]
fn rejects_folder_that_is_no_run() {
    let folder = tempdir().unwrap();
    refuses(folder.path(), &["compare", RECORDED, ".", "--fail"], &["is not a run folder"]);
    let arguments = ["compare", RECORDED, RECORDED, "--fail", "--tolerance", "some"];
    let (_, err) = expect(folder.path(), &arguments, 2);
    assert!(err.contains("expected a percentage of 0 or more"), "{err}");
}
