//! OpenAI's own Python client against `firstlight serve`: what it sends by itself, how it reads answers, streams and errors.
//!
//! `cargo xtask test` installs it and names its Python in FIRSTLIGHT_OPENAI_PYTHON.

#![allow(clippy::unwrap_used, dead_code)] // Test support; this file uses its part.

mod support;

#[path = "serve/client.rs"]
mod client;
#[path = "serve/model.rs"]
mod model;

use std::process::Command;

#[test]
fn openais_client_is_answered() {
    let python = std::env::var_os("FIRSTLIGHT_OPENAI_PYTHON");
    let python = python.expect("FIRSTLIGHT_OPENAI_PYTHON is not set: run `cargo xtask test`");
    let folder = model::model("kimi-linear-mini");
    let arguments =
        ["--served-model-name", "mini", "--api-key", "sesame", "--max-model-len", "512"];
    let server = client::Server::start(folder.path(), &arguments);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let ran = Command::new(python)
        .args([script, &format!("http://{}/v1", server.address)])
        .env_remove("OPENAI_API_KEY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.ends_with("all of it\n"), "{said}");
    client::wait(|| server.is_free());
}
