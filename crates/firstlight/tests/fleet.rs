//! `firstlight check --fleet` on one host under Open MPI's mpirun, Slurm's srun and the environment variables of torchrun.
//! A test whose launcher is not installed prints that it did not run.
#![cfg(target_os = "linux")] // The stand-ins are found by LD_LIBRARY_PATH, and Slurm needs Linux.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::fake_driver::with_gpus;
use support::slurm::{Slurm, program};
use tempfile::tempdir;

/// Runs the fleets one after the other, because four ranks fill a small machine.
fn lock_machine() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "{what} did not come within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("fleet.json")).unwrap()).unwrap()
}

/// Titles of the findings of a rule.
fn titles(report: &Value, rule: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let of_rule = findings.filter(|finding| finding["rule"] == rule);
    of_rule.map(|finding| finding["title"].as_str().unwrap().to_owned()).collect()
}

/// The command lines of the `check --fleet` processes that name `folder`.
fn processes_about(folder: &Path) -> Vec<String> {
    let words = folder.display().to_string();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains("check --fleet") && line.contains(&words)).collect()
}

#[test]
fn mpirun_ranks_with_injected_faults_are_named() {
    let _alone = lock_machine();
    let Some(mpirun) = program("mpirun") else {
        return eprintln!(
            "SKIP, which is no pass: there is no mpirun here; `apt-get install openmpi-bin`"
        );
    };
    let folder = tempdir().unwrap();
    let free = ((256_u64 + 8) << 20).to_string();
    // Each rank uses one of the four GPUs. The GPU of rank 1 flips a bit; the GPU and the processor of rank 2 have half the speed.
    let faults = [
        ("FAKE_CUDA_GPUS", "4"),
        ("FAKE_NVML_COUNT", "4"),
        ("FAKE_NVML_GPU", "9.0 stand-in"),
        ("FAKE_CUDA_FREE", &free),
        ("FAKE_CUDA_FILLS", "1"),
        ("FAKE_CUDA_WRONG", "1"),
        ("FAKE_CUDA_SLOW", "2"),
    ];
    let out = folder.path().join("out");
    let one = with_gpus(folder.path(), &[], &faults);
    // Rank 3 loads another driver library: a copy with one more byte and the same version.
    let (_, path) = one.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH").unwrap();
    let path = path.unwrap().to_str().unwrap().to_owned();
    let library = path
        .split(':')
        .map(|of| Path::new(of).join("libcuda.so.1"))
        .find(|file| file.exists())
        .unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut bytes = std::fs::read(library).unwrap();
    bytes.push(0);
    std::fs::write(other.join("libcuda.so.1"), bytes).unwrap();
    let clock = folder.path().join("clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/slow_clock.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-o"])
        .arg(&clock)
        .arg(source);
    assert!(cc.status().unwrap().success());
    let rank = folder.path().join("rank.sh");
    let (program, out_words) = (env!("CARGO_BIN_EXE_firstlight"), out.display());
    script(
        &rank,
        &format!(
            "[ \"$OMPI_COMM_WORLD_RANK\" != 2 ] || export LD_PRELOAD={}\n\
             [ \"$OMPI_COMM_WORLD_RANK\" != 3 ] || export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH\n\
             exec {program} check --fleet {out_words} --quick --op rmsnorm --memory-budget 0\n",
            clock.display(),
            other.display()
        ),
    );
    let mut command = Command::new(mpirun);
    command
        .args(["--oversubscribe", "--bind-to", "none", "-n", "4"])
        .arg(rank)
        .current_dir(folder.path());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (name, value) in one.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout);
    let gathered = out.join("fleet.json").exists();
    assert_eq!((output.status.code(), gathered), (Some(1), true), "{said}\n{told}");
    let report = report(&out);
    assert_eq!(report["launcher"], "Open MPI");
    for (rule, words) in [
        ("gpu-bits-differ", "GPU 1 of rank 1 ("),
        ("gpu-slower", "GPU 2 of rank 2 ("),
        ("stack-differs", "rank 3 ("),
        ("stack-differs", "rank 2 ("),
    ] {
        let found = titles(&report, rule);
        let all = if rule == "stack-differs" { 2 } else { 1 };
        let named = found.iter().filter(|title| title.starts_with(words)).count();
        assert!(named == 1 && found.len() == all, "{rule}: {found:?}\n{told}");
    }
    let slow = titles(&report, "processor-slower");
    assert!(
        slow.iter().any(|title| title.starts_with("the processor of rank 2 (")),
        "{slow:?}\n{told}"
    );
    assert!(
        titles(&report, "gpu-bits-differ")[0]
            .contains("different bits than most of the 4 of its kind")
    );
    // The library is named by its path, and nothing else of the stack differs.
    let stack = report["stack"].as_array().unwrap();
    let names: Vec<&str> = stack.iter().map(|differs| differs["what"].as_str().unwrap()).collect();
    // The slow clock of rank 2 is a preloaded library.
    assert!(names.contains(&"loaded: clock.so"), "{names:?}");
    let others = names.iter().filter(|name| **name != "loaded: clock.so");
    assert!(names.len() > 1 && others.clone().all(|name| name.contains("libcuda")), "{names:?}");
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains(&other.join("libcuda.so.1").display().to_string()), "{text}");
    // Every rank has a complete run folder and a separate GPU.
    let mut indices = Vec::new();
    for number in 0..4 {
        let rank = out.join(format!("rank-{number}"));
        let run: Value =
            serde_json::from_slice(&std::fs::read(rank.join("run.json")).unwrap()).unwrap();
        assert_eq!(run["state"], "complete");
        let gpus: Value =
            serde_json::from_slice(&std::fs::read(rank.join("gpus.json")).unwrap()).unwrap();
        let gpus = gpus["gpus"].as_array().unwrap();
        assert_eq!(gpus.len(), 1, "{gpus:?}");
        indices.push(gpus[0]["index"].as_u64().unwrap());
        // The CPU kernels are real and pass.
        assert!(report["ranks"][number]["passed"].as_u64().unwrap() > 0, "{report}");
    }
    assert_eq!(indices, [0, 1, 2, 3]);
    assert!(!out.join("INCOMPLETE").exists());
    assert_eq!(told.lines().filter(|line| line.starts_with("report: ")).count(), 1, "{told}");
    // The report can be rendered again from its files.
    let before = std::fs::read_to_string(out.join("report.md")).unwrap();
    support::expect(folder.path(), &["check", "--report", "out"], 1);
    assert_eq!(std::fs::read_to_string(out.join("report.md")).unwrap(), before);
}

