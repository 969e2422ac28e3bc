//! `ps` and `ps --stop` on real processes listed by a stand-in NVML: their identity, orphans, and that exactly one process is
//! stopped.
#![cfg(target_os = "linux")] // pidfd and /proc exist only on Linux.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::fake_driver::{libcuda, with_driver};
use tempfile::{TempDir, tempdir};

/// The folder of one test, with a program of a unique name and the list of the stand-in NVML.
struct World {
    folder: TempDir,
    program: PathBuf,
}

/// A process of a test, which does not outlive it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl World {
    fn new() -> Self {
        let folder = tempdir().unwrap();
        let program = folder.path().join("serve-model");
        // A script, so that the command line is an interpreter and its script, like Python's. `deaf` ignores SIGTERM.
        std::fs::write(
            &program,
            // The script writes its process id once it runs, and exits when the test's folder is removed.
            "[ \"$1\" = deaf ] && trap '' TERM\necho $$ > \"$2.new\"; mv \"$2.new\" \"$2\"\n\
             while [ -e \"$2\" ]; do sleep 0.05; done\n",
        )
        .unwrap();
        Self { folder, program }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn list(&self) -> PathBuf {
        self.path().join("processes")
    }

    /// Starts the program and waits until it runs.
    fn start(&self, how: &str, name: &str) -> Running {
        let ready = self.path().join(name);
        let child = Command::new("/bin/sh")
            .args([self.program.as_os_str(), how.as_ref(), ready.as_os_str()])
            .env("LD_PRELOAD", libcuda())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the program to run", || ready.exists());
        Running(child)
    }

    /// Makes the driver list memory of a process.
    fn hold(&self, pid: u32, mib: u64, how: &str) {
        let mut list =
            std::fs::OpenOptions::new().create(true).append(true).open(self.list()).unwrap();
        writeln!(list, "{pid} {mib} {how}").unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let list = self.list();
        let list = [("FAKE_NVML_PROCESSES", list.to_str().unwrap())];
        // The driver answers late on a busy machine.
        let arguments = [arguments, &["--wait", "30"]].concat();
        let mut command = with_driver(self.path(), &arguments, &list);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (Output, String) {
        let output = self.command(arguments).output().unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        (output, text)
    }

    fn json(&self, arguments: &[&str], status: i32) -> Value {
        let (output, text) = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(status), "{text}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs the command on a separate pseudo-terminal and types an answer to each question.
    fn run_on_terminal(&self, arguments: &[&str], answers: &str) -> String {
        let typed = self.command(arguments);
        let line: Vec<String> = std::iter::once(typed.get_program())
            .chain(typed.get_args())
            .map(|word| format!("'{}'", word.to_str().unwrap()))
            .collect();
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &line.join(" "), "/dev/null"]);
        script.envs(typed.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = script
            .current_dir(self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(answers.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn alive(process: &mut Running) -> bool {
    process.0.try_wait().unwrap().is_none()
}

fn rules(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["rule"].as_str().unwrap()).collect()
}

#[test]
fn gpu_process_is_joined_with_procfs_data() {
    let world = World::new();
    let process = world.start("willing", "one");
    world.hold(process.0.id(), 6324, "");
    let report = world.json(&["ps"], 0);
    let listed = &report["processes"][0];
    assert_eq!(listed["pid"], process.0.id());
    let command = listed["command"]["value"].as_str().unwrap();
    assert!(
        command.starts_with("/bin/sh ") && command.contains("serve-model willing"),
        "{command}"
    );
    assert!(listed["program"].as_str().unwrap().ends_with("serve-model"), "{listed:#}");
    assert_eq!(listed["parent"]["value"][0], std::process::id());
    assert!(listed["age_seconds"]["value"].as_u64().unwrap() < 60, "{listed:#}");
    assert_eq!(listed["uses"][0]["bytes"], 6324_u64 << 20);
    assert_eq!(report["gpus"][0]["used_bytes"], 6324_u64 << 20);
    assert_eq!(report["gpus"][0]["unseen_bytes"], 0);
    assert_eq!(rules(&report), [""; 0]);
    let (_, shown) = world.run(&["ps"]);
    assert!(shown.contains("6324 MiB of 24576 MiB in use (26%)"), "{shown}");
}

#[test]
fn reports_copies_of_one_program() {
    let world = World::new();
    let copies = [world.start("willing", "one"), world.start("willing", "two")];
    for copy in &copies {
        world.hold(copy.0.id(), 100, "");
    }
    let report = world.json(&["ps"], 1);
    assert_eq!(rules(&report), ["duplicate-processes"]);
    let (_, shown) = world.run(&["ps"]);
    for copy in &copies {
        assert!(shown.contains(&copy.0.id().to_string()), "{shown}");
    }
}

/// A subreaper, like process 1, that starts a server, which starts a worker and exits.
const REAPER: &str = r#"
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    (void)count;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (fork() == 0) {
        if (fork() == 0) execv(words[1], words + 1);
        _exit(0);
    }
    while (wait(NULL) > 0) {}
    return 0;
}
"#;

#[test]
fn orphaned_worker_is_reported_and_stopped() {
    let world = World::new();
    let source = world.path().join("reaper.c");
    std::fs::write(&source, REAPER).unwrap();
    let reaper = world.path().join("tini");
    assert!(Command::new("cc").arg("-o").arg(&reaper).arg(source).status().unwrap().success());
    let ready = world.path().join("VLLM::EngineCore");
    let child = Command::new(reaper)
        .args(["/bin/sh".as_ref(), world.program.as_os_str(), "willing".as_ref()])
        .arg(&ready)
        .env("LD_PRELOAD", libcuda())
        .spawn()
        .unwrap();
    let reaper = Running(child);
    wait_for("the worker", || ready.exists());
    let pid: u32 = std::fs::read_to_string(&ready).unwrap().trim().parse().unwrap();
    world.hold(pid, 500, "");
    let own = reaper.0.id().to_string();
    wait_for("the server's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        after_name.split_whitespace().nth(1) == Some(&own)
    });
    let report = world.json(&["ps"], 1);
    assert_eq!(rules(&report), ["stale-process"], "{report:#}");
    let finding = &report["findings"][0];
    assert!(finding["title"].as_str().unwrap().contains("is orphaned and holds GPU memory"));
    assert_eq!(finding["fix"][0], format!("firstlight ps --stop {pid}"));
    let stopped = world.json(&["ps", "--stop", &pid.to_string(), "--yes"], 0);
    assert_eq!((&stopped["ended"], &stopped["signal"]), (&true.into(), &"TERM".into()));
}

fn zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn zombie_holding_memory_names_its_parent() {
    let world = World::new();
    let mut process = world.start("willing", "one");
    let pid = process.0.id();
    world.hold(pid, 300, "kept");
    process.0.kill().unwrap();
    wait_for("the zombie", || zombie(pid));
    let report = world.json(&["ps"], 1);
    assert_eq!(rules(&report), ["stale-process"]);
    assert_eq!(report["processes"][0]["state"]["value"], "Z");
    let finding = &report["findings"][0];
    assert!(
        finding["title"].as_str().unwrap().contains("has ended and still holds"),
        "{finding:#}"
    );
    assert_eq!(finding["fix"][0], format!("firstlight ps --stop {}", std::process::id()));
}

#[test]
fn stop_ends_one_process_and_waits_for_its_memory() {
    let world = World::new();
    let (mut one, mut other) = (world.start("willing", "one"), world.start("willing", "two"));
    world.hold(one.0.id(), 6000, "");
    world.hold(other.0.id(), 500, "");
    let pid = one.0.id().to_string();
    let stopped = world.json(&["ps", "--stop", &pid, "--yes"], 0);
    assert_eq!(stopped["signal"], "TERM");
    assert_eq!(stopped["memory_came_back"], true);
    assert_eq!(stopped["gpus"][0]["used_before_bytes"], 6500_u64 << 20);
    assert_eq!(stopped["gpus"][0]["used_after_bytes"], 500_u64 << 20);
    assert!(!alive(&mut one) && alive(&mut other));
}

#[test]
fn unreleased_memory_is_reported() {
    let world = World::new();
    let mut process = world.start("willing", "one");
    let pid = process.0.id().to_string();
    // The driver keeps the memory as long as the zombie exists, which this test does not reap.
    world.hold(process.0.id(), 700, "kept");
    let (output, shown) = world.run(&["ps", "--stop", &pid, "--yes"]);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("still lists its memory"), "{shown}");
    assert!(shown.contains("700 MiB in use before, 700 MiB now"), "{shown}");
    assert!(!alive(&mut process));
}

#[test]
fn process_ignoring_sigterm_is_killed_only_with_kill() {
    let world = World::new();
    let mut deaf = world.start("deaf", "one");
    world.hold(deaf.0.id(), 100, "");
    let pid = deaf.0.id().to_string();
    let (output, shown) = world.run(&["ps", "--stop", &pid, "--yes", "--grace", "0.3"]);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("did not end on SIGTERM; add --kill"), "{shown}");
    assert!(alive(&mut deaf));
    let killed = world.json(&["ps", "--stop", &pid, "--yes", "--kill", "--grace", "0.3"], 0);
    assert_eq!((&killed["signal"], &killed["memory_came_back"]), (&"KILL".into(), &true.into()));
    assert!(!alive(&mut deaf));
}

