//! Interrupted commands and commands without time or disk space: their files and messages.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{command, expect, refuses};
use tempfile::tempdir;

fn begun(folder: &Path, arguments: &[&str], file: &str) -> Child {
    let mut command = command(folder, arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    while !folder.join(file).exists() {
        assert!(since.elapsed() < Duration::from_secs(120), "{file} was never written");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn interrupted_check_names_its_folder_and_the_next_one_explains_it() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let arguments = ["check", "--full", "-o", "run"];
    let child = begun(here, &arguments, "run/facts.json");
    signal(&child, "INT");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    let told = String::from_utf8_lossy(&ended.stderr);
    for words in ["interrupted: run is incomplete", "`firstlight check --report run`"] {
        assert!(told.contains(words), "no `{words}` in {told}");
    }
    refuses(here, &arguments, &["run folder run is not empty"]);
    let (_, told) = expect(here, &arguments, 2);
    assert!(
        told.contains("hint: it has an interrupted run: `firstlight check --report run`"),
        "{told}"
    );
    // The terminal shows a short report of the incomplete run.
    let (out, _) = expect(here, &["check", "--report", "run"], 1);
    assert!(out.lines().count() < 12 && out.contains("wrote run/report.html"), "{out}");
}

#[test]
fn interrupted_check_reports_its_finished_rows() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    for (run, stop) in [("by-term", "TERM"), ("by-int", "INT")] {
        let arguments = ["check", "--full", "-o", run];
        let mut child = begun(here, &arguments, &format!("{run}/facts.json"));
        let told = BufReader::new(child.stderr.take().unwrap());
        // The progress shows that rows are finished.
        let verifies = |line: &String| line.starts_with("verify ") && line.contains(" of ");
        let mut lines = told.lines().map_while(Result::ok);
        let line = lines.find(verifies).unwrap();
        signal(&child, stop);
        let told: Vec<String> = lines.collect();
        assert!(told.iter().any(|line| line.starts_with("interrupted: ")), "{told:?}");
        assert!(!child.wait().unwrap().success());
        let done: usize = line.split(' ').nth(1).unwrap().parse().unwrap();
        let table = std::fs::read_to_string(here.join(run).join("parity.csv")).unwrap();
        assert!(table.lines().count() > done, "{line}: {} lines", table.lines().count());
        let (out, _) = expect(here, &["check", "--report", run], 1);
        assert!(out.contains("\nverdict: incomplete"), "{out}");
        let report = std::fs::read_to_string(here.join(run).join("report.md")).unwrap();
        assert!(report.contains("Incomplete run") && report.contains(" checks: "), "{report}");
    }
}

#[test]
fn killed_synth_leaves_a_file_that_the_next_one_recognises() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let arguments = ["model", "synth", "granite-4.0-h-micro", "m", "--layers", "6"];
    let mut child = begun(here, &arguments, "m/model.part");
    child.kill().unwrap();
    child.wait().unwrap();
    let names = |folder: &Path| -> Vec<_> {
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&here.join("m")), ["model.part"]);
    // Shortly after a write, another process may still be writing.
    let small = ["model", "synth", "granite-rope-mini", "m"];
    std::thread::sleep(Duration::from_secs(3));
    let (_, told) = expect(here, &small, 0);
    assert!(told.contains("removed m/model.part, which an interrupted synth left"), "{told}");
    // Foreign files are not changed.
    refuses(here, &small, &["m: is not empty"]);
}

#[test]
fn check_without_time_leaves_a_report_and_is_unclear() {
    let folder = tempdir().unwrap();
    for output in [&["-o", "run"][..], &[]] {
        let line = [&["check", "--quick", "--budget", "1"], output].concat();
        let (out, _) = expect(folder.path(), &line, 3);
        assert!(out.contains("report.html"), "{out}");
        assert!(!out.contains("peers: 0 rows timed"), "{out}");
    }
    let report = std::fs::read_to_string(folder.path().join("run/report.md")).unwrap();
    assert!(report.contains("the time that this run may take was spent"), "{report}");
}

/// Runs a script as root of a new user namespace, or as root; `None` where neither is allowed.
fn as_root(folder: &Path, script: &str) -> Option<std::process::Output> {
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command.current_dir(folder).env("NO_COLOR", "1").output().ok()
    };
    // Some machines and containers allow no user namespaces.
    run("mount -t tmpfs tmpfs /tmp").filter(|output| output.status.success())?;
    run(script)
}

/// Too little disk space is reported before anything is computed; a full disk is reported with a hint.
#[test]
fn small_disk_is_refused_with_a_hint_about_space() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    std::fs::create_dir(here.join("disk")).unwrap();
    let program = env!("CARGO_BIN_EXE_firstlight");
    for (line, fills) in [
        ("check --quick -o disk/run", false),
        ("bench rmsnorm --quick -o disk/run", false),
        ("bench model m --tests tg1 -o disk/run", false),
        ("model synth granite-rope-mini disk/m", true),
        ("model quantize m disk/m --to fp8", true),
        ("model logits m --ids 1,2 -o disk/l.safetensors", true),
        ("doctor --sarif disk/s.sarif", true),
        ("plan torch --machine a100 --emit plan.toml -o disk/plan.toml", true),
    ] {
        let fill = if fills { "dd if=/dev/zero of=disk/filled bs=4096 2>/dev/null;" } else { "" };
        let mount = "mount -t tmpfs -o size=256k tmpfs disk &&";
        let script = format!("{mount} {{ {fill} timeout 60 {program} {line}; echo $?; ls disk; }}");
        let Some(output) = as_root(here, &script) else { return };
        let out = String::from_utf8_lossy(&output.stdout);
        let told = String::from_utf8_lossy(&output.stderr);
        let (status, left) = out.split_once('\n').unwrap();
        assert_eq!(status, "2", "{line}: {out}{told}");
        assert!(told.contains("hint: free some space"), "{line}: {told}");
        assert_eq!(left.trim(), if fills { "filled" } else { "" }, "{line}");
    }
}
