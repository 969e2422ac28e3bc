//! The system's facts about NVML's processes: command, owner, parent, age, state, container.

use super::virtualisation::container_of_cgroup;
use crate::Source;
use facts::{Fact, GpuProcess, Machine};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The unit of times in /proc/PID/stat on every supported processor.
const TICKS_A_SECOND: u64 = 100;

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if machine.gpu_processes.is_empty() {
        return;
    }
    let inside = machine.virtualisation.as_ref().is_some_and(|v| v.container.is_some());
    let listed = std::mem::take(&mut machine.gpu_processes);
    let (mut foreign, mut unread) = (Vec::new(), Vec::new());
    for (process, read) in read_all(source, listed, inside) {
        match read {
            ProcRead::Described => {}
            ProcRead::Foreign => foreign.push(process.pid.to_string()),
            ProcRead::Unread => unread.push(process.pid.to_string()),
        }
        machine.gpu_processes.push(process);
    }
    if !foreign.is_empty() {
        machine.notes.push(format!(
            "{} of a GPU cannot be seen from this container (NVML lists {} {}, by the host's numbers)",
            if foreign.len() == 1 { "a process" } else { "processes" },
            if foreign.len() == 1 { "process" } else { "processes" },
            foreign.join(", ")
        ));
    }
    for pid in unread {
        machine.notes.push(format!(
            "the files in /proc/{pid} of a process on a GPU could not be read within {:.1} s: it is most likely stuck \
             inside the driver",
            LIMIT.as_secs_f64()
        ));
    }
}

/// Time limit: reading /proc of a process that is stuck inside a driver with its memory map locked blocks.
const LIMIT: Duration = Duration::from_millis(400);

enum ProcRead {
    Described,
    /// The PID belongs to a process of the host.
    Foreign,
    /// /proc did not answer.
    Unread,
}

/// Reads each process in a separate thread, so that a hanging one hides no other; all share one limit.
fn read_all(source: &Source, listed: Vec<GpuProcess>, inside: bool) -> Vec<(GpuProcess, ProcRead)> {
    let shared = Arc::new(source.clone());
    let uptime = source.word("/proc/uptime").and_then(|text| parse_uptime(&text));
    let (done, answers) = mpsc::channel();
    for (index, process) in listed.iter().cloned().enumerate() {
        let (done, source) = (done.clone(), Arc::clone(&shared));
        std::thread::spawn(move || {
            let mut process = process;
            // NVML reports PIDs of the host. In a container another process may have that PID.
            let read = if inside && !uses_a_gpu(&source, process.pid) {
                ProcRead::Foreign
            } else {
                describe(&source, &mut process, uptime);
                ProcRead::Described
            };
            // The receiver is gone after the limit.
            let _ = done.send((index, process, read));
        });
    }
    let mut all: Vec<(GpuProcess, ProcRead)> =
        listed.into_iter().map(|process| (process, ProcRead::Unread)).collect();
    let until = Instant::now() + LIMIT;
    for _ in 0..all.len() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((index, process, read)) = answers.recv_timeout(left) else { break };
        all[index] = (process, read);
    }
    all
}

/// Whether a process uses the driver: it has one of its devices open (WSL's is /dev/dxg), or its library loaded.
fn uses_a_gpu(source: &Source, pid: u32) -> bool {
    let folder = format!("/proc/{pid}/fd");
    let mut opened =
        source.list(&folder).into_iter().filter_map(|name| source.link(format!("{folder}/{name}")));
    opened.any(|target| target.starts_with("/dev/nvidia") || target == "/dev/dxg")
        || source.text(format!("/proc/{pid}/maps")).is_some_and(|maps| has_libcuda(&maps))
        || ended(source, pid)
}

/// An ended process has neither files nor libraries; that a host's PID is a zombie here is unlikely.
fn ended(source: &Source, pid: u32) -> bool {
    let stat = source.text(format!("/proc/{pid}/stat"));
    stat.as_deref().and_then(Stat::parse).is_some_and(|stat| stat.state == "Z")
}

/// Whether a file named libcuda.so, in any version, is mapped by a process.
pub(crate) fn has_libcuda(maps: &str) -> bool {
    // Five fields without a slash precede the path, which may contain spaces.
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let mut names = paths.filter_map(|path| path.rsplit('/').next());
    names.any(|name| name.starts_with("libcuda.so"))
}

