//! Rules of every subcommand: exit status, a one-line error with a hint, JSON, and no partial files.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::{command, environment, expect, json, refuses};
use tempfile::tempdir;

#[test]
fn usage_errors_exit_2_and_help_exits_0() {
    let folder = tempdir().unwrap();
    for arguments in [
        &["nonsense"][..],
        &["verify", "--backend", "abacus"],
        &["check", "--quick", "--full"],
        &[],
    ] {
        expect(folder.path(), arguments, 2);
    }
    let (help, _) = expect(folder.path(), &["--help"], 0);
    for subcommand in [
        "check",
        "doctor",
        "explain",
        "plan",
        "ps",
        "apply",
        "verify",
        "op",
        "bench",
        "fit",
        "synth",
        "run",
        "logits",
        "compare",
        "gate",
        "completions",
        "man",
    ] {
        assert!(help.contains(subcommand), "{help}");
        expect(folder.path(), &[subcommand, "--help"], 0);
    }
    // An incomplete subcommand is a usage error.
    expect(folder.path(), &["convert"], 2);
}

#[test]
fn doctor_follows_exit_and_json_rules() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("numpy", "2.1.0"), ("einops", "0.8.1")]);
    let report = json(folder.path(), &["doctor", "--venv", venv.to_str().unwrap()], 0);
    assert_eq!(report["schema"], 1);
    for field in ["platform", "backend", "gpus", "driver"] {
        assert!(report["machine"].get(field).is_some(), "machine has no {field}");
    }
    assert!(["cpu", "cuda", "metal"].contains(&report["machine"]["backend"].as_str().unwrap()));
    assert_eq!(report["envs"][0]["root"], venv.to_str().unwrap());
    assert_eq!(report["envs"][0]["interpreter"]["version"]["value"], "3.12.3");
    assert_eq!(report["envs"][0]["dists"].as_array().unwrap().len(), 2);
    assert!(report["findings"].is_array());
}

/// The program is on PATH only: the source package has no program next to it.
#[test]
fn python_package_runs_doctor() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("numpy", "2.1.0")]);
    let program = Path::new(env!("CARGO_BIN_EXE_firstlight")).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&path)));
    let path = path.unwrap();
    let run = |arguments: &[&str]| {
        // The environment variables of `support::command`, with Python as the program.
        let mut module = Command::new("python3");
        module.args(["-m", "firstlight"]).args(arguments).current_dir(folder.path());
        for (name, value) in command(folder.path(), arguments).get_envs() {
            match value {
                Some(value) => module.env(name, value),
                None => module.env_remove(name),
            };
        }
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
        module.env("PATH", &path).env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
        module.output().unwrap()
    };
    let venv = venv.to_str().unwrap();
    let found = run(&["doctor", "--venv", venv, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!((found.status.code(), &report["schema"]), (Some(0), &1.into()), "{report}");
    assert_eq!(report["envs"][0]["root"], venv);
    let missing = run(&["doctor", "--venv", "nowhere"]);
    let (_, wanted) = expect(folder.path(), &["doctor", "--venv", "nowhere"], 2);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!((missing.status.code(), said), (Some(2), wanted));
}

#[test]
fn findings_exit_1_with_evidence_and_fix() {
    let folder = tempdir().unwrap();
    let venv = environment(
        folder.path(),
        &[
            ("torch", "2.5.1"),
            ("nvidia_cublas_cu12", "12.4.5.8"),
            ("nvidia_cublas_cu11", "11.11.3.6"),
        ],
    );
    let report = json(folder.path(), &["doctor", "--venv", venv.to_str().unwrap()], 1);
    let findings = report["findings"].as_array().unwrap();
    let mixed = findings.iter().find(|finding| finding["rule"] == "mixed-cuda-majors").unwrap();
    for field in ["severity", "title", "cause"] {
        assert!(mixed[field].as_str().is_some_and(|text| !text.is_empty()), "{mixed}");
    }
    assert!(!mixed["evidence"].as_array().unwrap().is_empty());
    assert!(!mixed["fix"].as_array().unwrap().is_empty());
    let (text, _) = expect(folder.path(), &["doctor", "--venv", venv.to_str().unwrap()], 1);
    assert!(text.contains("mixed-cuda-majors"), "{text}");
    let explained =
        json(folder.path(), &["explain", "mixed-cuda-majors", "--venv", venv.to_str().unwrap()], 0);
    assert_eq!(explained["matches"][0]["confirmed_here"], true);
}

#[test]
fn invalid_environment_is_one_line_error() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    refuses(folder.path(), &["doctor", "--venv", &path("absent")], &["absent", "does not exist"]);
    std::fs::write(path("file"), "x").unwrap();
    refuses(folder.path(), &["doctor", "--venv", &path("file")], &["file", "not a folder"]);
    std::fs::create_dir(path("plain")).unwrap();
    refuses(
        folder.path(),
        &["check", "--venv", &path("plain")],
        &["plain", "not a python environment"],
    );
    // A refused check creates no run folder.
    assert!(!folder.path().join("firstlight-runs").exists());
}

