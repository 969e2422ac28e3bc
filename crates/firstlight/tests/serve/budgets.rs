//! Templates and texts that exceed the time or memory budget: an error in time, and no delay for other requests.

use crate::client::{Server, wait};
use crate::support::{expect, scripted};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

/// Templates that loop forever, or exhaust memory or stack.
const HOSTILE: [(&str, &str); 10] = [
    ("loops", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
    (
        "doubling",
        "{% set ns = namespace(s='xyz') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    ),
    ("center", "{{ 'x'.center(10**10) }}"),
    (
        "replace",
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s.replace('a', 'a' * 99) %}{% endfor %}",
    ),
    (
        "list",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    ),
    ("itself", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"),
    (
        "equal",
        "{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(99999) %}{% set a.l = [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l == b.l }}",
    ),
    (
        "captured",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set s %}{{ ns.s }}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}{% endfor %}",
    ),
    (
        "join",
        "{% for i in range(9999) %}{% set s = range(99999) | join('-----------------------') %}{% endfor %}",
    ),
    ("macro", "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"),
];

/// A model that answers `ok`, and a template that is hostile for conversations that name it.
fn model() -> TempDir {
    let folder = tempdir().unwrap();
    let path = folder.path().join("m");
    scripted::say(&path, "ok", &["<|im_end|>"]);
    let cases = HOSTILE.iter().map(|(name, text)| {
        format!("{{% if messages[0].content == '{name}' %}}{text}{{% endif %}}")
    });
    let template = cases.collect::<String>() + "{{ messages[0].content }}:";
    std::fs::write(path.join("chat_template.jinja"), template).unwrap();
    folder
}

fn run(folder: &Path, prompt: &str, status: i32) -> String {
    let (out, err) = expect(folder, &["run", "m", "--chat", prompt, "-n", "5"], status);
    out + &err
}

#[test]
fn rejects_hostile_templates_within_budget() {
    let folder = model();
    assert!(run(folder.path(), "a", 0).contains("ok"));
    for (name, _) in HOSTILE {
        let began = Instant::now();
        let text = run(folder.path(), name, 2);
        assert!(text.contains("the template "), "{name}: {text}");
        assert!(began.elapsed() < Duration::from_secs(30), "{name}: {:?}", began.elapsed());
    }
    // Templates that cannot be parsed, deeply nested ones included.
    let deep = format!("{{{{ {}1{} }}}}", "[".repeat(99_999), "]".repeat(99_999));
    for text in [deep.as_str(), "{% if %}", &"{% if a %}".repeat(9999)] {
        std::fs::write(folder.path().join("m/chat_template.jinja"), text).unwrap();
        assert!(run(folder.path(), "a", 2).contains("the template "), "{}", &text[..9]);
    }
}

/// A stopped process, like one that waits for a core, keeps its priority until it has used CPU time.
#[test]
fn templates_yield_after_their_cpu_time() {
    let folder = model();
    let server = Server::start(folder.path(), &[]);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| server.post("/v1/chat/completions", &chat("loops")));
        let spent = |process| stat(process).map_or(0.0, |fields| ticks(&fields[11..13]));
        let own = server.id().to_string();
        let busy = |process: &u32| stat(*process).is_some_and(|fields| fields[1] == own);
        let find = || processes().find(|process| busy(process) && spent(*process) > 0.0);
        wait(|| find().is_some());
        let process = find().unwrap();
        let signal = |name: &str| {
            let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
            assert!(sent.unwrap().success());
        };
        signal("STOP");
        std::thread::sleep(Duration::from_millis(600));
        signal("CONT");
        let began = Instant::now();
        let has_lowered_priority = || {
            let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
            threads.flatten().any(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_some_and(|(_, fields)| fields.split(' ').nth(16) != Some("0"))
            })
        };
        while !has_lowered_priority() {
            assert!(began.elapsed() < Duration::from_secs(10), "it never lowers its priority");
            std::thread::sleep(Duration::from_millis(2));
        }
        let spent = spent(process);
        assert!(spent >= 0.04, "it lowered its priority after {spent} s of a core");
        assert_eq!(asking.join().unwrap().status, 400);
    });
}

/// Templates that keep a core busy until they are stopped.
const BUSY: [&str; 4] = ["loops", "join", "list", "equal"];

/// A small request waits at most a second for eight conversations with endless templates and eight streams.
#[test]
fn small_requests_do_not_wait_for_busy_templates() {
    let loads = measure(|server, at| {
        let refused = server.post("/v1/chat/completions", &chat(BUSY[at % BUSY.len()]));
        assert_eq!(refused.status, 400, "{} {}", BUSY[at % BUSY.len()], refused.body);
    });
    println!("{loads}");
    loads.check();
}

/// The same for eight hostile templates of all kinds, then for eight prompts of 10 MB, which exceed the context.
#[test]
fn small_requests_do_not_wait_for_large_ones() {
    let large = chat(&"words and words ".repeat(10 << 16));
    let loads = measure(|server, at| {
        let refused = server.post("/v1/chat/completions", &chat(HOSTILE[at].0));
        assert_eq!(refused.status, 400, "{} {}", HOSTILE[at].0, refused.body);
        let refused = server.post("/v1/chat/completions", &large);
        assert_eq!(refused.status, 400, "{}", refused.body);
        // On a busy machine the template may time out first.
        let why = refused.error();
        assert!(why.contains("tokens") || why.contains("20 seconds"), "{why}");
        let body = json!({ "prompt": large["messages"][0]["content"], "max_tokens": 1 });
        let refused = server.post("/v1/completions", &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.error().contains("tokens"), "{}", refused.body);
    });
    println!("{loads}");
    loads.check();
}

