//! Pages of other origins: CORS, and requests that browsers send without a preflight.

use super::client::{Answer, Server};
use super::model::model;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const FOREIGN: &str = "https://example.com";
const LOCAL: &str = "http://localhost:3000";

/// The preflight of a page that posts JSON with a key.
fn preflight(server: &Server, origin: &str, path: &str) -> Answer {
    let origin = format!("origin: {origin}");
    let head = [
        origin.as_str(),
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,content-type",
    ];
    server.ask_with("OPTIONS", path, &head)
}

/// A request of a page for something that needs no preflight.
fn get(server: &Server, origin: &str, path: &str) -> Answer {
    server.ask_with("GET", path, &[&format!("origin: {origin}")])
}

fn allows(answer: &Answer) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

#[test]
fn local_origins_need_no_key() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &[]);
    for path in [CHAT, "/v1/models", "/v1/nothing"] {
        let answer = preflight(&server, LOCAL, path);
        assert_eq!((answer.status, allows(&answer)), (204, Some(LOCAL)), "{path}");
        let headers = answer.header("access-control-allow-headers");
        assert_eq!(headers, Some("authorization,content-type"));
        assert_eq!(answer.header("access-control-allow-methods"), Some("post"));
        assert_eq!(answer.header("vary"), Some("origin"));
        let answer = preflight(&server, FOREIGN, path);
        assert_eq!((answer.status, allows(&answer)), (403, None), "{path}");
        assert!(answer.error().contains("--allowed-origins https://example.com"));
    }
    let answer = get(&server, LOCAL, "/v1/models");
    assert_eq!((answer.status, allows(&answer)), (200, Some(LOCAL)));
    // Errors are readable too.
    let answer = get(&server, LOCAL, "/v1/models/none");
    assert_eq!((answer.status, allows(&answer)), (404, Some(LOCAL)));
    for origin in [FOREIGN, "null", "http://localhost.example.com"] {
        let answer = get(&server, origin, "/v1/models");
        assert_eq!((answer.status, allows(&answer)), (403, None), "{origin}");
        assert_eq!(answer.json()["error"]["code"], "origin_not_allowed");
    }
    // Requests of other programs have no Origin header.
    let answer = server.get("/v1/models");
    assert_eq!((answer.status, allows(&answer)), (200, None));
    // A page may read the answer to an OPTIONS request that is no preflight.
    let answer = server.ask_with("OPTIONS", CHAT, &[&format!("origin: {LOCAL}")]);
    assert_eq!((answer.status, allows(&answer)), (405, Some(LOCAL)));
    // OPTIONS without an origin is an unsupported method.
    assert_eq!(server.ask_with("OPTIONS", CHAT, &[]).status, 405);
}

#[test]
fn rejects_cross_site_post_without_preflight() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &["--allowed-origins", "*"]);
    let body = json!({ "prompt": "x", "max_tokens": 1 }).to_string();
    let post = |head: &str| {
        let length = body.len();
        server.send(&format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    };
    for simple in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    {
        let answer = post(&format!("content-type: {simple}\r\norigin: {FOREIGN}\r\n"));
        assert_eq!(answer.status, 415, "{simple}");
        assert_eq!(answer.json()["error"]["code"], "unsupported_content_type");
        assert!(answer.error().contains("Content-Type: application/json"), "{}", answer.body);
    }
    let answer =
        post(&format!("content-type: application/json; charset=utf-8\r\norigin: {FOREIGN}\r\n"));
    assert_eq!((answer.status, allows(&answer)), (200, Some("*")));
    let server = Server::start(folder.path(), &[]);
    let post = |head: &str| {
        server.send(&format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    // A body without a content type is refused by its origin.
    assert_eq!(post(&format!("origin: {FOREIGN}\r\n")).status, 403);
    assert_eq!(post("").status, 200);
    server.wait_until_free();
}

#[test]
fn vllm_options_configure_cors() {
    let folder = model("granite-moe-mini");
    let options = [
        "--allowed-origins",
        r#"["https://example.com"]"#,
        "--allowed-methods",
        "GET,POST",
        "--allowed-headers",
        r#"["Content-Type"]"#,
        "--allow-credentials",
    ];
    let server = Server::start(folder.path(), &options);
    let answer = preflight(&server, FOREIGN, CHAT);
    assert_eq!((answer.status, allows(&answer)), (204, Some(FOREIGN)));
    assert_eq!(answer.header("access-control-allow-methods"), Some("get, post"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("content-type"));
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    assert_eq!(preflight(&server, LOCAL, CHAT).status, 403);
    // With an API key all origins are allowed, because a foreign page does not have the key.
    let server = Server::start(folder.path(), &["--api-key", "sesame"]);
    let answer = preflight(&server, FOREIGN, CHAT);
    assert_eq!((answer.status, allows(&answer)), (204, Some("*")));
    let answer = get(&server, FOREIGN, "/v1/models");
    assert_eq!((answer.status, allows(&answer)), (401, Some("*")));
    let head = [&format!("origin: {FOREIGN}"), "authorization: Bearer sesame"];
    let answer = server.ask_with("GET", "/v1/models", &head);
    assert_eq!((answer.status, allows(&answer)), (200, Some("*")));
}