fn describe(source: &Source, process: &mut GpuProcess, uptime: Option<u64>) {
    let folder = format!("/proc/{}", process.pid);
    let file = |name: &str| format!("{folder}/{name}");
    let Some(stat) = source.text(file("stat")).as_deref().and_then(Stat::parse) else { return };
    process.name = Some(Fact::new(stat.name.clone(), file("stat")));
    process.state = Some(Fact::new(stat.state, file("stat")));
    process.age_seconds = uptime.map(|uptime| {
        let age = uptime.saturating_sub(stat.started_ticks / TICKS_A_SECOND);
        Fact::new(age, format!("{} and /proc/uptime", file("stat")))
    });
    let parent = source.word(format!("/proc/{}/comm", stat.parent)).unwrap_or_default();
    process.parent = Some(Fact::new((stat.parent, parent), file("stat")));
    let arguments =
        source.read(file("cmdline")).map(|bytes| parse_cmdline(&bytes)).unwrap_or_default();
    if !arguments.is_empty() {
        process.command = Some(Fact::new(arguments.join(" "), file("cmdline")));
        process.program = Some(program(&arguments));
    } else {
        // A zombie has no command line.
        process.program = Some(stat.name);
    }
    process.uid = source
        .text(file("status"))
        .as_deref()
        .and_then(parse_uid)
        .map(|uid| Fact::new(uid, file("status")));
    // The kernel writes 0 if it hides the value, or if the process waits for nothing.
    process.waits_in = source
        .word(file("wchan"))
        .filter(|name| name != "0")
        .map(|name| Fact::new(name, file("wchan")));
    let cgroup = source.text(file("cgroup")).unwrap_or_default();
    process.container = container(&cgroup).map(|name| Fact::new(name, file("cgroup")));
    process.unit = unit(&cgroup).map(|name| Fact::new(name, file("cgroup")));
}

/// The used fields of /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    name: String,
    state: String,
    pub(crate) parent: u32,
    started_ticks: u64,
    /// CPU time of it and of its ended children.
    pub(crate) ran_ticks: u64,
}

impl Stat {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may contain any character, including parentheses and spaces.
        let (start, end) = (text.find('(')?, text.rfind(')')?);
        let name = text.get(start + 1..end)?.to_string();
        let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
        Some(Self {
            name,
            state: (*fields.first()?).to_string(),
            parent: fields.get(1)?.parse().ok()?,
            started_ticks: fields.get(19)?.parse().ok()?,
            ran_ticks: (11..15)
                .filter_map(|at| fields.get(at)?.parse().ok())
                .fold(0, u64::saturating_add),
        })
    }
}

/// Whole seconds since the system started.
pub(crate) fn parse_uptime(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.split('.').next()?.parse().ok()
}

/// Arguments, separated by NUL. A program that sets its title has one long text with spaces.
pub(crate) fn parse_cmdline(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let arguments = text.trim_end_matches('\0').split('\0').map(|word| word.trim().to_string());
    arguments.filter(|word| !word.is_empty()).collect()
}

/// The real user of `Uid:` in /proc/PID/status.
pub(crate) fn parse_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The program of a process: `python train.py` of `/v/bin/python -u train.py --lr 1e-3`.
pub(crate) fn program(arguments: &[String]) -> String {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    let Some(executable) = arguments.first().map(|first| base(first)) else { return String::new() };
    let interpreter = ["python", "pypy", "node", "bash", "sh", "julia"].iter().any(|name| {
        executable.strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
    });
    if !interpreter {
        return executable;
    }
    let mut rest = arguments[1..].iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-m" | "-c" => {
                let what = rest.next().map_or("", String::as_str);
                // The argument of -c can be a whole program: its beginning identifies copies well enough.
                let what: String = what.chars().take(60).collect();
                return format!("{executable} {word} {what}");
            }
            "-W" | "-X" => {
                rest.next();
            }
            option if option.starts_with('-') => {}
            script => return format!("{executable} {script}"),
        }
    }
    executable
}

/// Manager and the first characters of the id, as in `docker ps`.
pub(crate) fn container(cgroup: &str) -> Option<String> {
    let manager = container_of_cgroup(cgroup)?;
    let hex = |part: &str| part.len() == 64 && part.chars().all(|c| c.is_ascii_hexdigit());
    let id = cgroup.split(['/', '-', '.', ':', '\n']).find(|part| hex(part));
    Some(match id {
        Some(id) => format!("{manager} {}", &id[..12]),
        None => manager.to_string(),
    })
}