fn chat(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 5, "temperature": 0 })
}

/// The latency of small requests and the memory of the server under load.
struct Loads {
    /// The number of answered small requests, and the total time.
    count: usize,
    took: Duration,
    /// The longest wait of a small request in seconds.
    wall: f64,
    /// The longest wait of a small request, without the time for which other programs had the cores.
    longest: f64,
    /// Growth of the server's memory in bytes: the peak, and the growth that remains afterwards.
    grown: (u64, u64),
    /// Peak bytes of all template processes together.
    renders: u64,
}

impl fmt::Display for Loads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, took, wall, longest, grown, renders } = self;
        write!(
            f,
            "{count} small requests in {took:?}, the longest {wall:.2} s, without others' work {longest:.2} s; "
        )?;
        let [most, after, renders] = [grown.0, grown.1, *renders].map(|bytes| bytes >> 20);
        write!(f, "memory grew by {most} MB, afterwards {after} MB; templates {renders} MB at most")
    }
}

impl Loads {
    fn check(&self) {
        assert!(self.longest < 1.0, "a small request waited {:.2} s", self.longest);
        let (most, after) = (self.grown.0 >> 20, self.grown.1 >> 20);
        assert!(most <= 200 && after <= 100, "memory grew by {most} MB, afterwards {after} MB");
    }
}

/// Measures sequential small requests while eight streams run and eight threads send heavy requests.
fn measure(heavy: impl Fn(&Server, usize) + Sync) -> Loads {
    let folder = model();
    let server = Server::start(folder.path(), &[]);
    let small = chat("a");
    assert_eq!(server.post("/v1/chat/completions", &small).status, 200);
    let before = Tree::of(server.id()).bytes;
    let done = AtomicBool::new(false);
    let [most, renders] = [0, 0].map(AtomicU64::new);
    let (mut longest, mut wall, mut count) = (0f64, 0f64, 0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let (server, done, heavy) = (&server, &done, &heavy);
        let (most, renders) = (&most, &renders);
        let threads: Vec<_> = (0..8).map(|at| scope.spawn(move || heavy(server, at))).collect();
        for _ in 0..8 {
            scope.spawn(move || {
                let mut body = chat("b");
                body["stream"] = json!(true);
                while !done.load(Ordering::Relaxed) {
                    assert!(!server.stream("/v1/chat/completions", &body).is_empty());
                }
            });
        }
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let tree = Tree::of(server.id());
                most.fetch_max(tree.bytes, Ordering::Relaxed);
                renders.fetch_max(tree.children, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let (cores, own) = (cores_busy(), Tree::of(server.id()).seconds);
            let asked = Instant::now();
            assert_eq!(server.post("/v1/chat/completions", &small).status, 200);
            let waited = asked.elapsed().as_secs_f64();
            // The share of all cores used by other programs: 0 on an idle machine.
            let own = Tree::of(server.id()).seconds - own;
            let others = (cores_busy().0 - cores.0 - own).max(0.0) / cores.1;
            longest = longest.max(waited - others);
            wall = wall.max(waited);
            count += 1;
        }
        done.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    wait(|| server.is_free());
    let grown = |now: u64| now.saturating_sub(before);
    let after = Tree::of(server.id()).bytes;
    let grown = (grown(most.into_inner()), grown(after));
    let renders = renders.into_inner();
    Loads { count, took: began.elapsed(), wall, longest, grown, renders }
}

/// A process and its children.
struct Tree {
    /// Bytes of the process, and bytes private to its children.
    bytes: u64,
    children: u64,
    /// CPU seconds, including those of exited children.
    seconds: f64,
}

impl Tree {
    fn of(process: u32) -> Self {
        let mut tree = Self { bytes: memory(process, "VmRSS:"), children: 0, seconds: 0.0 };
        let own = process.to_string();
        let command = |id: u32| std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let server = command(process);
        for id in processes() {
            // A process that has exited meanwhile has no file.
            let Some(fields) = stat(id) else { continue };
            if id == process {
                tree.seconds += ticks(&fields[11..15]);
            } else if fields[1] == own {
                tree.seconds += ticks(&fields[11..13]);
                // Until a child has become another program, its memory is the server's.
                if command(id) != server {
                    tree.children += memory(id, "RssAnon:");
                }
            }
        }
        tree
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The fields of `/proc/PID/stat`, starting at the state.
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

/// The sum of the clock ticks in seconds.
fn ticks(fields: &[String]) -> f64 {
    fields.iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}

/// Linux reports times in ticks of 10 ms.
const TICKS: f64 = 100.0;

fn memory(process: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Busy seconds of the machine's cores, including steal time, and the number of cores.
fn cores_busy() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let times = text.lines().next().unwrap().split_whitespace().skip(1).take(8);
    let times: Vec<f64> = times.map(|time| time.parse().unwrap()).collect();
    let cores = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    // All states except idle and iowait.
    let busy = times.iter().enumerate().filter(|(at, _)| ![3, 4].contains(at));
    (busy.map(|(_, time)| time).sum::<f64>() / TICKS, cores as f64)
}