#[test]
fn terminal_asks_before_each_signal() {
    let world = World::new();
    let mut deaf = world.start("deaf", "one");
    world.hold(deaf.0.id(), 100, "");
    let pid = deaf.0.id().to_string();
    let arguments = ["ps", "--stop", &pid, "--grace", "0.3"];
    let shown = world.run_on_terminal(&arguments, "n\n");
    assert!(shown.contains("stop process") && shown.contains("nothing was stopped"), "{shown}");
    assert!(alive(&mut deaf));
    let shown = world.run_on_terminal(&arguments, "y\nno\n");
    assert!(shown.contains("kill it (unsaved work is lost)?"), "{shown}");
    assert!(alive(&mut deaf), "{shown}");
    let shown = world.run_on_terminal(&arguments, "y\ny\n");
    assert!(shown.contains("ended on KILL; its GPU memory was freed (100 MiB)"), "{shown}");
    assert!(!alive(&mut deaf));
}

#[test]
fn unlisted_or_unconfirmed_process_is_not_stopped() {
    let world = World::new();
    let (mut listed, mut unlisted) = (world.start("willing", "one"), world.start("willing", "two"));
    world.hold(listed.0.id(), 100, "");
    let refused = |arguments: &[&str], words: &str| {
        let (output, shown) = world.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{shown}");
        assert!(shown.contains(words) && shown.contains("hint: "), "{shown}");
    };
    let pid = |process: &Running| process.0.id().to_string();
    refused(&["ps", "--stop", &pid(&listed)], "confirmation needed");
    refused(&["ps", "--stop", &pid(&unlisted), "--yes"], "does not use GPU memory");
    assert!(alive(&mut listed) && alive(&mut unlisted));
}

