//! Overload and disconnects. The test sends two rounds of 256 requests; another number is set with
//!
//! ```text
//! FIRSTLIGHT_REQUESTS=10000 cargo test -p firstlight --test serve overload
//! ```

use crate::client::{Answer, Server, posted, wait};
use crate::model::model;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};

#[test]
fn disconnected_client_frees_its_slot() {
    let folder = model("kimi-linear-mini");
    let server =
        Server::start(folder.path(), &["--max-num-seqs", "2", "--max-num-queued-reqs", "1"]);
    let long = json!({ "prompt": "hello", "max_tokens": 4000, "ignore_eos": true, "stream": true, "temperature": 1.0 });
    let mut streams = Vec::new();
    for open in 1..=3 {
        streams.push(server.begin_stream(&long));
        wait(|| server.get("/load").json()["server_load"] == open);
    }
    wait(|| server.health()["running"] == 2 && server.health()["waiting"] == 1);
    // One more request, streamed or not, is refused with Retry-After.
    for stream in [true, false] {
        let refused = server
            .post("/v1/completions", &json!({ "prompt": "x", "max_tokens": 1, "stream": stream }));
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (429, &json!("rate_limit_exceeded"))
        );
        let after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&after), "{after}");
    }
    // Two clients disconnect: one that has read a part, and one that has read nothing.
    let mut some = [0; 400];
    streams[0].read_exact(&mut some).unwrap();
    drop(streams.drain(..2));
    wait(|| server.get("/load").json()["server_load"] == 1);
    let whole = Answer::read(&mut streams[0]);
    let tokens = whole.events().len();
    assert!(tokens > 100, "{tokens}");
    // A client that waits for a whole answer disconnects, with and without keep-alive.
    for (http, connection) in [("1.1", "close"), ("1.1", "keep-alive"), ("1.0", "close")] {
        server.wait_until_free();
        let body = json!({ "prompt": "hello", "max_tokens": 4000, "ignore_eos": true }).to_string();
        let request = posted("/v1/completions", &body);
        let request = request.replace("connection: close", &format!("connection: {connection}"));
        let request = request.replace("HTTP/1.1", &format!("HTTP/{http}"));
        let mut quiet = server.connect();
        quiet.write_all(request.as_bytes()).unwrap();
        wait(|| server.health()["running"] == 1);
        drop(quiet);
    }
    server.wait_until_free();
    let abort =
        "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"}";
    assert_eq!(server.metric(abort), 5.0);
}

#[test]
fn overload_gets_answers_or_retry_after() {
    let folder = model("granite-moe-mini");
    let server = Server::start(
        folder.path(),
        &["--max-num-seqs", "4", "--max-num-queued-reqs", "4", "--max-model-len", "512"],
    );
    let one = |client: usize, at: usize| {
        let stream = (client + at).is_multiple_of(2);
        let body = json!({ "prompt": format!("{client} {at}"), "max_tokens": 5 + (client * 7 + at) % 60, "ignore_eos": true, "stream": stream, "n": 1 + at % 2 });
        // Some clients disconnect early.
        if (client + at + 4).is_multiple_of(7) {
            drop(server.begin_stream(&body));
            return None;
        }
        let answer = server.post("/v1/completions", &body);
        if answer.status == 200 {
            // Answers are complete under load.
            if stream {
                assert!(!answer.events().is_empty())
            } else {
                answer.json();
            }
        }
        Some(answer.status)
    };
    let round = |clients: usize, requests: usize| {
        let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..clients)
                .map(|client| {
                    scope.spawn(move || {
                        (0..requests).filter_map(|at| one(client, at)).collect::<Vec<u16>>()
                    })
                })
                .collect();
            for status in clients.into_iter().flat_map(|client| client.join().unwrap()) {
                *counts.entry(status).or_default() += 1;
            }
        });
        server.wait_until_free();
        counts
    };
    let clients = 32;
    let requests: usize =
        std::env::var("FIRSTLIGHT_REQUESTS").map_or(256, |count| count.parse().unwrap());
    let counts = round(clients, requests.div_ceil(clients));
    let statuses: Vec<u16> = counts.keys().copied().collect();
    assert_eq!(statuses, [200, 429], "{counts:?}");
    // A second round needs no more threads or memory.
    #[cfg(target_os = "linux")]
    {
        let (threads, bytes) = server.taken();
        round(clients, requests.div_ceil(clients));
        wait(|| server.taken().0 <= threads);
        let grown = server.taken().1.saturating_sub(bytes);
        assert!(grown < 16 << 20, "{grown} bytes more");
    }
    assert_eq!(server.health()["failed_steps"], 0);
}
