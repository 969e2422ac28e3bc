//! Commands that are interrupted, or have no time or no room: what they leave, and what they say about it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // Test helpers beside the tests.

mod support;

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
        assert!(since.elapsed() < Duration::from_secs(120), "{file} never came");
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
    // The report of what is there is short on the terminal.
    let (out, _) = expect(here, &["check", "--report", "run"], 1);
    assert!(out.lines().count() < 12 && out.contains("wrote run/report.html"), "{out}");
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
    // Right after a write another process may still be at it.
    let small = ["model", "synth", "granite-rope-mini", "m"];
    std::thread::sleep(Duration::from_secs(3));
    let (_, told) = expect(here, &small, 0);
    assert!(told.contains("removed m/model.part, which an interrupted synth left"), "{told}");
    // Files of anything else are left alone.
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
