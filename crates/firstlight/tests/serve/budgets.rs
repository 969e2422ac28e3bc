//! Templates and texts that take too much: an error within a budget, and other requests that do not wait.

use crate::client::Server;
use crate::support::{expect, scripted};
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::{TempDir, tempdir};

/// Templates that do not end, or take more memory or stack than there is.
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
fn hostile_templates_are_refused_within_a_budget() {
    let folder = model();
    assert!(run(folder.path(), "a", 0).contains("ok"));
    for (name, _) in HOSTILE {
        let began = Instant::now();
        let text = run(folder.path(), name, 2);
        assert!(text.contains("the template "), "{name}: {text}");
        assert!(began.elapsed() < Duration::from_secs(30), "{name}: {:?}", began.elapsed());
    }
    // A template that cannot be parsed, however deep it is.
    let deep = format!("{{{{ {}1{} }}}}", "[".repeat(99_999), "]".repeat(99_999));
    for text in [deep.as_str(), "{% if %}", &"{% if a %}".repeat(9999)] {
        std::fs::write(folder.path().join("m/chat_template.jinja"), text).unwrap();
        assert!(run(folder.path(), "a", 2).contains("the template "), "{}", &text[..9]);
    }
}

/// Streams and small requests together with hostile templates and prompts far beyond the context. The bound on waiting is loose, for machines
/// that do other work; what was measured is printed.
#[test]
fn small_requests_do_not_wait_for_large_ones() {
    let folder = model();
    let server = Server::start(folder.path(), &[]);
    let chat = |text: &str| json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 5, "temperature": 0 });
    let small = chat("a");
    let large = chat(&"words and words ".repeat(10 << 16));
    assert_eq!(server.post("/v1/chat/completions", &small).status, 200);
    let (_, before) = server.taken();
    let done = AtomicBool::new(false);
    let (mut longest, mut most, mut count) = (Duration::ZERO, 0, 0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let heavy: Vec<_> = (0..8)
            .map(|at| {
                let (server, large) = (&server, &large);
                scope.spawn(move || {
                    let refused = server.post("/v1/chat/completions", &chat(HOSTILE[at].0));
                    assert_eq!(refused.status, 400, "{} {}", HOSTILE[at].0, refused.body);
                    let refused = server.post("/v1/chat/completions", large);
                    assert_eq!(refused.status, 400, "{}", refused.body);
                    assert!(refused.error().contains("tokens"), "{}", refused.body);
                    let body =
                        json!({ "prompt": large["messages"][0]["content"], "max_tokens": 1 });
                    assert_eq!(server.post("/v1/completions", &body).status, 400);
                })
            })
            .collect();
        let streams: Vec<_> = (0..8)
            .map(|_| {
                let (server, done) = (&server, &done);
                scope.spawn(move || {
                    let mut body = chat("b");
                    body["stream"] = json!(true);
                    while !done.load(Ordering::Relaxed) {
                        let events = server.stream("/v1/chat/completions", &body);
                        assert!(!events.is_empty());
                    }
                })
            })
            .collect();
        while !heavy.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let asked = Instant::now();
            assert_eq!(server.post("/v1/chat/completions", &small).status, 200);
            longest = longest.max(asked.elapsed());
            most = most.max(server.taken().1);
            count += 1;
        }
        done.store(true, Ordering::Relaxed);
        heavy.into_iter().chain(streams).for_each(|thread| thread.join().unwrap());
    });
    let (_, after) = server.taken();
    let grown = |now: u64| now.saturating_sub(before) >> 20;
    println!(
        "{count} small requests in {:?}, the longest {longest:?}; memory grew by {} MB, afterwards {} MB",
        began.elapsed(),
        grown(most),
        grown(after)
    );
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    assert!(grown(most) < 300 && grown(after) < 200, "{} MB, {} MB", grown(most), grown(after));
}
