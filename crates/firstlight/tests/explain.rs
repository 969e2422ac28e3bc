//! `explain`: an error text from an argument, a file or standard input gives its rule; an unknown one is reported.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::io::Write;
use std::process::Stdio;
use support::{command, environment, expect, json, refuses};
use tempfile::tempdir;

const CPU_ONLY: &str = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    \
                        torch.zeros(1).cuda()\nAssertionError: Torch not compiled with CUDA enabled\n";

#[test]
fn r0_16_error_text_gives_its_rule() {
    let folder = tempdir().unwrap();
    let argument = json(folder.path(), &["explain", CPU_ONLY], 0);
    assert_eq!(argument["schema"], 1);
    assert_eq!(argument["matches"][0]["rule"], "cpu-only-torch");
    for field in ["title", "cause"] {
        assert!(!argument["matches"][0][field].as_str().unwrap().is_empty(), "{argument}");
    }
    assert!(!argument["matches"][0]["fix"].as_array().unwrap().is_empty(), "{argument}");
    assert!(argument["matches"][0].get("confirmed_here").is_some(), "{argument}");
    std::fs::write(folder.path().join("error.log"), CPU_ONLY).unwrap();
    assert_eq!(json(folder.path(), &["explain", "error.log"], 0), argument);
    let mut child = command(folder.path(), &["explain", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(CPU_ONLY.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), argument);
}

/// Runs `explain` with this standard input.
fn piped(folder: &std::path::Path, arguments: &[&str], input: &str) -> std::process::Output {
    let mut child = command(folder, &[&["explain", "--json"], arguments].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn piped_text_is_read_with_and_without_a_name() {
    let folder = tempdir().unwrap();
    for arguments in [&[][..], &["-"], &["/dev/stdin"], &["/dev/fd/0"]] {
        let output = piped(folder.path(), arguments, CPU_ONLY);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["matches"][0]["rule"], "cpu-only-torch", "{arguments:?}: {found}");
        let empty = piped(folder.path(), arguments, "\n");
        let error = String::from_utf8_lossy(&empty.stdout).into_owned();
        assert_eq!(empty.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains("the text is empty"), "{arguments:?}: {error}");
    }
    // Without a pipe the rules are listed.
    let rules = json(folder.path(), &["explain"], 0);
    assert!(rules["rules"].as_array().unwrap().len() > 100);
    let empty = json(folder.path(), &["explain", "/dev/null"], 2);
    assert!(empty["error"].as_str().unwrap().contains("the text is empty"), "{empty}");
}

#[cfg(unix)]
#[test]
fn named_pipe_is_read() {
    let folder = tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    std::fs::write(folder.path().join("error.log"), CPU_ONLY).unwrap();
    // It waits until the pipe is opened for reading.
    let mut writer = std::process::Command::new("sh")
        .args(["-c", "exec cat error.log > pipe"])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    let output = support::run(folder.path(), &["explain", "pipe", "--json"]);
    let _ = writer.kill();
    writer.wait().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["matches"][0]["rule"], "cpu-only-torch", "{found}");
}

#[test]
fn environment_confirms_or_refutes_a_rule() {
    let folder = tempdir().unwrap();
    let venv = environment(
        folder.path(),
        &[
            ("torch", "2.5.1"),
            ("nvidia_cublas_cu12", "12.4.5.8"),
            ("nvidia_cublas_cu11", "11.11.3.6"),
        ],
    );
    let text =
        "ImportError: libcudart.so.11: cannot open shared object file: No such file or directory";
    let arguments = ["explain", text, "--venv", venv.to_str().unwrap()];
    let explained = json(folder.path(), &arguments, 0);
    let found = explained["matches"].as_array().unwrap();
    let mixed = found.iter().find(|found| found["rule"] == "mixed-cuda-majors").unwrap();
    assert_eq!(mixed["confirmed_here"], true, "{explained}");
    assert!(mixed["fix"].to_string().contains("pip"), "{explained}");
    assert!(!mixed["evidence"].as_array().unwrap().is_empty(), "{explained}");
    let (shown, _) = expect(folder.path(), &arguments, 0);
    assert!(shown.contains("Found on this machine"), "{shown}");
}

#[test]
fn unknown_text_lists_nearest_rules() {
    let folder = tempdir().unwrap();
    let text = "KeyError: 'lm_head.weight' while loading a torchvision model";
    let unknown = json(folder.path(), &["explain", text], 1);
    assert_eq!(unknown["matches"].as_array().unwrap().len(), 0, "{unknown}");
    let (shown, _) = expect(folder.path(), &["explain", text], 1);
    assert!(shown.starts_with("No rule knows this text"), "{shown}");
    // An unknown text lists the rules that share rare words with it.
    let text =
        "torchvision: the operators of torchvision were not registered by any operator library";
    let missed = json(folder.path(), &["explain", text], 1);
    assert_eq!(missed["similar"][0]["rule"], "torch-pairs", "{missed}");
    let (shown, _) = expect(folder.path(), &["explain", text], 1);
    assert!(shown.contains("most similar") && shown.contains("torch-pairs"), "{shown}");
    // An empty file has nothing to explain, like an empty text.
    std::fs::write(folder.path().join("empty"), "").unwrap();
    let empty = json(folder.path(), &["explain", "empty"], 2);
    assert!(empty["error"].as_str().unwrap().contains("the text is empty"), "{empty}");
}

#[test]
fn healthy_environment_gets_no_remedy() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("torch", "2.9.0"), ("torchvision", "0.24.0")]);
    let torch = venv.join("lib/python3.12/site-packages/torch");
    std::fs::create_dir(&torch).unwrap();
    std::fs::write(torch.join("version.py"), "__version__ = '2.9.0+cpu'\ncuda = None\n").unwrap();
    let text = "RuntimeError: operator torchvision::nms does not exist";
    let arguments = ["explain", text, "--venv", venv.to_str().unwrap()];
    let explained = json(folder.path(), &arguments, 0);
    let found = &explained["matches"][0];
    assert_eq!((&found["rule"], &found["confirmed_here"]), (&"torch-pairs".into(), &false.into()));
    assert_eq!(found["fix"], serde_json::json!([]), "{explained}");
    let (shown, _) = expect(folder.path(), &arguments, 0);
    let words = support::unbroken(&shown);
    assert!(words.contains("This machine does not have this problem"), "{shown}");
    assert!(words.contains("Your files do not show this: torch 2.9.0+cpu"), "{shown}");
    // A log of another machine gets the general commands, which name no local environment.
    assert!(words.contains("The usual commands on the machine that printed it"), "{shown}");
    assert!(!shown.contains(&format!("{}/bin/python -m pip install", venv.display())), "{shown}");
    assert!(!found["fix_elsewhere"].as_array().unwrap().is_empty(), "{explained}");
    // `explain RULE` prints the remedy.
    let by_name = ["explain", "torch-pairs", "--venv", venv.to_str().unwrap()];
    let (shown, _) = expect(folder.path(), &by_name, 0);
    assert!(shown.contains("Where the fix applies:"), "{shown}");
}

