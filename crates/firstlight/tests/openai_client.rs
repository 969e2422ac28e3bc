//! OpenAI's and Anthropic's own clients and the AI SDK against `firstlight serve`: what they send by themselves, how they read answers, streams and
//! errors.
//!
//! `cargo xtask test` installs them. It names the Python that has OpenAI's in FIRSTLIGHT_OPENAI_PYTHON and the folder that has those of
//! npm in FIRSTLIGHT_NPM_CLIENTS.

#![allow(clippy::unwrap_used, dead_code)] // Test support; this file uses its part.

mod support;

#[path = "serve/client.rs"]
mod client;
#[path = "serve/model.rs"]
mod model;

use std::process::Command;

/// Runs a Python script against a server; it has to print `all of it` at its end.
fn run_python(script: &str, server: &client::Server) {
    let python = std::env::var_os("FIRSTLIGHT_OPENAI_PYTHON");
    let python = python.expect("FIRSTLIGHT_OPENAI_PYTHON is not set: run `cargo xtask test`");
    let script = format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new(python)
        .args([&script, &format!("http://{}/v1", server.address)])
        .env_remove("OPENAI_API_KEY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.ends_with("all of it\n"), "{said}");
    client::wait(|| server.is_free());
}

const ARGUMENTS: [&str; 6] =
    ["--served-model-name", "mini", "--api-key", "sesame", "--max-model-len", "512"];

#[test]
fn openais_client_is_answered() {
    let folder = model::model("kimi-linear-mini");
    run_python("openai_client.py", &client::Server::start(folder.path(), &ARGUMENTS));
}

#[test]
fn each_field_of_openais_client_is_treated_as_the_table_says() {
    let folder = model::ending("granite-moe-mini");
    run_python("openai_fields.py", &client::Server::start(folder.path(), &ARGUMENTS));
}

/// What the scripted model calls, and what it says after the result.
const CALL: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Ulm\"}}\n</tool_call>";
const ANSWER: &str = "It does not rain in Ulm.";

/// A model that calls a tool, and answers once the last message is a tool's: then the prompt ends with the first half of the script.
fn agent() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m");
    let script = format!("{CALL}<|im_end|>{ANSWER}");
    support::scripted::say(&model, &script, &["<|im_end|>"]);
    let template = "{%- for message in messages -%}[{{ message.role }}]{{ message.content }}\
        {%- for call in message.tool_calls or [] -%}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{%- endfor -%}\
        {%- endfor -%}[assistant]";
    let after = format!(
        "{{%- if messages[-1].role == 'tool' -%}}{{{{ {} }}}}<|im_end|>{{%- endif -%}}",
        serde_json::Value::from(CALL)
    );
    std::fs::write(model.join("chat_template.jinja"), format!("{template}{after}")).unwrap();
    folder
}

#[test]
fn responses_are_what_openais_client_reads() {
    let folder = agent();
    let arguments = [&ARGUMENTS[..4], &["--max-model-len", "4096"]].concat();
    run_python("responses_client.py", &client::Server::start(folder.path(), &arguments));
}

#[test]
fn messages_are_what_anthropics_client_reads() {
    let folder = agent();
    let arguments = [&ARGUMENTS[..4], &["--max-model-len", "4096"]].concat();
    run_python("anthropic_client.py", &client::Server::start(folder.path(), &arguments));
}

/// A model of random weights, whose calls are required of it.
#[test]
fn npms_clients_are_answered() {
    let clients = std::env::var_os("FIRSTLIGHT_NPM_CLIENTS");
    let clients = clients.expect("FIRSTLIGHT_NPM_CLIENTS is not set: run `cargo xtask test`");
    let folder = model::ending("granite-moe-mini");
    let template =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/templates/granite-4.0.jinja");
    std::fs::copy(template, folder.path().join("m/chat_template.jinja")).unwrap();
    let server = client::Server::start(folder.path(), &["--served-model-name", "mini"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/npm_clients.mjs");
    let ran = Command::new("node")
        .args([script, &format!("http://{}/v1", server.address)])
        .arg(clients)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.ends_with("all of it\n"), "{said}");
    client::wait(|| server.is_free());
}
