//! `firstlight fit`: one verdict per question, and none for sizes that cannot be counted.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use support::{expect, json, refuses};
use tempfile::tempdir;

/// A value of the text, which may span several lines.
fn value(text: &str, name: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(name));
    let first = lines.next().unwrap_or_else(|| panic!("no {name} in {text}"));
    let mut value = first.trim_start().trim_start_matches(name).trim().to_owned();
    for line in lines.take_while(|line| line.starts_with("            ")) {
        value = format!("{value} {}", line.trim());
    }
    value
}

#[test]
fn verdict_sets_exit_status() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    for (line, status, verdict) in [
        ("fit llama-3.1-8b --machine rtx4090", 0, "fits, "),
        ("fit llama-3.1-8b --gpu-memory 8GiB", 1, "does not fit, "),
        ("fit llama-3.1-8b --machine h100 --gpu-memory 8GiB", 1, "does not fit, "),
        ("fit kimi-linear-48b-a3b --weights fp8 --tp 2", 1, "does not fit, "),
        ("fit kimi-linear-48b-a3b --weights fp8 --tp 2 --machine h100", 0, "fits, "),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = support::run(here, &words);
        let text = String::from_utf8(output.stdout).unwrap();
        // The machine that runs the tests may be larger than any of these.
        if line.contains("--machine") || line.contains("--gpu-memory") {
            assert_eq!(output.status.code(), Some(status), "{line}: {text}");
            assert!(value(&text, "verdict").starts_with(verdict), "{line}: {text}");
        }
        assert_eq!(
            text.matches(" fits, ").count() + text.matches("does not fit, ").count(),
            1,
            "{text}"
        );
        assert_eq!(text.matches("  needs ").count(), 1, "{text}");
        // Commands and links are not wrapped, so that they can be copied.
        let copied = |line: &&str| line.starts_with("  fix  ") || line.starts_with("  see  ");
        let long = text.lines().filter(|line| line.chars().count() > 80 && !copied(line));
        assert_eq!(long.collect::<Vec<_>>(), [""; 0], "{line}");
        let document = json(here, &words, output.status.code().unwrap());
        let fits = &document["model"]["memory"]["fits"];
        assert_eq!(fits, &(output.status.code() == Some(0)), "{document}");
    }
}

#[test]
fn memory_parts_add_up_to_the_total() {
    let folder = tempdir().unwrap();
    let fits = json(folder.path(), &["fit", "llama-3.1-8b", "--machine", "rtx4090"], 0);
    let engine = &fits["engine_on_gpus"];
    assert_eq!(engine["available"]["value"], 24564_u64 << 20);
    assert_eq!(fits["verdict_for"], "cuda");
    let memory = &fits["model"]["memory"];
    assert_eq!(memory["needed_bytes"], engine["peak_bytes"]);
    let of = |part: &str| engine[format!("{part}_bytes")].as_u64().unwrap();
    let parts =
        ["weights", "states", "caches", "workspace", "recorded_steps"].map(of).iter().sum::<u64>();
    assert_eq!(parts, of("peak"));
    let left = (24564_i64 << 20) - engine["peak_bytes"].as_i64().unwrap();
    assert_eq!(memory["left_bytes"], left);
    // The longest context fits, and a tenth more does not.
    let longest = memory["longest_context_tokens"].as_u64().unwrap();
    let with = |tokens: u64, status: i32| {
        let tokens = tokens.to_string();
        let line = ["fit", "llama-3.1-8b", "--machine", "rtx4090", "--max-model-len", &tokens];
        json(folder.path(), &line, status)
    };
    with(longest, 0);
    with(longest + longest / 10, 1);
}

#[test]
fn rejects_unknown_sizes() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    for batch in ["999999999999", "18446744073709551615"] {
        let line = ["fit", "llama-3.1-8b", "--batch", batch, "--context", "131072"];
        refuses(here, &line, &["sequences of 131072 tokens take more bytes than can be counted"]);
    }
    let (out, _) = expect(here, &["fit", "llama-3.1-8b", "--batch", "100000000"], 1);
    assert!(!out.contains("of 0 tokens") && !out.contains("18446744073"), "{out}");
    if !std::path::Path::new("/proc/driver/nvidia").exists() {
        assert!(!out.contains("firstlight ps"), "there is no driver to ask: {out}");
    }
    refuses(here, &["fit", "llama-3.1-8b", "--machine", "abacus"], &["no machine `abacus`"]);
    refuses(here, &["fit", "llama-3.1-8b", "--machine", "m-series"], &["is not known"]);
    refuses(here, &["fit", "llama-3.1-8b", "--gpu-memory", "x"], &["such as 24GiB"]);
}
