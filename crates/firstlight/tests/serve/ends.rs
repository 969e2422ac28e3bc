//! Shutdown of a server, and its API key.
#![cfg(unix)]

use crate::client::{Answer, Server, wait};
use crate::model::model;
use crate::support::command;
use serde_json::{Value, json};
use std::io::Read;
use std::time::Duration;

fn long() -> Value {
    json!({ "prompt": "hello", "max_tokens": 3000, "ignore_eos": true, "stream": true, "temperature": 0 })
}

fn events(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["event"].as_str().unwrap()).collect()
}

#[test]
fn sigterm_drains_open_requests() {
    let folder = model("kimi-linear-mini");
    // The timeout is longer than the answer takes on a busy machine.
    let server = Server::start(folder.path(), &["--shutdown-timeout", "600"]);
    let mut open = server.begin_stream(&long());
    wait(|| server.health()["running"] == 1);
    server.signal("TERM");
    wait(|| server.get("/health").status == 503);
    assert_eq!(server.health()["status"], "draining");
    let refused = server.post("/v1/completions", &json!({ "prompt": "x" }));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("shutting_down")));
    assert!(refused.header("retry-after").is_some());
    let whole = Answer::read(&mut open);
    let last = whole.events().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let (status, lines, said) = server.end();
    assert_eq!((status, said.as_str()), (Some(0), ""));
    let events = events(&lines);
    assert_eq!(
        (events[0], events.contains(&"draining"), events.last()),
        ("ready", true, Some(&"stopped")),
        "{lines:?}"
    );
    let answered = lines.iter().find(|line| line["completion_tokens"] == 3000).unwrap();
    assert_eq!(
        (&answered["status"], &answered["route"]),
        (&json!(200), &json!("POST /v1/completions"))
    );
    assert!(
        answered["time"].as_str().unwrap().ends_with('Z')
            && answered["first_token_ms"].as_f64() > Some(0.0)
    );
}

#[test]
fn two_sigterms_at_once_count_as_one() {
    let folder = model("kimi-linear-mini");
    let server = Server::start(folder.path(), &["--shutdown-timeout", "600"]);
    let mut open = server.begin_stream(&long());
    wait(|| server.health()["running"] == 1);
    // timeout(1) sends its signal to the process and to its group.
    server.signals("TERM", 2);
    let whole = Answer::read(&mut open);
    assert_eq!(whole.events().pop().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn second_ctrl_c_ends_the_server_at_once() {
    let folder = model("kimi-linear-mini");
    // A person may press the keys twice in a tenth of a second.
    for first in ["INT", "TERM"] {
        let server = Server::start(folder.path(), &["--shutdown-timeout", "30"]);
        let _open = server.begin_stream(&long());
        wait(|| server.health()["running"] == 1);
        server.signal(first);
        std::thread::sleep(Duration::from_millis(70));
        server.signal("INT");
        assert_eq!(server.end().0, Some(128 + 2), "after {first}");
    }
    let server = Server::start(folder.path(), &["--shutdown-timeout", "600"]);
    let mut open = server.begin_stream(&long());
    wait(|| server.health()["running"] == 1);
    server.signal("INT");
    wait(|| server.health()["status"] == "draining");
    std::thread::sleep(Duration::from_millis(70));
    server.signal("INT");
    let (status, lines, _) = server.end();
    assert_eq!(status, Some(128 + 2));
    let draining = lines.iter().find(|line| line["event"] == "draining").unwrap();
    assert_eq!((&draining["open"], &draining["seconds"]), (&json!(1), &json!(600)));
    assert_eq!(events(&lines).last(), Some(&"draining"), "the request is not waited for");
    let mut answer = Vec::new();
    let _ = open.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("[DONE]"));
}

#[test]
fn shutdown_timeout_cancels_requests_with_an_error() {
    let folder = model("kimi-linear-mini");
    let server = Server::start(folder.path(), &["--shutdown-timeout", "0"]);
    let mut open = server.begin_stream(&long());
    wait(|| server.health()["running"] == 1);
    server.signal("INT");
    let broken = Answer::read(&mut open);
    assert_eq!(broken.events().pop().unwrap()["error"]["code"], "shutting_down");
    let (status, lines, _) = server.end();
    assert_eq!(status, Some(0));
    assert!(events(&lines).contains(&"aborted"), "{lines:?}");
    let record = lines.iter().find(|line| line["route"] == "POST /v1/completions").unwrap();
    assert_eq!(
        (&record["status"], &record["error"]),
        (&json!(503), &json!("the server is shutting down"))
    );
}

#[test]
fn api_key_from_environment_is_never_printed() {
    let folder = model("granite-moe-mini");
    let mut command = command(folder.path(), &["serve", "--help"]);
    let help = command.env("FIRSTLIGHT_API_KEY", "very-secret").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("FIRSTLIGHT_API_KEY") && !help.contains("very-secret"), "{help}");
}
