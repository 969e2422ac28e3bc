//! Kernels that were named and did not run: no command may succeed.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{expect, json, refuses};
use tempfile::tempdir;

/// A virtual environment whose interpreter starts, and its site-packages.
fn environment(folder: &Path) -> (PathBuf, PathBuf) {
    let venv = folder.join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success(), "these tests need python3 with its venv module");
    let mut libraries = std::fs::read_dir(venv.join("lib")).unwrap();
    let site = libraries.next().unwrap().unwrap().path().join("site-packages");
    (venv, site)
}

fn write_module(site: &Path, module: &str, line: &str) {
    std::fs::create_dir_all(site.join(module)).unwrap();
    std::fs::write(site.join(module).join("__init__.py"), format!("{line}\n")).unwrap();
}

const BROKEN: &str = "raise ImportError('libcudart.so.12: cannot open shared object file')";
const MISSPELT: [&str; 2] = ["--peer", "rmsnorm=no_such_module:f"];

#[test]
fn verify_fails_if_named_kernel_does_not_load() {
    let folder = tempdir().unwrap();
    let (venv, site) = environment(folder.path());
    write_module(&site, "mine", "def f(tensors, settings): return tensors['x']");
    let verify = |more: &[&str], status: i32, words: &[&str]| {
        let base = ["verify", "rmsnorm", "--extent", "quick", "--venv", venv.to_str().unwrap()];
        let (out, _) = expect(folder.path(), &[&base, more].concat(), status);
        let out = support::unbroken(&out);
        for word in words {
            assert!(out.contains(word), "{more:?}: no `{word}` in\n{out}");
        }
        out
    };
    verify(&MISSPELT, 1, &["FAIL", "ModuleNotFoundError: No module named 'no_such_module'"]);
    verify(&["--peer", "rmsnorm=mine:g"], 1, &["FAIL", "module `mine` has no `g`"]);
    verify(&["--peer", "rmsnorm=mine:f@my_kernel"], 1, &["FAIL"]);
    verify(&["--only", "fla"], 1, &["FAIL", "fla is not installed in this environment"]);
    verify(&[], 1, &["none of its kernels ran: ", " is not installed in this environment"]);
    write_module(&site, "torch", BROKEN);
    write_module(&site, "fla", "");
    let out = verify(&[], 1, &["FAIL", "torch cannot be imported: ImportError: libcudart.so.12"]);
    assert!(!out.contains("needs a GPU"), "only the cause is reported: {out}");
    assert!(
        out.matches("fla.rms_norm_gated").count() <= 3,
        "one line for all of its checks: {out}"
    );
}

#[test]
fn names_without_matching_kernel_are_usage_errors() {
    let folder = tempdir().unwrap();
    let (venv, _) = environment(folder.path());
    let venv = ["--venv", venv.to_str().unwrap()];
    for command in ["verify", "bench"] {
        let check = |more: &[&str], word: &str| {
            refuses(folder.path(), &[&[command, "attention"], &venv[..], more].concat(), &[word]);
        };
        check(&["--only", "absent", "--peer", "attention=mine:f"], "no peer is called `absent`");
        check(&["--only", "torch,absent"], "no peer is called `absent`");
        check(&["--only", "fla.rms_norm_gated"], "has no kernel of attention");
        refuses(
            folder.path(),
            &[&[command, "sampling"], &venv[..]].concat(),
            &["no installed kernel of sampling is known"],
        );
        check(&MISSPELT, "is a kernel of rmsnorm, which this command does not run");
    }
}

#[test]
fn bench_fails_if_named_kernel_does_not_load() {
    let folder = tempdir().unwrap();
    let (venv, site) = environment(folder.path());
    write_module(&site, "torch", BROKEN);
    write_module(&site, "fla", "");
    let base = ["bench", "rmsnorm", "--quick", "--venv", venv.to_str().unwrap()];
    let report = json(folder.path(), &[&base[..], &["--only", "fla"], &MISSPELT].concat(), 1);
    let not_timed = report["not_timed"].to_string();
    for word in [
        "No module named 'no_such_module'",
        "torch cannot be imported: ImportError: libcudart.so.12",
    ] {
        assert!(not_timed.contains(word), "no `{word}` in {report}");
    }
}

#[test]
fn check_and_gate_fail_if_named_kernel_does_not_load() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let (venv, site) = environment(here);
    write_module(&site, "torch", BROKEN);
    let base =
        ["check", "--quick", "--op", "rmsnorm", "--venv", venv.to_str().unwrap(), "-o", "run"];
    expect(here, &[&base[..], &MISSPELT].concat(), 1);
    let report = std::fs::read_to_string(here.join("run/report.md")).unwrap();
    for words in ["No module named 'no_such_module'", "torch cannot be imported: ImportError"] {
        assert!(report.contains(words), "no `{words}` in {report}");
    }
    // The gate fails even if the baseline misses the same kernel.
    let (out, _) = expect(here, &["compare", "run", "run", "--fail"], 1);
    let out = support::unbroken(&out);
    assert!(out.contains("no_such_module:f never ran in run"), "{out}");
}