#[test]
fn killed_srun_rank_ends_the_others_and_is_named() {
    let _alone = lock_machine();
    let (folder, cluster) = (tempdir().unwrap(), tempdir().unwrap());
    let slurm = match Slurm::start(cluster.path(), "") {
        Ok(slurm) => slurm,
        Err(why) => return eprintln!("{why}"),
    };
    let out = folder.path().join("out");
    let rank = folder.path().join("rank.sh");
    let (program, out_words) = (env!("CARGO_BIN_EXE_firstlight"), out.display());
    script(
        &rank,
        &format!(
            "echo $$ >pid.$SLURM_PROCID\nexec {program} check --fleet {out_words} --quick 2>said.$SLURM_PROCID\n"
        ),
    );
    let mut command = Command::new(support::slurm::program("srun").unwrap());
    command.args(["-n4", "--overcommit"]).arg(rank).current_dir(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    slurm.for_command(&mut command);
    let mut srun = command.spawn().unwrap();
    // All ranks are connected once rank 0 has started its check.
    until("a check", Duration::from_secs(60), || {
        out.join("rank-0/run.json").exists().then_some(())
    });
    let pid = std::fs::read_to_string(folder.path().join("pid.2")).unwrap();
    assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
    let killed = Instant::now();
    let status = until("the end", Duration::from_secs(10), || srun.try_wait().unwrap());
    let took = killed.elapsed();
    assert!(!status.success() && took < Duration::from_secs(10), "{status} {took:?}");
    for number in [0, 1, 3] {
        let said = std::fs::read_to_string(folder.path().join(format!("said.{number}"))).unwrap();
        let line = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(line.contains("rank 2 (") && line.contains("was lost"), "rank {number}: {said}");
    }
    // No process continues, not even the check process of the killed rank.
    until("the end of all", Duration::from_secs(5), || {
        processes_about(&out).is_empty().then_some(())
    });
    assert!(out.join("INCOMPLETE").exists());
    let ended = titles(&report(&out), "rank-ended");
    assert!(ended.len() == 1 && ended[0].starts_with("the check of rank 2 ("), "{ended:?}");
}

/// Starts one of two ranks with the environment variables of torchrun.
fn start_rank(folder: &Path, rank: u32, port: u16, arguments: &[&str]) -> Child {
    let mut command = support::command(folder, &["check", "--quick", "--op", "rmsnorm"]);
    command.args(arguments).env("FIRSTLIGHT_FLEET_TOKEN", "a secret of this test");
    let number = rank.to_string();
    for (name, value) in [
        ("RANK", number.as_str()),
        ("LOCAL_RANK", &number),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
    ] {
        command.env(name, value);
    }
    command.args(["--fleet", "out", "--fleet-port", &port.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn ignores_foreign_connections_and_names_a_hanging_rank() {
    let _alone = lock_machine();
    let folder = tempdir().unwrap();
    let port = free_port();
    let leader = start_rank(folder.path(), 0, port, &[]);
    // Two connections come before the other rank: one with an unknown protocol, and a forger who does not know the secret.
    let mut stranger =
        until("rank 0", Duration::from_secs(20), || TcpStream::connect(("127.0.0.1", port)).ok());
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut forger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let hello = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "rank": 1, "size": 2, "local_rank": 1, "host": "elsewhere", "boot": "",
        "gpus": [], "drawn": "00", "proof": "00".repeat(32),
    });
    let hello = hello.to_string();
    let length = u32::try_from(hello.len()).unwrap().to_le_bytes();
    forger.write_all(&[&[2], &length[..], hello.as_bytes()].concat()).unwrap();
    let mut heard = Vec::new();
    // The forger gets the challenge, and then end of file or a reset.
    let _ = forger.read_to_end(&mut heard);
    assert!(heard.len() <= 5 + 32, "{heard:?}");
    let follower = start_rank(folder.path(), 1, port, &[]);
    let out = folder.path().join("out");
    until("a check", Duration::from_secs(20), || {
        out.join("rank-0/run.json").exists().then_some(())
    });
    let pid = follower.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let stopped = Instant::now();
    let output = leader.wait_with_output().unwrap();
    let took = stopped.elapsed();
    // The stopped rank is continued, detects that it is alone and exits.
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    let other = follower.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), other.status.code()),
        (Some(2), Some(2)),
        "{}",
        said(&output)
    );
    assert!(took < Duration::from_secs(10), "{took:?}");
    let words = said(&output);
    assert!(
        words.contains("error: rank 1 (") && words.contains("it sent nothing for 5 s"),
        "{words}"
    );
}

