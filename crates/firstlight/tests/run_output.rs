//! `firstlight run`: standard output has only the model's text, for every source of the prompt.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use support::{expect, json, refuses};
use tempfile::tempdir;

/// Runs a command line with text on standard input.
fn piped(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = support::command(folder, arguments);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn text_goes_to_stdout_and_the_rest_to_stderr() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    let answer = json(here, &["run", "m", "-p", "x", "-n", "4"], 0);
    let text = answer["answers"][0]["text"].as_str().unwrap().to_owned() + "\n";
    let (out, told) = expect(here, &["run", "m", "-p", "x", "-n", "4"], 0);
    assert_eq!(out, text);
    for words in ["device: ", "1 token id read, 4 added (limit)", "weights      ", "launches "] {
        assert!(told.contains(words), "no `{words}` in {told}");
    }
    assert!(!told.contains("0.00 GB"), "{told}");
    for quiet in ["-q", "--quiet"] {
        assert_eq!(
            expect(here, &["run", "m", "-p", "x", "-n", "4", quiet], 0),
            (text.clone(), String::new())
        );
    }
    // Other programs' names for the length of an answer.
    for name in ["--max-tokens", "--n-predict", "--tokens", "--max-new-tokens"] {
        assert_eq!(expect(here, &["run", "m", "-p", "x", name, "4", "-q"], 0).0, text, "{name}");
    }
    // Several texts are numbered.
    let (out, _) = expect(here, &["run", "m", "-p", "x", "-p", "y", "-n", "4"], 0);
    assert!(out.starts_with(&format!("[0] {text}[1] ")), "{out}");
}

#[test]
fn prompt_beyond_the_context_is_refused_by_its_length() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    for (more, words) in [
        (&[][..], "; the model's context is "),
        (&["--max-model-len", "64"], "; --max-model-len is 64"),
    ] {
        let output = piped(here, &[&["run", "m"], more].concat(), &"a".repeat(4 << 20));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("the prompt has at least ") && told.contains(words), "{told}");
    }
}

#[test]
fn prompt_is_an_argument_or_stdin() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["model", "synth", "granite-rope-mini", "m"], 0);
    let of = |arguments: &[&str], input: &str| {
        let output = piped(here, &[arguments, &["-n", "4", "-q"]].concat(), input);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    };
    let continued = of(&["run", "m", "-p", "a text"], "");
    // A model without a chat template continues the text.
    std::fs::remove_file(here.join("m/chat_template.jinja")).unwrap();
    for (arguments, input) in [
        (&["run", "m", "-p", "-"][..], "a text\n"),
        (&["run", "m", "a text"], "ignored"),
        (&["run", "m", "a", "text"], ""),
        (&["run", "m"], "a text\n"),
        (&["run", "m", "-"], "a text"),
    ] {
        assert_eq!(of(arguments, input), continued, "{arguments:?}");
    }
    let template = "<{{ messages[0].content }}>{% if add_generation_prompt %}:{% endif %}";
    std::fs::write(here.join("m/chat_template.jinja"), template).unwrap();
    let answered = of(&["run", "m", "--chat", "a text"], "");
    assert_ne!(answered, continued);
    assert_eq!(of(&["run", "m", "a text"], ""), answered);
    assert_eq!(of(&["run", "m"], "a text\n"), answered);
    assert_eq!(of(&["run", "m", "-p", "-"], "a text\n"), continued);
    // A template that cannot be parsed is an error.
    std::fs::write(here.join("m/chat_template.jinja"), "{% if %}").unwrap();
    expect(here, &["run", "m", "a text"], 2);
    refuses(here, &["run", "m"], &["there is no prompt"]);
    refuses(here, &["run", "m", "-p", "-", "-p", "-"], &["standard input is one prompt"]);
    let binary = piped(here, &["run", "m", "-p", "-"], "");
    assert_eq!(binary.status.code(), Some(2));
}
