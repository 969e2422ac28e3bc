//! `firstlight check`: a complete run, an interrupted one, and a report that is rendered from its files.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{Duration, Instant};
use support::{command, environment, expect, json};
use tempfile::tempdir;

fn manifest(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("run.json")).unwrap()).unwrap()
}

/// The number of files in a folder that contain `word` as a whole word.
fn names(folder: &Path, word: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count += names(&path, word);
            continue;
        }
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let parted = |at: usize| {
            let inner = |letter: char| letter.is_alphanumeric();
            !text[..at].ends_with(inner) && !text[at + word.len()..].starts_with(inner)
        };
        count += usize::from(text.match_indices(word).any(|(at, _)| parted(at)));
    }
    count
}

/// Builds a shared library from one line of C.
fn build(library: &Path, text: &str) {
    let source = library.with_extension("c");
    std::fs::write(&source, text).unwrap();
    let mut compiler = std::process::Command::new("cc");
    let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(library).arg(source).status();
    assert!(built.unwrap().success());
}

/// The certificate accepts the machine that was checked and rejects it after each change.
fn check_certificate(folder: &Path, library: &Path) {
    let gate = ["gate", "--certificate", "node.json", "--public-key", "key.pub.pem"];
    let refused = |more: &[&str], reason: &str| {
        let answer = json(folder, &[&gate[..], more].concat(), 1);
        let reasons = answer["reasons"].as_array().unwrap();
        assert_eq!((reasons.len(), &answer["accepted"]), (1, &false.into()), "{answer}");
        assert!(reasons[0].as_str().unwrap().contains(reason), "{reason}: {answer}");
    };
    let accepted = json(folder, &gate, 0);
    assert_eq!(accepted["accepted"], true, "{accepted}");
    assert_eq!(accepted["statement"]["predicate"]["firstlight"]["extent"], "quick");
    let (told, _) = expect(folder, &gate, 0);
    let part = "certificate: accepted, checked in part (`check --quick`) at 20";
    assert!(told.starts_with(part), "{told}");
    refused(&["--max-age", "0h"], "hours old, more than 0.0 hours");
    let bytes = std::fs::read(library).unwrap();
    build(library, "int part = 2;");
    refused(&[], "libpart.so has changed");
    std::fs::write(library, bytes).unwrap();
    expect(folder, &gate, 0);
    // The payload is edited without the signing key.
    let text = std::fs::read_to_string(folder.join("node.json")).unwrap();
    let mut bundle: serde_json::Value = serde_json::from_str(&text).unwrap();
    let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap().replacen('a', "b", 1);
    bundle["dsseEnvelope"]["payload"] = payload.into();
    std::fs::write(folder.join("node.json"), bundle.to_string()).unwrap();
    refused(&[], "none of its signatures is by the key");
    std::fs::write(folder.join("node.json"), text).unwrap();
    let unread = ["gate", "--certificate", "node.json", "--public-key", "absent.pem"];
    support::refuses(folder, &unread, &["there is no public key absent.pem"]);
    let unread = ["gate", "--certificate", "key.pem", "--public-key", "key.pub.pem"];
    support::refuses(folder, &unread, &["key.pem is not a certificate"]);
}

