//! Machines that are unreachable, have another platform, or disconnect midway: each is a one-line error within seconds and
//! leaves no partial file under its final name.

use super::world::{World, files};
use std::time::{Duration, Instant};

/// Asserts an error with these words within seconds.
fn fails(world: &World, options: &[&str], words: &[&str]) {
    let began = Instant::now();
    let (_, err) = world.stand_in(options, 2);
    let error = err.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    for word in words {
        assert!(error.contains(word), "no `{word}` in {err}");
    }
    assert!(err.contains("hint: "), "{err}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn r3_10_reports_unreachable_machine() {
    let world = World::new();
    world.fault(
        "echo 'ssh: connect to host 203.0.113.7 port 22014: Connection refused' >&2; exit 255",
    );
    fails(&world, &[], &["root@203.0.113.7 cannot be reached: ssh: connect", "Connection refused"]);
    world.fault("sleep 60");
    fails(&world, &["--connect-timeout", "0.5"], &["sent nothing for 0.5 s"]);
    world.fault("sh -c \"$1\" | head -n 5; exit 0");
    fails(&world, &[], &["its answer was truncated"]);
    world.fault("echo 'sh: command not found' >&2; exit 127");
    fails(&world, &[], &["cannot be asked", "command not found"]);
    assert!(!world.there("").exists());
}

#[test]
fn r3_10_program_for_another_machine_is_not_copied() {
    let world = World::new();
    world.program(
        "there/uname",
        "#!/bin/sh\ncase $1 in -s) echo Linux ;; -m) echo riscv64 ;; *) echo pod ;; esac\n",
    );
    fails(
        &world,
        &[],
        &["pod runs programs for linux on riscv64, and this firstlight is for linux on"],
    );
    // The name of the file does not count.
    std::fs::write(world.path("here/firstlight-riscv64"), "#!/bin/sh\n").unwrap();
    let arguments = ["--binary", "firstlight-riscv64", "--yes", "--", "check"];
    let (_, err) = world.remote(&arguments, 2);
    assert!(err.contains("not a known executable format"), "{err}");
    world.program("there/df", "#!/bin/sh\necho head\necho '/dev/vda1 1000000 999990 2 100% /'\n");
    std::fs::remove_file(world.path("there/uname")).unwrap();
    fails(&world, &[], &["bytes have to be copied, and", "has 2048 free"]);
    assert!(!world.there("").exists());
}

#[test]
fn r3_10_truncated_copy_is_not_installed() {
    let world = World::new();
    // The connection ends midway, with or without a message of ssh.
    let cut = "case $1 in *part=*) head -c 4000 | sh -c \"$1\"; END ;; esac";
    world.fault(
        &cut.replace("END", "echo 'client_loop: send disconnect: Broken pipe' >&2; exit 255"),
    );
    fails(
        &world,
        &[],
        &["was not copied completely, and no file of that name was created", "Broken pipe"],
    );
    assert_eq!(files(&world.there("")), [""; 0]);
    world.fault(&cut.replace("END", "exit"));
    fails(&world, &[], &["4000 bytes came, of another hash"]);
    assert_eq!(files(&world.there("")), [""; 0]);
    world.fault("case $1 in *part=*) tr 'f' 'F' | sh -c \"$1\"; exit ;; esac");
    fails(&world, &[], &["of another hash"]);
    assert_eq!(files(&world.there("")), [""; 0]);
    // Without the fault the copy succeeds.
    world.fault("");
    world.act("exit 0");
    world.stand_in(&[], 0);
    assert_eq!(files(&world.there("bin")).len(), 1);
}

#[test]
fn r3_10_program_that_does_not_start_is_no_finding() {
    let world = World::new();
    let says = "echo \"./firstlight: version 'GLIBC_2.99' not found\" >&2; exit 1";
    world.fault(&format!("case $1 in *--version*) {says} ;; esac"));
    fails(&world, &[], &["cannot run the firstlight that was copied", "GLIBC_2.99"]);
}

#[test]
fn r3_11_killed_or_hanging_command_is_reported() {
    let world = World::new();
    world.act("kill -9 $$");
    fails(&world, &[], &["was ended by signal 9 on"]);
    world.act("exit 2");
    fails(&world, &[], &["the command failed on", "exit status 2"]);
    world.fault("case $1 in *command=*) exit 255 ;; esac");
    fails(&world, &[], &["the connection to", "was lost"]);
    // The command ends with its connection.
    world.fault("");
    world.act("echo $$ > \"$HOME/pid\"; exec sleep 60");
    fails(&world, &["--limit", "0.5"], &["took longer than 0.5 s"]);
    let pid = std::fs::read_to_string(world.path("home/pid")).unwrap();
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "{pid} is still there");
}

#[test]
fn r3_10_rejects_truncated_or_edited_run() {
    let world = World::new();
    let run = world.run("20261121T200000Z-pod");
    let refused = |words: &str| {
        let (_, err) = world.remote(&["--fetch"], 2);
        assert!(err.contains(words) && err.contains("hint: "), "{err}");
        assert_eq!(files(&world.path("here")), [""; 0]);
    };
    std::fs::write(run.join("parity.csv"), "op,case\nmore\n").unwrap();
    refused("parity.csv of run 20261121T200000Z-pod is not the file that the run wrote");
    world.run("20261121T200000Z-pod");
    world.fault("case $1 in *\"wc -c\"*parity*) sh -c \"$1\" | head -c 12; exit 0 ;; esac");
    refused("the files of a run were truncated in transit");
    world.fault("");
    let manifest = std::fs::read_to_string(run.join("run.json")).unwrap();
    std::fs::write(run.join("run.json"), manifest.replace("parity.csv", "../../../act")).unwrap();
    refused("lists `../../../act`, which is not a path inside it");
    world.run("20261121T200000Z-pod");
    world.remote(&["--fetch"], 0);
}