#[test]
fn entities_are_resolved_in_the_environment() {
    let folder = tempdir().unwrap();
    let venv = environment(
        folder.path(),
        &[
            ("flash_attn_4", "4.0.0"),
            ("flashinfer_python", "0.6.14"),
            ("flashinfer_cubin", "0.6.13"),
        ],
    );
    let venv = venv.to_str().unwrap();
    let text =
        "ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (unknown location)";
    let explained = json(folder.path(), &["explain", text, "--venv", venv], 0);
    let entity = &explained["entities"][0];
    assert_eq!(entity["confirmed_here"], true, "{explained}");
    assert!(entity["evidence"].to_string().contains("flash_attn_4 4.0.0"), "{explained}");
    assert!(entity["causes"][0]["fix"].to_string().contains("flash-attn"), "{explained}");
    let text = "flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)";
    let explained = json(folder.path(), &["explain", text, "--venv", venv], 0);
    let entity = &explained["entities"][0];
    assert_eq!(entity["confirmed_here"], true, "{explained}");
    assert!(entity["fix"].to_string().contains("flashinfer-cubin==0.6.14"), "{explained}");
    let (shown, _) = expect(folder.path(), &["explain", text, "--venv", venv], 0);
    assert!(shown.contains("The files here agree"), "{shown}");
}

#[test]
fn text_wraps_at_terminal_width() {
    let folder = tempdir().unwrap();
    for width in [60, 80] {
        let mut run = command(
            folder.path(),
            &["explain", "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus"],
        );
        let output = run.env("COLUMNS", width.to_string()).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        // Commands are indented and stay whole; links have no blanks.
        let prose = shown.lines().filter(|line| !line.starts_with("  ") && line.contains(' '));
        let widest = prose.map(|line| line.chars().count()).max();
        assert!(widest <= Some(width), "{widest:?} of {width}:\n{shown}");
        assert!(shown.contains("fallen off the bus"), "{shown}");
    }
}

/// Row D14: another rule's text names the same Xid.
#[test]
fn xid_number_selects_its_rule() {
    let folder = tempdir().unwrap();
    for text in ["Xid 79", "Xid 79 GPU has fallen off the bus", "NVRM: Xid (PCI:0000:18:00): 79"] {
        let explained = json(folder.path(), &["explain", text], 0);
        assert_eq!(explained["matches"][0]["rule"], "xid", "{text}: {explained}");
    }
}

#[test]
fn rejects_unreadable_input() {
    let folder = tempdir().unwrap();
    refuses(
        folder.path(),
        &["explain", "absent/error.log"],
        &["absent/error.log", "does not exist"],
    );
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    refuses(folder.path(), &["explain", "logs"], &["logs", "is a folder"]);
}

#[test]
fn accepts_log_with_invalid_utf8() {
    let folder = tempdir().unwrap();
    let mut bytes = vec![0xff, 0xfe, 0, 0x1b, b'[', 0x80];
    bytes.extend(CPU_ONLY.bytes());
    std::fs::write(folder.path().join("bytes.bin"), bytes).unwrap();
    let explained = json(folder.path(), &["explain", "bytes.bin"], 0);
    assert_eq!(explained["matches"][0]["rule"], "cpu-only-torch");
}

#[test]
fn rule_list_fits_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let (shown, _) = support::expect(folder.path(), &["explain"], 0);
    assert!(shown.contains("driver-silent") && shown.contains("sm103-miscompile"), "{shown}");
    let widest = shown.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?} columns");
}
