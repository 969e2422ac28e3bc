//! Tests the runner on a small action, and the steps of action.yml on generated wheels and releases.

use super::*;
use crate::dist::wheel::{self, Package};
use crate::dist::{File, checksum};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;

const ACTION: &str = r#"
inputs:
  word: { default: there }
runs:
  using: composite
  steps:
    - name: first
      id: first
      shell: bash
      env: { WORD: "<${{ inputs.word }}>" }
      run: |
        mkdir -p bin && printf '#!/bin/sh\necho "$1" > said\n' > bin/say && chmod +x bin/say
        echo "$PWD/bin" >> "$GITHUB_PATH"
        echo "word=$WORD" >> "$GITHUB_OUTPUT"
    - name: other
      uses: someone/something@v1
    - name: second
      shell: bash
      env: { WORD: "${{ steps.first.outputs.word }}" }
      run: say "$WORD"
"#;

#[test]
fn later_steps_get_outputs_and_path_of_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut runner = Runner::new(ACTION, &[("word", "a b")], &[], folder.path()).unwrap();
    runner.steps().unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("said")).unwrap(), "<a b>\n");
}

#[test]
fn rejects_invalid_actions() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Runner::new(ACTION, &[("words", "x")], &[], folder.path()).is_err());
    for (from, to, expect) in [
        ("run: say", "run: exit 3 #", "step `second`: exit status: 3"),
        ("steps.first.outputs.word", "steps.first.outputs.wrd", "has no value"),
        ("run: say \"$WORD\"", "run: echo ${{ inputs.word }}", "wanted it in `env`"),
    ] {
        let text = ACTION.replace(from, to);
        let mut runner = Runner::new(&text, &[], &[], folder.path()).unwrap();
        let error = format!("{:#}", runner.steps().unwrap_err());
        assert!(error.contains(expect), "{error}");
    }
}

/// The text of action.yml.
fn ours() -> String {
    let root = crate::cargo::workspace_root().unwrap();
    fs::read_to_string(root.join("action.yml")).unwrap()
}

/// A wheel whose program does nothing.
fn small_wheel(folder: &Path) -> PathBuf {
    let files = [File::program("firstlight", b"#!/bin/sh\n".to_vec())];
    let package =
        Package { version: "1.2.3", summary: "a test", description: "", repository: None };
    let tag = match (cfg!(target_os = "macos"), std::env::consts::ARCH) {
        (true, _) => "macosx_11_0_arm64".to_owned(),
        (_, processor) => format!("manylinux_2_17_{processor}"),
    };
    let path = folder.join(wheel::name("1.2.3", &tag));
    wheel::write(&path, &package, &tag, &files, 1_763_700_000).unwrap();
    path
}

/// Runs the action; its status output, or the error of the step that failed.
fn status_of(inputs: &[(&str, &str)], context: &[(&str, &str)]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [&[("upload", "false")][..], inputs].concat();
    let mut runner = Runner::new(&ours(), &inputs, context, folder.path()).unwrap();
    runner.steps().map_err(|error| format!("{error:#}"))?;
    Ok(runner.outputs["steps.run.outputs.status"].clone())
}

/// Runs the two steps after the installation with a program that ends with `status`; the status output, or the step's error.
fn judged(status: u8, fail_on_findings: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [("fail-on-findings", fail_on_findings)];
    let mut runner = Runner::new(&ours(), &inputs, &[], folder.path()).unwrap();
    let program = folder.path().join("firstlight");
    crate::cross::write_program(&program, &format!("exit {status}")).unwrap();
    runner.path = format!("{}:{}", folder.path().display(), runner.path);
    let steps = runner.action["runs"]["steps"].as_sequence().unwrap().clone();
    for name in ["Run firstlight", "Judge the findings"] {
        let step = steps.iter().find(|step| step["name"] == name).unwrap();
        runner.step(step).map_err(|error| format!("{name}: {error:#}"))?;
    }
    Ok(runner.outputs["steps.run.outputs.status"].clone())
}

#[test]
fn findings_fail_the_job_only_if_asked_and_errors_always() {
    for (status, tolerated, by_default) in [
        (0, Ok("0"), Ok("0")),
        (1, Ok("1"), Err("found errors or warnings")),
        // An unclear check: nothing is known to be wrong.
        (3, Ok("3"), Err("could not tell")),
        (2, Err("Run firstlight: exit status: 2"), Err("Run firstlight: exit status: 2")),
        (101, Err("exit status: 101"), Err("exit status: 101")),
    ] {
        for (fail, expect) in [("false", tolerated), ("true", by_default)] {
            let ended = judged(status, fail);
            match (&ended, expect) {
                (Ok(status), Ok(expect)) => assert_eq!(status, expect),
                (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
                _ => panic!("status {status}, fail-on-findings {fail}: {ended:?}"),
            }
        }
    }
}

#[test]
fn a_package_name_is_never_installed() {
    for wheel in ["firstlight", "firstlight==0.2.0", "git+https://example.org/x", "http://a/b.whl"]
    {
        let error = status_of(&[("wheel", wheel)], &[]).unwrap_err();
        assert!(error.contains("`Get the wheel`: exit status: 2"), "{wheel}: {error}");
        assert!(error.contains(&format!("'{wheel}' is neither")), "{wheel}: {error}");
    }
    let error = status_of(&[("wheel", "absent.whl")], &[]).unwrap_err();
    assert!(error.contains("there is no file absent.whl"), "{error}");
    // A checkout, and an action named by a branch, have no release.
    for (reference, shown) in
        [("", "'a local path' is no release"), ("main", "'main' is no release")]
    {
        let error = status_of(&[], &[("github.action_ref", reference)]).unwrap_err();
        assert!(error.contains(shown), "{error}");
    }
}

/// Serves the files of a folder by their last path segment while the test runs; returns the address.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let path = first.split(' ').nth(1).unwrap();
            let is_release = path.starts_with("/owner/name/releases/download/v1.2.3/");
            let file = folder.join(path.rsplit('/').next().unwrap());
            let (status, body) = match std::fs::read(file) {
                Ok(body) if is_release => ("200 OK", body),
                _ => ("404 Not Found", Vec::new()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
        }
    });
    address
}

