//! Templates and texts that take too much: an error within a budget, and other requests that do not wait.

use crate::support::{expect, scripted};
use std::path::Path;
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
