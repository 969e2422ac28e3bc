//! `firstlight chat`: through a pipe and in a terminal.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

#[path = "../support/mod.rs"]
mod support;

use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use support::{expect, json, refuses};
use tempfile::{TempDir, tempdir};

/// A template that appends each turn to the end of the previous answer, so that the KV cache stays valid.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'robot' or 'REFUSE' in m.content %}{{ raise_exception('not this') }}\
    {% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn model_folder(name: &str) -> TempDir {
    let folder = tempdir().unwrap();
    expect(folder.path(), &["synth", name, "m"], 0);
    std::fs::write(folder.path().join("m/chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

/// Runs `firstlight chat m` over lines.
fn chat(folder: &Path, arguments: &[&str], lines: &str) -> Output {
    let line = [&["chat", "m"], arguments].concat();
    let mut command = support::command(folder, &line);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The answers, as JSON.
fn answers(folder: &Path, arguments: &[&str], lines: &str) -> Vec<Value> {
    let dtype: &[&str] = if arguments.contains(&"--dtype") { &[] } else { &["--dtype", "f32"] };
    let output = chat(folder, &[&["--json"], dtype, arguments].concat(), lines);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut documents = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let first = documents.next().unwrap();
    assert_eq!(first["device"]["backend"], "cpu", "{first}");
    documents.collect()
}

#[test]
fn cached_turns_equal_full_prefill() {
    let mut kept = 0;
    for name in ["granite-rope-mini", "kimi-linear-mini"] {
        let folder = model_folder(name);
        let here = folder.path();
        for choice in [&[][..], &["--temperature", "1"]] {
            let lines = ["hi", "and then? \\\n", "  third"];
            let system = ["--system", "be brief", "-n", "7"];
            let answers = answers(here, &[&system, choice].concat(), &(lines.join("\n") + "\n"));
            assert_eq!(answers.len(), 3);
            let (mut said, mut read) = ("<system>be brief</>".to_owned(), 0);
            for (turn, (answer, message)) in
                answers.iter().zip(["hi", "and then? \n", "  third"]).enumerate()
            {
                said += &format!("<user>{message}</><assistant>");
                // `run` gets the same text and the seed of that turn.
                let seed = turn.to_string();
                let fresh = ["run", "m", "-p", &said, "-n", "7", "--dtype", "f32", "--seed", &seed];
                let fresh = json(here, &[&fresh, choice].concat(), 0);
                assert_eq!(answer["tokens"], fresh["answers"][0]["tokens"], "{name}, turn {turn}");
                assert_eq!(answer["prompt_tokens"], fresh["answers"][0]["prompt_tokens"]);
                assert_eq!(answer["text"], fresh["answers"][0]["text"]);
                // Invalid UTF-8 is replaced in the text, so the cached tokens do not match the next prompt.
                let bytes: Vec<u64> =
                    answer["text"].as_str().unwrap().bytes().map(u64::from).collect();
                let tokens: Vec<u64> = answer["tokens"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|id| id.as_u64().unwrap())
                    .collect();
                assert_eq!(answer["kept_tokens"], read, "{name}, turn {turn}: {answer}");
                kept += read;
                said += &format!("{}</>", answer["text"].as_str().unwrap());
                // The last token of an answer that reached its limit is prefilled with the next message.
                let said_so = bytes == tokens;
                read = if said_so { answer["prompt_tokens"].as_u64().unwrap() + 6 } else { 0 };
            }
        }
    }
    assert!(kept > 100, "only {kept} tokens were cached");
}

#[test]
fn reset_clears_turns_and_keeps_system_message() {
    let folder = model_folder("granite-rope-mini");
    let here = folder.path();
    let lines = "hi\n/reset\nhi\n/system x\n\nhi\n/reset\nhi\n/exit\nhi\n";
    let tokens: Vec<u64> = answers(here, &["-n", "2"], lines)
        .iter()
        .map(|answer| answer["prompt_tokens"].as_u64().unwrap())
        .collect();
    let one = "<user>hi</><assistant>".len() as u64;
    let (system, answered) = ("<system>x</>".len() as u64, 2 + "</>".len() as u64);
    assert_eq!(tokens, [one, one, system + 2 * one + answered, system + one]);
}

#[test]
fn prints_answer_and_status_line() {
    let folder = model_folder("granite-rope-mini");
    let here = folder.path();
    let lines = "hi\n/help\n/system\n/system be brief\n/system\n/reset\nno\n";
    let output = chat(here, &["-n", "9"], lines);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("device: the processor"), "{text}");
    let json = answers(here, &["-n", "9", "--dtype", "bf16"], lines);
    let said: String =
        json.iter().map(|answer| answer["text"].as_str().unwrap().to_owned() + "\n").collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), said, "answers alone");
    let quiet = chat(here, &["-n", "9", "-q"], "hi\nexit\nno\n");
    assert!(
        quiet.stderr.is_empty()
            && quiet.stdout.starts_with(said.lines().next().unwrap().as_bytes())
    );
    assert_eq!(quiet.stdout, chat(here, &["-n", "9", "-q"], "hi\n/bye\nno\n").stdout);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in [
        "granite-hybrid, 4096 tokens of context; /help lists commands, Ctrl-D ends\n",
        "; context 31 of 4096; ended by -n]\n",
        "/reset         starts a new conversation\n",
        "there is no system message\nthe system message is set\nbe brief\nstarted a new conversation\n",
        "; context 50 of 4096; ended by -n]\n",
    ] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    // A stop string ends the answer and is not printed.
    let answer = &answers(here, &["-n", "9"], "hi\n")[0];
    let text = answer["text"].as_str().unwrap();
    let last: String = text.chars().rev().take(2).collect();
    let stopped = &answers(here, &["-n", "9", "--stop", &last], "hi\n")[0];
    assert_eq!(stopped["ended"], "stop string", "{stopped}");
    assert!(text.starts_with(stopped["text"].as_str().unwrap()));
    let stop = answer["tokens"][0].to_string();
    let stopped = &answers(here, &["--stop-ids", &stop], "hi\n")[0];
    assert_eq!((&stopped["ended"], &stopped["text"]), (&"stop id".into(), &"".into()));
}

#[test]
fn errors_do_not_end_the_conversation() {
    let folder = model_folder("granite-rope-mini");
    let here = folder.path();
    let said = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let output = chat(here, &["-n", "2"], "/sytem x\nREFUSE\nhi\n");
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains("context 24 of 4096"), "the third was answered, alone: {text}");
    for words in [
        "there is no command /sytem\nhint: /help lists",
        "the template fails: ",
        "not this",
        "hint: /reset starts",
    ] {
        assert!(said(&output).contains(words), "no `{words}` in {}", said(&output));
    }
    // With `--json` the error is printed instead of the answer.
    let output = chat(here, &["--json", "-n", "2"], "REFUSE\nhi\n");
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[1]["error"].as_str().unwrap().contains("not this"), "{lines:?}");
    assert_eq!((lines.len(), &lines[2]["ended"]), (3, &"limit".into()));
    // An answer ends at the end of the context, and the next message does not fit.
    let output = chat(here, &["--context", "64"], "hi\nmore\n/reset\nhi\n");
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert_eq!(
        text.matches("context 64 of 64]\n[the context is full: /reset starts").count(),
        2,
        "{text}"
    );
    let words =
        "with this message, the context has 64\nhint: /reset starts a new conversation; --context";
    assert!(said(&output).contains(words), "{}", said(&output));
    refuses(
        here,
        &["chat", "m", "--context", "5000"],
        &["--context 5000", "longest context, 4096"],
    );
    refuses(here, &["chat", "absent", "--top-p", "2"], &["top-p is 2"]);
    refuses(here, &["chat", "absent"], &["absent/config.json"]);
    std::fs::remove_file(here.join("m/chat_template.jinja")).unwrap();
    refuses(here, &["chat", "m"], &["m/chat_template.jinja: there is no chat template"]);
    std::fs::remove_file(here.join("m/tiktoken.model")).unwrap();
    refuses(here, &["chat", "m"], &["m/tokenizer.json"]);
    let (_, err) = expect(here, &["chat", "m"], 2);
    assert!(err.contains("hint: download the tokenizer"), "{err}");
}