#[test]
fn a_release_tag_gets_the_wheel_of_that_release() {
    let folder = tempfile::tempdir().unwrap();
    let wheel = small_wheel(folder.path());
    checksum(&wheel).unwrap();
    let sum = fs::read_to_string(
        wheel.with_file_name(format!("{}.sha256", wheel.file_name().unwrap().to_string_lossy())),
    )
    .unwrap();
    let sums = folder.path().join("SHA256SUMS");
    let other = format!("{}  firstlight-1.2.3-py3-none-manylinux_2_17_s390x.whl\n", "0".repeat(64));
    let server = serve(folder.path().to_owned());
    let from = |tag: &str| {
        status_of(
            &[],
            &[
                ("github.action_ref", tag),
                ("github.action_repository", "owner/name"),
                ("github.server_url", &server),
            ],
        )
    };
    fs::write(&sums, format!("{other}{sum}")).unwrap();
    assert_eq!(from("v1.2.3"), Ok("0".to_owned()));
    let error = from("v9.9.9").unwrap_err();
    assert!(error.contains("v9.9.9 is no release with wheels"), "{error}");
    fs::write(&sums, &other).unwrap();
    assert!(from("v1.2.3").unwrap_err().contains("has no wheel for"));
    fs::write(&sums, sum.replacen(&sum[..8], "00000000", 1)).unwrap();
    assert!(from("v1.2.3").unwrap_err().contains("does not have the checksum of its release"));
}

/// The jobs of the book's page on installation: the inputs that each gives to this action, and the reference after `@`.
fn documented() -> Vec<(BTreeMap<String, String>, String)> {
    let root = crate::cargo::workspace_root().unwrap();
    let page = fs::read_to_string(root.join("docs/book/src/install.md")).unwrap();
    let text = |value: &Value| match value {
        Value::Bool(value) => value.to_string(),
        value => value.as_str().unwrap().to_owned(),
    };
    let mut found = Vec::new();
    for block in page.split("```yaml\n").skip(1) {
        let workflow: Value = yaml_serde::from_str(block.split("\n```").next().unwrap()).unwrap();
        for (_, job) in workflow["jobs"].as_mapping().unwrap() {
            for step in job["steps"].as_sequence().unwrap() {
                let uses = step["uses"].as_str().unwrap();
                let Some((_, reference)) = uses.split_once("/firstlight@") else { continue };
                let inputs = step["with"].as_mapping().into_iter().flatten();
                let inputs = inputs.map(|(name, value)| (text(name), text(value))).collect();
                found.push((inputs, reference.to_owned()));
            }
        }
    }
    found
}

/// Each documented job names inputs that the action has, and gets its wheel without a package's name: by `cargo xtask wheel` of the
/// action's commit, which a stand-in for cargo answers here.
#[test]
fn documented_jobs_get_a_wheel() {
    let jobs = documented();
    assert!(!jobs.is_empty());
    for (inputs, reference) in jobs {
        let folder = tempfile::tempdir().unwrap();
        let programs = tempfile::tempdir().unwrap();
        let wheel = small_wheel(programs.path());
        // The last argument of `cargo xtask wheel --target T -o FOLDER`.
        let script = format!(
            "echo \"$@\" > {0}/asked; for last; do :; done; cp {1} \"$last\"",
            programs.path().display(),
            wheel.display()
        );
        crate::cross::write_program(&programs.path().join("cargo"), &script).unwrap();
        let given: Vec<(&str, &str)> =
            inputs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let context = [("github.action_ref", reference.as_str())];
        let mut runner = Runner::new(&ours(), &given, &context, folder.path()).unwrap();
        runner.path = format!("{}:{}", programs.path().display(), runner.path);
        runner.steps().unwrap();
        let asked = fs::read_to_string(programs.path().join("asked")).unwrap();
        assert!(asked.starts_with("xtask wheel --target "), "{asked}");
        let made = &runner.outputs["steps.wheel.outputs.wheel"];
        assert!(made.ends_with(".whl") && Path::new(made).is_file(), "{made}");
    }
}