/// Root is refused another user's process too; only root, as in CI, can set this up.
#[test]
fn refuses_process_of_another_user() {
    let own = std::fs::metadata("/proc/self").map(|it| std::os::unix::fs::MetadataExt::uid(&it));
    if own.unwrap() != 0 {
        // Process 1 belongs to root.
        let world = World::new();
        world.hold(1, 100, "");
        let (output, shown) = world.run(&["ps", "--stop", "1", "--yes"]);
        assert_eq!(output.status.code(), Some(2), "{shown}");
        return;
    }
    let world = World::new();
    std::fs::set_permissions(world.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new("/bin/sh");
    let ready = world.path().join("theirs");
    command.args([world.program.as_os_str(), "willing".as_ref(), ready.as_os_str()]);
    command.env("LD_PRELOAD", libcuda());
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    let mut theirs = Running(command.spawn().unwrap());
    wait_for("the other user's program", || ready.exists());
    world.hold(theirs.0.id(), 100, "");
    let (output, shown) = world.run(&["ps", "--stop", &theirs.0.id().to_string(), "--yes"]);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("belongs to user 65534, you are user 0"), "{shown}");
    assert!(alive(&mut theirs));
}

#[test]
fn stop_is_refused_if_driver_lists_no_processes() {
    let world = World::new();
    let mut process = world.start("willing", "one");
    world.hold(process.0.id(), 100, "");
    // If the driver does not list the processes of a GPU, they are unknown, which differs from none.
    let pid = process.0.id().to_string();
    let mut command = world.command(&["ps", "--stop", &pid, "--yes"]);
    command.env("FAKE_NVML_REFUSE", "1");
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("cannot be listed (NVML"), "{shown}");
    assert!(alive(&mut process));
}