#[test]
fn work_beyond_the_budget_is_not_run_and_not_passed() {
    let _alone = lock_machine();
    let folder = tempdir().unwrap();
    let started = Instant::now();
    let output = support::run(folder.path(), &["check", "--quick", "--budget", "6", "-o", "run"]);
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    // The exit status is 3 if all completed work passed, and 1 if this machine has findings.
    let code = output.status.code();
    assert!([Some(1), Some(3)].contains(&code), "{}", said(&output));
    let run: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("run/run.json")).unwrap())
            .unwrap();
    assert!(folder.path().join("run/report.html").exists());
    let left = run["not_run"].as_array().unwrap().iter();
    let why = "the time that this run may take was spent";
    let left: Vec<&Value> = left.filter(|left| left["why"] == why).collect();
    let named =
        |words: &str| left.iter().any(|left| left["what"].as_str().unwrap().contains(words));
    // CPU kernels are timed last.
    assert!(named("timings of firstlight"), "{run}");
}

#[test]
fn slurm_health_check_drains_failing_node() {
    let _alone = lock_machine();
    let (folder, cluster) = (tempdir().unwrap(), tempdir().unwrap());
    let at = |name: &str| folder.path().join(name);
    let emit = [
        "check",
        "--emit",
        "slurm-healthcheck",
        "--op",
        "rmsnorm",
        "--memory-budget",
        "0",
        "-o",
        "check.sh",
    ];
    support::expect(folder.path(), &emit, 0);
    std::fs::set_permissions(at("check.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(at("bin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_firstlight"), at("bin/firstlight")).unwrap();
    // slurmd passes on almost no environment variables. The stand-in computes nothing, so no GPU kernel passes.
    let one = with_gpus(
        folder.path(),
        &[],
        &[("FAKE_NVML_GPU", "9.0 stand-in"), ("FAKE_NVML_COUNT", "1"), ("FAKE_CUDA_FILLS", "1")],
    );
    let mut set = String::new();
    for (name, value) in one.get_envs() {
        if let Some(value) = value {
            set += &format!("export {}='{}'\n", name.display(), value.display());
        }
    }
    let (here, conf) = (folder.path().display(), cluster.path().join("slurm.conf"));
    script(
        &at("wrapper.sh"),
        &format!(
            "{set}export PATH={here}/bin:$PATH FIRSTLIGHT_RUNS={here}/runs SLURM_CONF={}\n\
             [ ! -e {here}/began ] || exit 0\n\
             date +%s%N >{here}/began\n{here}/check.sh\necho $? >{here}/code\n\
             date +%s%N >{here}/written\nmv {here}/written {here}/ended\n",
            conf.display()
        ),
    );
    let lines = format!(
        "HealthCheckProgram={}\nHealthCheckInterval=5\nHealthCheckNodeState=ANY",
        at("wrapper.sh").display()
    );
    let slurm = match Slurm::start(cluster.path(), &lines) {
        Ok(slurm) => slurm,
        Err(why) => return eprintln!("{why}"),
    };
    let log = || std::fs::read_to_string(cluster.path().join("slurmd.out")).unwrap_or_default();
    until("the health check's end", Duration::from_secs(90), || at("ended").exists().then_some(()));
    let moment =
        |name: &str| -> u64 { std::fs::read_to_string(at(name)).unwrap().trim().parse().unwrap() };
    let took = Duration::from_nanos(moment("ended") - moment("began"));
    assert!(took < Duration::from_secs(60), "{took:?}\n{}", log());
    assert_eq!(moment("code"), 1, "{}", log());
    let state = until("the drain", Duration::from_secs(10), || {
        Some(slurm.state()).filter(|state| state.contains("DRAIN"))
    });
    assert!(state.contains("Reason=firstlight check has findings: "), "{state}");
    let runs: Vec<PathBuf> =
        std::fs::read_dir(at("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(runs.iter().any(|run| run.join("report.md").exists()), "{runs:?}");
}

/// A process that cannot determine its rank is a usage error.
#[test]
fn refuses_process_without_a_rank() {
    let folder = tempdir().unwrap();
    let mut command = support::command(folder.path(), &["check", "--fleet", "out"]);
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "SLURM_STEP_ID",
        "OMPI_COMM_WORLD_RANK",
        "JOB_COMPLETION_INDEX",
    ] {
        command.env_remove(name);
    }
    let output = command.env("WORLD_SIZE", "4").env("RANK", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = said(&output);
    assert!(words.starts_with("error: only some of the variables of torchrun are set: RANK=1 WORLD_SIZE=4, without LOCAL_RANK\nhint: "), "{words}");
    assert!(!folder.path().join("out").exists());
}