#[test]
fn r4_16_check_writes_a_complete_run_folder() {
    let folder = tempdir().unwrap();
    let home = folder.path().join("home/adalovelace");
    std::fs::create_dir_all(&home).unwrap();
    let venv = environment(&home, &[("numpy", "2.1.0"), ("secret-project", "0.1")]);
    let arguments = ["check", "--quick", "--venv", venv.to_str().unwrap(), "-o", "run"];
    // A preloaded library is part of the stack.
    let library = folder.path().join("libpart.so");
    build(&library, "int part = 1;");
    let certify = ["--certificate", "node.json", "--signing-key", "key.pem", "--json"];
    let output = command(folder.path(), &[&arguments[..], &certify].concat())
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    check_certificate(folder.path(), &library);
    let run = folder.path().join("run");
    assert!(!run.join("INCOMPLETE").exists());
    let manifest = manifest(&run);
    assert_eq!((&manifest["state"], &manifest["schema"]), (&"complete".into(), &1.into()));
    assert!(
        manifest["finished"].is_string() && manifest["stages"].as_array().unwrap().len() == 3,
        "{manifest}"
    );
    for name in ["facts.json", "parity.csv", "bench.csv", "samples.csv", "logs/run.log"] {
        let artefacts = manifest["artefacts"].as_array().unwrap();
        let artefact = artefacts.iter().find(|artefact| artefact["path"] == name).unwrap();
        let content = std::fs::read(run.join(name)).unwrap();
        assert_eq!(artefact["bytes"], content.len());
        let hash: String =
            Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(artefact["sha256"], hash.as_str(), "{name}");
    }
    let rows = summary["parity"]["rows"].as_array().unwrap();
    let passed = rows.iter().filter(|row| row["status"] == "PASS").count();
    assert!(passed >= 5 && rows.iter().all(|row| row["status"] != "FAIL"), "{rows:?}");
    assert!(!summary["bench"]["rows"].as_array().unwrap().is_empty());
    for name in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(run.join(name)).unwrap();
        for artefact in ["facts.json", "parity.csv", "bench.csv"] {
            assert!(text.contains(artefact), "{name} has no link to {artefact}");
        }
        assert!(
            !text.contains("<script") && !text.to_lowercase().contains("incomplete run"),
            "{name}"
        );
    }

    // Without CUDA kernels the coverage lists only the CPU, and the verdict is never `verified`.
    if summary["parity"]["rows"].as_array().unwrap().iter().all(|row| row["backend"] != "cuda") {
        assert_eq!(manifest["coverage"]["backends"], serde_json::json!(["cpu"]));
        assert_ne!(manifest["coverage"]["gpu"], "verified");
        assert_ne!(summary["verdict"], "verified");
    }

    // No file of an anonymized copy has these names, and its hashes match its files.
    for name in [manifest["host"].as_str().unwrap(), "adalovelace", "secret-project"] {
        assert!(names(&run, name) > 0, "the run contains {name}");
    }
    expect(folder.path(), &["check", "--report", "run", "--redact", "-o", "shared"], 0);
    let shared = folder.path().join("shared");
    for name in [manifest["host"].as_str().unwrap(), "adalovelace", "secret-project"] {
        assert_eq!(names(&shared, name), 0, "{name}");
    }
    assert!(names(&shared, "numpy") > 0);
    expect(folder.path(), &["gate", "shared", "--baseline", "shared"], 0);
    expect(folder.path(), &["check", "--report", "run", "--redact", "-o", "shared"], 2);
    let (_, told) = expect(folder.path(), &["check", "--report", "run", "--redact"], 2);
    assert!(told.contains("hint: firstlight check --report run --redact -o to-share"), "{told}");
    expect(folder.path(), &["check", "--report", "run", "--quick"], 2);
    let (_, told) = expect(folder.path(), &["report", "run"], 0);
    assert!(
        told.contains("`firstlight report RUN` is now `firstlight check --report RUN`"),
        "{told}"
    );

    // A second run into the same folder is refused.
    let (_, err) = expect(folder.path(), &arguments, 2);
    assert!(err.contains("not empty") && err.contains("hint:"), "{err}");

    // A failure written into the file changes the report and the verdict.
    let before = std::fs::read_to_string(run.join("report.md")).unwrap();
    let parity = std::fs::read_to_string(run.join("parity.csv")).unwrap();
    std::fs::write(run.join("parity.csv"), parity.replacen(",PASS,", ",FAIL,", 1)).unwrap();
    expect(folder.path(), &["check", "--report", "run"], 1);
    let after = std::fs::read_to_string(run.join("report.md")).unwrap();
    assert_ne!(before, after);
    assert!(after.contains("1 failed"), "{after}");
    std::fs::write(run.join("parity.csv"), parity).unwrap();
    expect(folder.path(), &["check", "--report", "run"], 0);
    assert_eq!(std::fs::read_to_string(run.join("report.md")).unwrap(), before);

    std::fs::write(run.join("parity.csv"), "op,case\nattention,x\n").unwrap();
    let (_, err) = expect(folder.path(), &["check", "--report", "run"], 2);
    assert!(err.contains("parity.csv"), "{err}");
}

#[test]
fn interrupted_check_is_incomplete() {
    let folder = tempdir().unwrap();
    let home = folder.path().join("home/adalovelace");
    std::fs::create_dir_all(&home).unwrap();
    let venv = environment(&home, &[("numpy", "2.1.0"), ("secret-project", "0.1")]);
    let venv = venv.to_str().unwrap();
    let arguments = ["check", "--full", "--redact", "--venv", venv, "-o", "run"];
    let mut child =
        command(folder.path(), &arguments).stdout(std::process::Stdio::null()).spawn().unwrap();
    let run = folder.path().join("run");
    let since = Instant::now();
    while !run.join("facts.json").exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "check never wrote its facts");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The full matrix takes minutes, so the run is still in progress.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(run.join("INCOMPLETE").exists());
    assert_eq!(manifest(&run)["state"], "incomplete");
    assert_eq!((names(&run, "adalovelace"), names(&run, "secret-project")), (0, 0));
    assert_eq!(manifest(&run)["host"], "[host]");
    assert!(!run.join("report.html").exists());
    expect(folder.path(), &["check", "--report", "run"], 1);
    for name in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(run.join(name)).unwrap();
        assert!(text.contains("Incomplete run"), "{name}");
    }
}

#[test]
fn foreign_folder_is_no_run() {
    let folder = tempdir().unwrap();
    support::refuses(
        folder.path(),
        &["check", "--report", "."],
        &["is not a run folder", "run.json"],
    );
    std::fs::write(folder.path().join("run.json"), "{\"schema\": 99}").unwrap();
    support::refuses(folder.path(), &["check", "--report", "."], &["schema 99"]);
}