/// The service of a control group; a login scope is not a service.
pub(crate) fn unit(cgroup: &str) -> Option<String> {
    let last = cgroup.lines().find_map(|line| line.splitn(3, ':').nth(2))?;
    let service = last.split('/').rev().find(|part| part.ends_with(".service"))?;
    // Every process of a login is below user@1000.service, which does not identify its starter.
    (!service.starts_with("user@")).then(|| service.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_is_parsed_with_any_process_name() {
        let tail = "0 0 0 0 -1 4194560 1 0 0 0 10 5 0 0 20 0 8 0 123456 0 0";
        let parse = |name: &str| Stat::parse(&format!("4711 ({name}) S 1 {}", &tail[2..]));
        for name in ["python", "VLLM::EngineCor", "a) S 9 (b", "tmux: server", ""] {
            let stat = parse(name).expect(name);
            assert_eq!((stat.name.as_str(), stat.state.as_str(), stat.parent), (name, "S", 1));
        }
        for text in ["", "1", "1 (x", "1 (x) S", ") S 1 ("] {
            assert_eq!(Stat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn copies_of_a_program_share_a_name() {
        let check = |line: &str, expect: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            assert_eq!(program(&words), expect, "{line}");
        };
        check("/v/bin/python3 -u -X dev inference.py --prompt x", "python3 inference.py");
        check(
            "python -m vllm.entrypoints.openai.api_server --port 1",
            "python -m vllm.entrypoints.openai.api_server",
        );
        check("/opt/llama/llama-server -m model.gguf", "llama-server");
        check("VLLM::EngineCore", "VLLM::EngineCore");
        check("pythonista run", "pythonista");
        assert_eq!(program(&[]), "");
        assert_eq!(parse_cmdline(b"python\0a b.py\0\0"), ["python", "a b.py"]);
        assert_eq!(parse_cmdline(b"VLLM::EngineCore        "), ["VLLM::EngineCore"]);
    }

    #[test]
    fn control_groups_name_containers_and_services() {
        let id = "4f0c9a1b2c3d".to_string() + &"0".repeat(52);
        let check = |cgroup: &str, in_container: Option<&str>, service: Option<&str>| {
            assert_eq!(container(cgroup).as_deref(), in_container, "{cgroup}");
            assert_eq!(unit(cgroup).as_deref(), service, "{cgroup}");
        };
        check(&format!("0::/system.slice/docker-{id}.scope\n"), Some("docker 4f0c9a1b2c3d"), None);
        check(&format!("1:memory:/docker/{id}\n"), Some("docker 4f0c9a1b2c3d"), None);
        check("0::/system.slice/ollama.service\n", None, Some("ollama.service"));
        check("0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", None, None);
        check("0::/user.slice/user-1000.slice/session-3.scope\n", None, None);
        check("", None, None);
    }

    /// Reading /proc of a process that is stuck inside the driver can block forever, like a pipe without a writer.
    #[test]
    fn process_with_stuck_files_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join("root").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for pid in [70, 71] {
            let zeros = "0 ".repeat(17);
            write(&format!("proc/{pid}/stat"), &format!("{pid} (x) D 1 {zeros}5 0\n"));
        }
        write("proc/71/cmdline", "python\0a.py\0");
        let pipe = folder.path().join("root/proc/70/cmdline");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
        std::fs::write(
            folder.path().join("nvml"),
            "library = l\n[gpu]\nname = A\nprocess = 70 compute 1\nprocess = 71 compute 1\n",
        )
        .unwrap();
        let source = Source::recorded(folder.path()).unwrap();
        let started = Instant::now();
        let machine = crate::machine(&crate::ProbeOptions { source, site_packages: Vec::new() });
        assert!(started.elapsed() < LIMIT * 3, "{:?}", started.elapsed());
        let command = |index: usize| machine.gpu_processes[index].command.clone();
        assert_eq!(command(0), None);
        assert_eq!(command(1).unwrap().value, "python a.py");
        let note = machine.notes.iter().find(|note| note.contains("/proc/70")).unwrap();
        assert!(note.contains("could not be read within 0.4 s"), "{note}");
    }

    #[test]
    fn maps_with_the_driver_library_are_recognized() {
        let check = |path: &str, expect: bool| {
            let line = format!("7f1c-7f2c r-xp 00000000 fe:00 1311 {path}\n");
            assert_eq!(has_libcuda(&format!("55-56 r--p 0 0 0 [heap]\n{line}")), expect, "{path}");
        };
        check("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", true);
        check("/my libs/libcuda.so.1 (deleted)", true);
        check("/usr/lib/libcudart.so.12", false);
        check("/opt/libcuda.so.d/other", false);
        check("", false);
    }

    #[test]
    fn numbers_of_status_and_uptime() {
        assert_eq!(parse_uid("Name:\tx\nUid:\t1000\t1000\t1000\t1000\n"), Some(1000));
        assert_eq!(parse_uid("Uid:\tx\n"), None);
        assert_eq!(parse_uptime("12345.67 9.9\n"), Some(12345));
        assert_eq!(parse_uptime(""), None);
    }
}
