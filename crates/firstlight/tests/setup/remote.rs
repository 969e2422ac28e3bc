//! `firstlight remote`: the files that are copied and fetched, the commands that run, and faults.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod faults;
mod world;

use crate::tools::done;
use std::process::Command;
use std::time::{Duration, Instant};
use world::{ADDRESS, World, files};

/// A script for [`World::act`] that writes one run folder.
const WRITE: &str = "mkdir -p firstlight-runs && cp -r \"$HOME/made\" firstlight-runs/20261121T210000Z-pod && echo checked";

fn with_run() -> World {
    let world = World::new();
    std::fs::rename(world.run("made"), world.path("home/made")).unwrap();
    std::fs::remove_dir_all(world.there("")).unwrap();
    world.act(WRITE);
    world
}

#[test]
fn r3_10_dry_run_shows_steps_and_only_artefacts_are_fetched() {
    let world = with_run();
    std::fs::write(world.path("here/plan.toml"), "a = 1\n").unwrap();
    let (out, _) = world.remote(&["--dry-run", "--send", "plan.toml", "--", "check", "--quick"], 0);
    for words in
        ["plan.toml (1 KiB): copied", "run: firstlight check --quick", "no file is overwritten"]
    {
        assert!(out.contains(words), "{out}");
    }
    assert!(!world.there("").exists(), "a dry run made a folder there");
    assert_eq!(world.calls(), 1);
    // Without a terminal there is no confirmation, and nothing is done.
    let (_, err) = world.remote(&["--", "check"], 2);
    assert!(err.contains("--yes, or use --dry-run") && !world.there("").exists(), "{err}");

    let (out, err) = world.stand_in(&["--send", "plan.toml"], 0);
    assert!(out.contains("checked\n") && err.contains("plan.toml (1 KiB): copied"), "{out}{err}");
    let run = "20261121T210000Z-pod";
    assert!(out.contains(&format!("fetched: firstlight-runs/{run}")), "{out}");
    // Files that the run does not list are not fetched.
    let fetched = ["logs/run.log", "parity.csv", "report.md", "run.json"];
    assert_eq!(files(&world.path("here/firstlight-runs").join(run)), fetched);
    assert_eq!(std::fs::read_to_string(world.there("plan.toml")).unwrap(), "a = 1\n");

    // The program and the plan are recognized by their hashes and not copied again; a different plan of the same name is refused.
    world.act("exit 1");
    let (_, err) = world.stand_in(&["--send", "plan.toml"], 1);
    assert_eq!(err.matches("already there, by its hash").count(), 2, "{err}");
    std::fs::write(world.path("here/plan.toml"), "a = 2\n").unwrap();
    let (_, err) = world.stand_in(&["--send", "plan.toml"], 2);
    assert!(err.contains("plan.toml differs from the local file and is not overwritten"), "{err}");
    assert_eq!(std::fs::read_to_string(world.there("plan.toml")).unwrap(), "a = 1\n");
    // A different local run of the same name is not overwritten.
    std::fs::write(world.path("here/firstlight-runs").join(run).join("run.json"), "mine").unwrap();
    let (_, err) = world.remote(&["--fetch"], 2);
    assert!(err.contains("differs from the run on"), "{err}");
    assert_eq!(
        std::fs::read_to_string(world.path("here/firstlight-runs").join(run).join("run.json"))
            .unwrap(),
        "mine"
    );
}

#[test]
fn r3_11_stop_warns_of_files_that_only_exist_there() {
    let world = World::new();
    world.run("20261121T200000Z-pod");
    std::fs::create_dir(world.there(".venv")).unwrap();
    let (out, _) = world.remote(&[], 1);
    for words in [
        "only on the machine: firstlight-runs/20261121T200000Z-pod\n",
        "only on the machine: .venv\n",
        "before you stop or terminate it: this is stored on",
    ] {
        assert!(out.contains(words), "{out}");
    }
    let (out, _) = world.remote(&["--fetch", "--dry-run"], 1);
    assert!(
        out.contains("only on the machine: firstlight-runs/")
            && !world.path("here/firstlight-runs").exists()
    );
    let account = world.json(&["--fetch"], 0);
    assert_eq!(account["fetched"], serde_json::json!(["firstlight-runs/20261121T200000Z-pod"]));
    assert_eq!(account["only_there"], serde_json::json!([".venv"]));
    let (out, _) = world.remote(&[], 0);
    assert!(
        !out.contains("firstlight-runs") && out.contains("only on the machine: .venv"),
        "{out}"
    );
    // Before a command writes to the container's own layer, a warning says that a stop would lose the files.
    world.program("there/cat", "#!/bin/sh\n[ \"$1\" != /proc/self/mounts ] || exec echo overlay / overlay rw 0 0\nexec /bin/cat \"$@\"\n");
    let (out, _) = world.remote(&["--dry-run", "--", "doctor"], 0);
    assert!(
        out.contains("warning: output of the command is stored on the container's own layer"),
        "{out}"
    );
    assert!(world.json(&["--dry-run", "--", "doctor"], 0)["lost_by_a_stop"].as_bool().unwrap());
}

#[test]
fn r4_21_stored_files_do_not_contain_the_address() {
    let world = World::new();
    // The real program is stopped during a check; the partial run is fetched and marked as incomplete.
    let python = ["-I", "-c", "import sys; print(sys.executable, end='')"];
    let python = String::from_utf8(done(Command::new("python3").args(python)).stdout).unwrap();
    let check = ["check", "--full", "--python", &python, "--peer-path", "203.0.113.7:22014"];
    let began = Instant::now();
    let (_, err) = world.remote(&[&["--yes", "--limit", "3", "--"], check.as_slice()].concat(), 2);
    assert!(
        err.contains("took longer than 3 s on") && err.contains("unwritten results are lost"),
        "{err}"
    );
    assert!(began.elapsed() < Duration::from_secs(30));
    let runs = world.path("here/firstlight-runs");
    let fetched = files(&runs);
    assert!(fetched.iter().any(|file| file.ends_with("/INCOMPLETE")), "{fetched:?}");
    let mut marked = false;
    for file in &fetched {
        let text = std::fs::read_to_string(runs.join(file)).unwrap();
        // The port is searched with its colon, because a number of free bytes may have the same digits.
        assert!(!text.contains(ADDRESS) && !text.contains(":22014"), "{file}: {text}");
        marked |= text.contains("--peer-path\",\n    \"[address]\"");
    }
    assert!(marked, "{fetched:?}");
    // The JSON output does not contain the address either.
    let account = world.json(&["--fetch"], 0);
    assert!(!account.to_string().contains(ADDRESS), "{account}");
}