/// Runs the command in a terminal. Each step waits for a text and then types an input.
#[cfg(unix)]
fn typed(folder: &Path, arguments: &[&str], steps: &[(&str, &str)]) -> String {
    let line = [
        &["-I", "-c", include_str!("terminal.py"), env!("CARGO_BIN_EXE_firstlight"), "chat", "m"],
        arguments,
    ]
    .concat();
    let mut python = std::process::Command::new("python3");
    let python = python.args(line).current_dir(folder).env_remove("COLUMNS").env_remove("NO_COLOR");
    let mut python =
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let steps: String = steps.iter().map(|(text, typed)| format!("{text}\t{typed}\n")).collect();
    python.stdin.take().unwrap().write_all(steps.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[cfg(unix)]
fn terminal_ctrl_c_stops_answer_and_ctrl_d_exits() {
    let folder = model_folder("granite-rope-mini");
    let here = folder.path();
    // Without a limit an answer takes seconds, long enough to stop it. The history then repeats the question.
    let shown = typed(
        here,
        &[],
        &[
            ("Ctrl-D ends", ""),
            ("> ", "hello\\r"),
            (">>>>", "\\x03"),
            ("; stopped]", ""),
            ("> ", "\\x03"),
            ("/exit quits", ""),
            ("> ", "/reset\\r"),
            ("a new conversation", ""),
            ("> ", "\\x1b[A\\x1b[A\\r"),
            (">>>>", "\\x03"),
            ("; stopped]", ""),
            ("> ", "one \\\\\\r"),
            (". ", "two\\r"),
            (">>>>", "\\x03"),
            ("; stopped]", ""),
            ("> ", "\\x04"),
        ],
    );
    assert_eq!(shown.matches("; stopped]").count(), 3, "{shown}");
    assert!(!shown.contains("context is full"), "{shown}");
}

#[test]
#[cfg(unix)]
fn terminal_keeps_lines_typed_during_an_answer() {
    let folder = model_folder("granite-rope-mini");
    // Both lines and Ctrl-D arrive at once; then the second line and Ctrl-D arrive while the first is answered.
    let at_once = [("Ctrl-D ends", ""), ("> ", "/help\\r/system\\r\\x04")];
    let shown = typed(folder.path(), &[], &at_once);
    assert!(shown.contains("there is no system message"), "{shown}");
    let during = [("Ctrl-D ends", ""), ("> ", "hello\\r"), (">>>>", "/system\\r\\x04")];
    let shown = typed(folder.path(), &["-n", "600"], &during);
    assert!(shown.contains("; ended by -n]"), "{shown}");
    assert!(shown.contains("there is no system message"), "{shown}");
}

#[test]
#[cfg(unix)]
fn terminal_two_ctrl_c_exit() {
    let folder = model_folder("granite-rope-mini");
    let steps = [("Ctrl-D ends", ""), ("> ", "\\x03"), ("Ctrl-C again", ""), ("> ", "\\x03")];
    let shown = typed(folder.path(), &[], &steps);
    assert!(shown.contains("Ctrl-C again, Ctrl-D or /exit quits"), "{shown}");
}

#[test]
fn tensor_parallel_answers_equal_one_process() {
    let folder = model_folder("kimi-linear-mini");
    let said = |tp: &str| {
        let how = ["-n", "7", "--temperature", "1", "--backend", "cpu", "--tp", tp];
        let answers = answers(folder.path(), &how, "hi\nand then?\n");
        answers.into_iter().map(|answer| answer["text"].clone()).collect::<Vec<_>>()
    };
    let whole = said("1");
    assert!(whole.len() == 2 && whole.iter().all(Value::is_string), "{whole:?}");
    assert_eq!(said("2"), whole);
}