#[test]
fn corrupt_package_is_named() {
    let folder = tempdir().unwrap();
    let venv = environment(folder.path(), &[("numpy", "2.1.0"), ("broken", "1.0")]);
    let metadata = venv.join("lib/python3.12/site-packages/broken-1.0.dist-info/METADATA");
    std::fs::write(&metadata, [0xff, 0xfe, 0x00, 0x80, b'\n']).unwrap();
    let output =
        support::run(folder.path(), &["doctor", "--json", "--venv", venv.to_str().unwrap()]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = report["envs"][0]["problems"].to_string();
    assert!(problems.contains("broken-1.0.dist-info"), "{problems}");
    assert!(report["envs"][0]["dists"].to_string().contains("numpy"));
}

#[test]
fn explain_lists_rules_and_suggests_nearest() {
    let folder = tempdir().unwrap();
    let listing = json(folder.path(), &["explain"], 0);
    let rules: Vec<&str> = listing["rules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    assert!(rules.contains(&"cpu-only-torch"), "{rules:?}");
    refuses(folder.path(), &["explain", "cpu-only-torh"], &["cpu-only-torh"]);
    let (_, err) = expect(folder.path(), &["explain", "cpu-only-torh"], 2);
    assert!(err.contains("did you mean `cpu-only-torch`"), "{err}");
    let explained = json(folder.path(), &["explain", "CPU_ONLY_TORCH"], 0);
    assert_eq!(explained["matches"][0]["rule"], "cpu-only-torch");
    for field in ["title", "cause", "fix", "confirmed_here"] {
        assert!(explained["matches"][0].get(field).is_some(), "{explained}");
    }
}

#[test]
fn missing_backend_never_passes() {
    let folder = tempdir().unwrap();
    for command in [&["verify", "--extent", "quick"][..], &["bench", "--quick"]] {
        let arguments = [command, &["--backend", "cuda"]].concat();
        let mut hidden = support::command(folder.path(), &arguments);
        let output = hidden.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(err.contains("backend cuda is not available"), "{err}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    refuses(folder.path(), &["verify", "atention"], &["atention"]);
}

#[test]
fn verify_follows_exit_and_json_rules() {
    let folder = tempdir().unwrap();
    let report = json(folder.path(), &["verify", "conv1d", "--extent", "quick"], 0);
    assert_eq!(report["schema"], 1);
    for row in report["rows"].as_array().unwrap() {
        let fields = [
            "op",
            "case",
            "backend",
            "variant",
            "dtype",
            "status",
            "reason",
            "rel_err",
            "max_err",
            "tolerance",
            "launches",
            "millis",
        ];
        for field in fields {
            assert!(row.get(field).is_some(), "no {field} in {row}");
        }
        if row["status"] == "PASS" {
            assert!(row["launches"].as_u64().unwrap() > 0, "{row}");
            assert!(
                row["rel_err"].as_f64().unwrap() <= row["tolerance"].as_f64().unwrap(),
                "{row}"
            );
        }
    }
}

#[test]
fn completions_and_man_pages_cover_all_subcommands() {
    let folder = tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let (script, _) = expect(folder.path(), &["completions", shell], 0);
        assert!(script.contains("doctor") && script.contains("firstlight"), "{shell}");
    }
    let (page, _) = expect(folder.path(), &["man"], 0);
    assert!(page.contains(".TH firstlight"), "{page}");
    expect(folder.path(), &["man", "-o", "pages"], 0);
    for page in ["firstlight.1", "firstlight-check.1", "firstlight-op.1"] {
        assert!(folder.path().join("pages").join(page).exists(), "{page}");
    }
}

#[test]
fn pipes_get_no_colour_or_progress() {
    let folder = tempdir().unwrap();
    let (out, err) = expect(folder.path(), &["verify", "conv1d", "--extent", "quick"], 0);
    assert!(!out.contains('\u{1b}') && err.is_empty(), "{err}");
    let width = out.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(width <= 80, "{width} columns in a pipe\n{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_fails_and_closed_pipe_succeeds() {
    let folder = tempdir().unwrap();
    for arguments in [
        &["explain"][..],
        &["explain", "--json"],
        &["plan", "nonsense ==", "--json"],
        &["--help"],
        &["verify", "--help"],
        &["completions", "bash"],
        &["man"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(folder.path(), arguments).stdout(full).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
        assert!(err.starts_with("error: ") && !err.contains("panicked"), "{arguments:?}: {err}");
    }
    // The reader of the pipe is closed, as `head` does.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(folder.path(), &["explain"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    // Neither stream can be written, and the exit status still reports the error.
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = command(folder.path(), &["doctor", "--venv", "absent", "--json"])
        .stdout(full())
        .stderr(full())
        .status();
    assert_eq!(status.unwrap().code(), Some(2));
}

#[test]
fn usage_errors_list_values_and_suggest_near_ones() {
    let folder = tempdir().unwrap();
    for (arguments, says, never) in [
        (&["bogus"][..], "unrecognized subcommand 'bogus'", "logits"),
        (&["chek"], "'check'", "-- chek"),
        (&["run", "m", "-p", "x", "-n", "-5"], "expected a whole number, 1 or more", "-- -5"),
        (&["run", "m", "-p", "x", "-n", "0"], "expected a whole number, 1 or more", "-- 0"),
        (&["fit", "m", "--context", "-1"], "expected a whole number, 1 or more", "-- -1"),
        (&["fit", "m", "--batch", "99999999999999999999"], "expected a smaller number", "tip"),
        (&["bench", "--N", "64,x"], "expected a whole number, 1 or more", "tip"),
        (&["run", "m", "--ids", "1,,2"], "expected token ids, such as 1,2,3", "integer"),
        (&["run", "m", "-p", "x", "--stop-ids", "99999999999"], "expected token ids", "in 0..="),
        (&["run", "m", "-p", "x", "--seed", "-1"], "expected a whole number, 0 or more", "digit"),
        (&["run", "m", "-p", "x", "--temperature", "x"], "expected a number, such as 0.7", "float"),
        (&["check", "--quik"], "'--quick'", "-- --quik"),
        (&["check", "--zzz"], "unexpected argument '--zzz'", "a similar argument"),
        (&["verify", "--backend", "metal"], "[possible values: auto, cpu, cuda]", "tip"),
        (&["bench", "--backend", "metal"], "[possible values: auto, cpu, cuda]", "tip"),
    ] {
        let (out, err) = expect(folder.path(), arguments, 2);
        assert!(out.is_empty() && err.contains(says), "{arguments:?}: no `{says}` in {err}");
        assert!(!err.contains(never), "{arguments:?}: `{never}` in {err}");
        let document = json(folder.path(), arguments, 2);
        assert!(!document["error"].as_str().unwrap().is_empty(), "{document}");
    }
    for (arguments, sentence, hint) in [
        (&["explain", ""][..], "the text is empty", "a file with it"),
        (&["run", "m/config.json", "-p", "x"], "m/config.json/config.json", "not one of its files"),
        (&["check", "--report", "file"], "file/run.json", "name a folder, not a file"),
        (&["run", "n", "-p", "x"], "n/config.json: is a directory", "name a file, not a folder"),
        (&["bench", "nope"], "there is no benchmark `nope`", "attention, kda"),
        (&["bench", "attention", "--B", "100000000", "--N", "100000000"], "are free", "--B, --H"),
        (&["synth", "granite-moe-mini", "file/out"], "file is not a folder", "name a folder"),
        (&["synth", "granite-moe-mini", "out", "--layers", "99"], "99 were asked for", "1 to 4"),
        (&["convert", "m", "file/out", "--to", "hf"], "file is not a folder", "name a folder"),
    ] {
        std::fs::create_dir_all(folder.path().join("m")).unwrap();
        std::fs::create_dir_all(folder.path().join("n/config.json")).unwrap();
        std::fs::write(folder.path().join("m/config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        refuses(folder.path(), arguments, &[sentence]);
        let (_, err) = expect(folder.path(), arguments, 2);
        assert!(err.lines().nth(1).unwrap().contains(hint), "no `{hint}` in {err}");
    }
    // Text may begin with a hyphen.
    refuses(folder.path(), &["run", "absent", "-p", "- a list"], &["absent"]);
}

/// With a closed standard input the program neither prompts nor waits.
#[test]
fn closed_stdin_gets_no_prompt() {
    let folder = tempdir().unwrap();
    let output = command(folder.path(), &["explain", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
