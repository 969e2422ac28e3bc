//! `ps`: the processes of a recorded machine with findings, and a one-line error without a driver.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::path::Path;
use support::{expect, json, refuses};
use tempfile::tempdir;

/// An A10 with three copies of one program, an orphaned engine, and a process of a container.
fn recorded(folder: &Path) {
    let write = |path: &str, text: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("root/proc/sys/kernel/ostype", "Linux\n");
    write("root/proc/sys/kernel/arch", "x86_64\n");
    write("root/proc/uptime", "100000.50 5.0\n");
    write("root/proc/1/comm", "systemd\n");
    write("root/proc/900/comm", "bash\n");
    write("root/proc/901/comm", "tmux: server\n");
    let mut listed = String::new();
    for (pid, parent, command, started, mib) in [
        (4711, 900, "/v/bin/python\0-u\0inference.py\0", 2_800_000, 6324),
        (4899, 901, "/v/bin/python\0inference.py\0--seed\x001\0", 6_400_000, 6324),
        (5020, 900, "/v/bin/python\0inference.py\0", 9_900_000, 6325_u64),
        (6001, 1, "VLLM::EngineCore", 9_000_000, 1024),
    ] {
        let name = if pid == 6001 { "VLLM::EngineCor" } else { "python" };
        let zeros = "0 ".repeat(17);
        write(
            &format!("root/proc/{pid}/stat"),
            &format!("{pid} ({name}) S {parent} {zeros}{started} 0 0\n"),
        );
        write(&format!("root/proc/{pid}/cmdline"), command);
        write(&format!("root/proc/{pid}/status"), "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n");
        write(
            &format!("root/proc/{pid}/cgroup"),
            "0::/user.slice/user-1000.slice/session-3.scope\n",
        );
        write(&format!("root/proc/{pid}/wchan"), "0");
        listed.push_str(&format!("process = {pid} compute {}\n", mib << 20));
    }
    let nvml = format!(
        "library = libnvidia-ml.so.1\ndriver = 570.148.08\ncuda = 12.8\n\n[gpu]\nname = NVIDIA A10\n\
         compute_capability = 8.6\nmemory_total = {}\nmemory_used = {}\n{listed}",
        23_028_u64 << 20,
        20_997_u64 << 20
    );
    write("nvml", &nvml);
    write("env", "");
}

#[test]
fn gpu_processes_are_joined_with_procfs_data() {
    let folder = tempdir().unwrap();
    recorded(folder.path());
    let report = json(folder.path(), &["ps", "--recorded", "."], 1);
    assert_eq!(report["schema"], 1);
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 4);
    assert_eq!(processes[0]["pid"], 4711);
    assert_eq!(processes[0]["command"]["value"], "/v/bin/python -u inference.py");
    assert_eq!(processes[0]["command"]["source"], "/proc/4711/cmdline");
    assert_eq!(processes[0]["age_seconds"]["value"], 72_000);
    assert_eq!(processes[0]["uid"]["value"], 1000);
    assert_eq!(processes[1]["parent"]["value"], serde_json::json!([901, "tmux: server"]));
    assert_eq!(report["gpus"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["gpus"][0]["unseen_bytes"], (20_997_u64 - 6324 - 6324 - 6325 - 1024) << 20);
    let rules: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["duplicate-processes", "stale-process"]);
    let (shown, _) = expect(folder.path(), &["ps", "--recorded", "."], 1);
    for words in [
        "3 processes of the same program",
        "4711, 4899, 5020",
        "VLLM::EngineCore",
        "20 h",
        "6324 MiB",
    ] {
        // Tables and paragraphs are wrapped.
        let unbroken = support::unbroken(&shown);
        assert!(unbroken.contains(words), "no {words} in\n{shown}");
    }
    assert!(!shown.contains("leak"), "{shown}");
    // Commands and URLs are not wrapped, so that they can be copied.
    let whole = |line: &str| line.contains("  fix  ") || line.contains("  see  ");
    let long: Vec<&str> =
        shown.lines().filter(|line| line.chars().count() > 80 && !whole(line)).collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn idle_gpu_passes_and_missing_driver_fails() {
    let folder = tempdir().unwrap();
    recorded(folder.path());
    let nvml = std::fs::read_to_string(folder.path().join("nvml")).unwrap();
    let quiet: String = nvml
        .lines()
        .filter(|line| !line.starts_with("process"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(
        folder.path().join("nvml"),
        quiet.replace("memory_used = 22016950272", "memory_used = 0"),
    )
    .unwrap();
    let (shown, _) = expect(folder.path(), &["ps", "--recorded", "."], 0);
    assert!(shown.contains("no process uses GPU memory"), "{shown}");
    std::fs::write(folder.path().join("nvml"), "library = x\nerror = Driver Not Loaded\n").unwrap();
    refuses(
        folder.path(),
        &["ps", "--recorded", "."],
        &["lists no processes", "Driver Not Loaded"],
    );
    std::fs::remove_file(folder.path().join("nvml")).unwrap();
    refuses(folder.path(), &["ps", "--recorded", "."], &["no NVIDIA GPU is visible here"]);
}

#[test]
fn stop_needs_an_exact_process() {
    let folder = tempdir().unwrap();
    recorded(folder.path());
    refuses(
        folder.path(),
        &["ps", "--recorded", ".", "--stop", "4711", "--yes"],
        &["recorded machine cannot"],
    );
    for arguments in [&["ps", "--stop", "python"][..], &["ps", "--yes"], &["ps", "--stop", "-1"]] {
        expect(folder.path(), arguments, 2);
    }
    for wrong in ["python", "0", "-1"] {
        let (_, err) = expect(folder.path(), &["ps", &format!("--stop={wrong}")], 2);
        assert!(err.contains("expected a process ID"), "{err}");
    }
}
