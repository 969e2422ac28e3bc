//! The clients of OpenAI and Anthropic, the AI SDK, Codex and pages in Chromium against `firstlight serve`: their requests, and how they
//! parse answers, streams and errors.
//!
//! `cargo xtask test` installs them. It names the Python that has OpenAI's in FIRSTLIGHT_OPENAI_PYTHON, the folder that has those of
//! npm in FIRSTLIGHT_NPM_CLIENTS, the program of Codex in FIRSTLIGHT_CODEX and the folder that has Chromium in FIRSTLIGHT_BROWSER.

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
fn serves_openai_client() {
    let folder = model::model("kimi-linear-mini");
    run_python("openai_client.py", &client::Server::start(folder.path(), &ARGUMENTS));
}

#[test]
fn openai_fields_match_the_table() {
    let folder = model::ending("granite-moe-mini");
    run_python("openai_fields.py", &client::Server::start(folder.path(), &ARGUMENTS));
}

const ANSWER: &str = "It does not rain in Ulm.";

/// A model that calls a function, and answers once the last message is a tool's: then the prompt ends with the first half of the
/// script. The prompt has only the end of each message.
fn agent(function: &str, arguments: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m");
    let call = format!(
        "<tool_call>\n{{\"name\": \"{function}\", \"arguments\": {arguments}}}\n</tool_call>"
    );
    let script = format!("{call}<|im_end|>{ANSWER}");
    support::scripted::say(&model, &script, &["<|im_end|>"]);
    let template = "{%- for message in messages -%}[{{ message.role }}]{{ (message.content or '')[-9000:] }}\
        {%- for call in message.tool_calls or [] -%}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{%- endfor -%}\
        {%- endfor -%}[assistant]";
    let after = format!(
        "{{%- if messages[-1].role == 'tool' -%}}{{{{ {} }}}}<|im_end|>{{%- endif -%}}",
        serde_json::Value::from(call)
    );
    std::fs::write(model.join("chat_template.jinja"), format!("{template}{after}")).unwrap();
    folder
}

fn weather() -> tempfile::TempDir {
    agent("weather", r#"{"place": "Ulm"}"#)
}

#[test]
fn openai_client_calls_tools() {
    let folder = weather();
    let arguments = [&ARGUMENTS[..4], &["--max-model-len", "4096"]].concat();
    run_python("tools_client.py", &client::Server::start(folder.path(), &arguments));
}

#[test]
fn openai_client_parses_responses() {
    let folder = weather();
    let arguments = [&ARGUMENTS[..4], &["--max-model-len", "4096"]].concat();
    run_python("responses_client.py", &client::Server::start(folder.path(), &arguments));
}

#[test]
fn anthropic_client_parses_messages() {
    let folder = weather();
    let arguments = [&ARGUMENTS[..4], &["--max-model-len", "4096"]].concat();
    run_python("anthropic_client.py", &client::Server::start(folder.path(), &arguments));
}

/// Codex parses the model's call, runs it and returns the result.
#[test]
fn codex_runs_model_commands() {
    let codex = std::env::var_os("FIRSTLIGHT_CODEX");
    let codex = codex.expect("FIRSTLIGHT_CODEX is not set: run `cargo xtask test`");
    let folder = agent("exec_command", r#"{"cmd": "echo it works > made.txt"}"#);
    // Codex sends about 20,000 characters of instructions.
    let template = folder.path().join("m/chat_template.jinja");
    let short = std::fs::read_to_string(&template).unwrap().replace("-9000", "-20");
    std::fs::write(&template, short).unwrap();
    let server = client::Server::start(folder.path(), &["--served-model-name", "mini"]);
    let (home, work) = (folder.path().join("home"), folder.path().join("work"));
    for folder in [&home, &work] {
        std::fs::create_dir(folder).unwrap();
    }
    let config = format!(
        "model = \"mini\"\nmodel_provider = \"firstlight\"\nweb_search = \"disabled\"\n[model_providers.firstlight]\nname = \"firstlight\"\n\
         base_url = \"http://{}/v1\"\nwire_api = \"responses\"\n",
        server.address
    );
    std::fs::write(home.join("config.toml"), config).unwrap();
    let ran = Command::new(codex)
        .args(["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"])
        .arg("Does it rain in Ulm?")
        .current_dir(&work)
        .env("CODEX_HOME", &home)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let (said, log) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}{log}");
    assert_eq!(said.trim(), ANSWER, "{log}");
    assert_eq!(std::fs::read_to_string(work.join("made.txt")).unwrap(), "it works\n", "{log}");
}

/// Runs a script of Node, whose second argument is a folder with packages; it has to print `all of it` at its end.
fn run_node(script: &str, variable: &str, arguments: &[String]) {
    let packages = std::env::var_os(variable);
    let packages =
        packages.unwrap_or_else(|| panic!("{variable} is not set: run `cargo xtask test`"));
    let script = format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new("node").arg(script).arg(packages).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.ends_with("all of it\n"), "{said}");
}

/// A model of random weights with a required tool call.
#[test]
fn serves_npm_clients() {
    let folder = model::ending("granite-moe-mini");
    let template =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/templates/granite-4.0.jinja");
    std::fs::copy(template, folder.path().join("m/chat_template.jinja")).unwrap();
    let server = client::Server::start(folder.path(), &["--served-model-name", "mini"]);
    let address = format!("http://{}/v1", server.address);
    run_node("npm_clients.mjs", "FIRSTLIGHT_NPM_CLIENTS", &[address]);
    client::wait(|| server.is_free());
}

/// A local page, a page of another site and a page with an API key.
#[test]
fn browser_obeys_cors_policy() {
    let folder = tempfile::tempdir().unwrap();
    support::scripted::say(&folder.path().join("m"), ANSWER, &["<|im_end|>"]);
    let template = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}[assistant]";
    std::fs::write(folder.path().join("m/chat_template.jinja"), template).unwrap();
    let without_key = client::Server::start(folder.path(), &["--served-model-name", "mini"]);
    let with_key = client::Server::start(folder.path(), &ARGUMENTS[..4]);
    let servers = [&without_key, &with_key].map(|server| format!("http://{}", server.address));
    run_node(
        "browser_pages.mjs",
        "FIRSTLIGHT_BROWSER",
        &[&servers[..], &[ANSWER.to_owned()]].concat(),
    );
    for server in [without_key, with_key] {
        client::wait(|| server.is_free());
    }
}
