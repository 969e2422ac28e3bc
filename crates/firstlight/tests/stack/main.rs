//! `check --venv` on an environment with stand-in packages: correct kernels and cheating ones, each judged by name.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{expect, json};
use tempfile::tempdir;

/// The stand-in packages of the peers' tests: correct attention in pure Python, and the cheats of field reports.
const FAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../verify/tests/peers/fakes");
const SMALL: &str = include_str!("small_calls.py");

/// A virtual environment whose interpreter starts, with metadata of numpy and the stand-in packages.
fn installed(folder: &Path) -> PathBuf {
    let venv = folder.join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success(), "these tests need python3 with its venv module");
    let mut libraries = std::fs::read_dir(venv.join("lib")).unwrap();
    let site = libraries.next().unwrap().unwrap().path().join("site-packages");
    for entry in std::fs::read_dir(FAKES).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, site.join(path.file_name().unwrap())).unwrap();
        }
    }
    std::fs::write(site.join("small_calls.py"), SMALL).unwrap();
    for (name, version) in [("numpy", "2.1.0"), ("small_calls", "1.0")] {
        let info = site.join(format!("{name}-{version}.dist-info"));
        std::fs::create_dir_all(&info).unwrap();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        std::fs::write(info.join("METADATA"), metadata).unwrap();
    }
    venv
}

/// An installed function, its expected status, and the reason in the report.
const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("small_calls:attention", "PASS", "right.attention"),
    ("small_calls:flash_attn_func@flash_fwd", "FALLBACK", "none of its kernels ran"),
    ("small_calls:falls_back_below_512@flash_fwd_kernel", "FALLBACK", "none of its kernels ran"),
    ("small_calls:cached", "FAIL", "relative error"),
    ("small_calls:for_seed_0", "FAIL", "relative error"),
    ("small_calls:unvisited_tiles", "FAIL", "relative error"),
    ("small_calls:top_left", "FAIL", "relative error"),
    ("small_calls:nan_rows", "FAIL", "NaN"),
    ("small_calls:says_pass", "FAIL", "relative error"),
    ("small_calls:skips", "SKIP", "the peer skipped itself: "),
    // The function blinds the observer in its process, which the next function crashes.
    ("small_calls:sees_nothing", "FAIL", "nothing was seen to run"),
    ("small_calls:crashes", "FAIL", "was killed by signal 11"),
    ("not_there:attention", "FAIL", "No module named 'not_there'"),
    ("small_calls:not_there", "FAIL", "has no `not_there`"),
];

#[test]
fn r4_09_check_judges_each_installed_kernel() {
    let folder = tempdir().unwrap();
    let venv = installed(folder.path());
    let peers: Vec<String> =
        FUNCTIONS.iter().map(|(function, ..)| format!("attention={function}")).collect();
    let venv = venv.to_str().unwrap();
    // Another test checks all ops.
    let mut arguments = vec!["check", "--quick", "--op", "attention", "--venv", venv, "-o", "run"];
    peers.iter().for_each(|peer| arguments.extend(["--peer", peer]));
    let summary = json(folder.path(), &arguments, 1);
    assert_eq!(summary["verdict"], "problems found");
    let rows = summary["parity"]["rows"].as_array().unwrap();
    let report = std::fs::read_to_string(folder.path().join("run/report.md")).unwrap();
    let page = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    for (function, result, reason) in FUNCTIONS {
        let name = function.split('@').next().unwrap();
        let of: Vec<_> = rows.iter().filter(|row| row["variant"] == name).collect();
        assert!(of.len() > 20, "{name} is asked for every case of its op");
        for row in &of {
            let passed = row["status"] == "PASS";
            assert_eq!(passed, row["reason"] == "", "{row}");
            if passed {
                assert!(row["launches"].as_u64().unwrap() > 0 && row["evidence"] != "", "{row}");
            }
        }
        let lead = format!("| `{name}` | ");
        let line = report.lines().find(|line| line.starts_with(&lead));
        // report.md has at most 300 lines, so passing rows may only be in the file that it links.
        let fine = !matches!(*result, "FAIL" | "FALLBACK");
        let Some(line) = line else {
            assert!(fine || page.contains(name), "the report does not name {name}");
            continue;
        };
        let chip = if matches!(*result, "FAIL" | "FALLBACK") {
            format!("**{result}**")
        } else {
            (*result).to_owned()
        };
        assert_eq!(line.split(" | ").nth(1), Some(chip.as_str()), "{line}");
        assert!(line.replace('\\', "").contains(reason), "{line}");
    }
    // Installed kernels fail and firstlight's do not; the report separates them.
    assert!(rows.iter().all(|row| !row["peer"].is_null() || row["status"] != "FAIL"));
    let own = "every one of these checks is of an installed kernel";
    assert!(report.contains(own) && report.contains("| **attention** | PASSES |"), "{report}");
    assert!(report.contains("Do not rely on [small_calls:top_left](#installed) (FAIL, "));
    let bad: Vec<_> = rows
        .iter()
        .filter(|row| row["variant"] == "small_calls:attention" && row["status"] == "FAIL")
        .collect();
    assert!(!report.contains("Do not rely on [small_calls:attention]"), "{bad:#?}");
}

#[test]
fn stack_without_torch_gives_a_complete_report() {
    let folder = tempdir().unwrap();
    let venv = installed(folder.path());
    let arguments = ["check", "--quick", "--venv", venv.to_str().unwrap(), "-o", "run"];
    // An installed torch cannot be imported.
    expect(folder.path(), &arguments, 1);
    let report = std::fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    for words in [
        "None of 32 installed kernels is ready here",
        "ModuleNotFoundError: there is no torch in these tests",
        "triton.hello",
        "Pending",
        "Limits",
        "sha256sum",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    assert!(!folder.path().join("run/INCOMPLETE").exists());
}
