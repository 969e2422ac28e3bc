//! Two indexes with one package in both: what uv makes of them, and why torch's index is only ever an explicit one.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use crate::server::Server;
use crate::stack::torch;
use crate::tools::{python, uv_command};
use crate::wheel::Wheel;
use std::path::Path;
use std::process::Output;

/// Row R1-06: torch's index carries an old requests of its own beside torch, PyPI the current one.
fn servers() -> Server {
    let server = Server::start();
    let requests =
        |version| Wheel::new("requests", version, "py3-none-any").file("requests.py", "").build();
    server.index("cu128", &torch("2.8.0+cu128").build());
    server.index("cu128", &requests("2.28.1"));
    server.index("simple", &requests("2.32.5"));
    server
}

/// What uv resolves these requirements to.
fn compile(server: &Server, folder: &Path, requirements: &str, arguments: &[&str]) -> Output {
    let file = folder.join("requirements.in");
    std::fs::write(&file, requirements).unwrap();
    let (default, own) = (server.url("simple"), server.url("cu128"));
    let mut command = uv_command(&["pip", "compile", "--no-header", "--no-annotate", "--no-cache"]);
    command.args(["--python-version", python(), "--default-index", &default, "--index", &own]);
    command.args(arguments).arg(&file).output().unwrap()
}

fn lines(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn r1_06_an_extra_index_hides_the_current_requests_and_unsafe_best_match_opens_it_to_anyone() {
    let (server, folder) = (servers(), tempfile::tempdir().unwrap());
    let wanted = "torch\nrequests==2.32.5\n";
    // uv's default: the first index that has a package is the only one asked for it.
    let output = compile(&server, folder.path(), wanted, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("requests") && said.contains("2.32.5") && said.contains("cu128"),
        "{said}"
    );
    // The way out that is in every forum makes it resolve.
    let unsafe_match = ["--index-strategy", "unsafe-best-match"];
    let found = lines(&compile(&server, folder.path(), wanted, &unsafe_match));
    assert_eq!(found, ["requests==2.32.5", "torch==2.8.0+cu128"]);
    // And takes requests from whoever publishes a newer one where only torch was looked for.
    let newer = Wheel::new("requests", "99.0", "py3-none-any").file("requests.py", "").build();
    server.index("cu128", &newer);
    let found = lines(&compile(&server, folder.path(), "torch\nrequests\n", &unsafe_match));
    assert_eq!(found, ["requests==99.0", "torch==2.8.0+cu128"]);
}
