//! A server with tensor parallel ranks in several processes.
#![cfg(target_os = "linux")] // Processes are found in /proc.

use crate::client::{Answer, Server, wait};
use crate::model::model;
use crate::support::fake_driver::with_gpu;
use crate::support::processes::{children, gone, kill};
use crate::support::refuses;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SPLIT: &[&str] = &["--backend", "cpu", "--tp", "2", "--shutdown-timeout", "600"];

fn signal(name: &str, id: u32) {
    let sent = std::process::Command::new("kill").args(["-s", name, &id.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn tensor_parallel_answers_are_equal_and_ranks_exit() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        let folder = model(name);
        let questions = ["hello", "and a longer one, hello hello hello", "hello"].map(|prompt| {
            // Sampled, because a random model repeats one token under greedy decoding; the logits are the same.
            json!({ "prompt": prompt, "max_tokens": 12, "temperature": 1, "seed": 3, "ignore_eos": true })
        });
        let answers = |server: &Server| {
            questions
                .iter()
                .map(|question| {
                    let answer = server.ask("/v1/completions", question);
                    (answer["choices"][0]["text"].clone(), answer["usage"].clone())
                })
                .collect::<Vec<(Value, Value)>>()
        };
        let want = answers(&Server::start(folder.path(), &["--backend", "cpu"]));
        let server = Server::start(folder.path(), SPLIT);
        assert_eq!(answers(&server), want, "{name}");
        let ranks = children(server.id());
        assert_eq!(ranks.len(), 1);
        // Terminals and service managers signal every process of the group; open requests are completed.
        let long =
            json!({ "prompt": "hello", "max_tokens": 300, "ignore_eos": true, "stream": true });
        let mut open = server.begin_stream(&long);
        wait(|| server.health()["running"] == 1);
        signal("TERM", ranks[0]);
        signal("INT", ranks[0]);
        server.signal("TERM");
        let last = Answer::read(&mut open).events().pop().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length", "{name}");
        let (status, _, said) = server.end();
        assert_eq!((status, said.as_str()), (Some(0), ""), "{name}");
        assert!(gone(&ranks) < Duration::from_secs(10));
    }
}

#[test]
fn killed_rank_ends_the_server_and_is_named() {
    let folder = model("granite-hybrid-mini");
    for busy in [true, false] {
        let server = Server::start(folder.path(), &["--backend", "cpu", "--tp", "4"]);
        let ranks = children(server.id());
        let long =
            json!({ "prompt": "hello", "max_tokens": 3000, "ignore_eos": true, "stream": true });
        let open = busy.then(|| server.begin_stream(&long));
        wait(|| server.health()["running"] == i32::from(busy));
        kill(ranks[1]);
        let start = Instant::now();
        if let Some(mut open) = open {
            let told = Answer::read(&mut open).events().pop().unwrap();
            let told = told["error"]["message"].as_str().unwrap().to_owned();
            assert!(told.contains("rank 2 has ended: signal: 9 (SIGKILL)"), "{told}");
        }
        let (status, _, said) = server.end();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(status, Some(2), "{said}");
        assert!(said.starts_with("error: rank 2 has ended: signal: 9 (SIGKILL)\n"), "{said}");
        assert!(gone(&ranks) < Duration::from_secs(10));
    }
}

#[test]
fn rejects_indivisible_tensor_parallel_size() {
    let folder = model("granite-moe-mini");
    let arguments = ["serve", "m", "--port", "0", "--backend", "cpu", "--tp", "7"];
    refuses(folder.path(), &arguments, &["the model cannot be split: "]);
}

#[test]
fn two_servers_use_separate_gpus() {
    let folder = model("granite-hybrid-mini");
    let on = |gpu: &str| {
        let arguments = ["serve", "m", "--port", "0", "--backend", "cuda", "--json"];
        // GPU 1 crashes the process that runs a kernel on it.
        let behaviour =
            [("FAKE_CUDA_GPUS", "2"), ("FAKE_CUDA_ENDS", "1"), ("CUDA_VISIBLE_DEVICES", gpu)];
        Server::by(with_gpu(folder.path(), &arguments, &behaviour))
    };
    let (first, other) = (on("0"), on("1"));
    assert_ne!(first.address, other.address);
    // The second server crashes when it records its first steps.
    assert_ne!(other.end().0, Some(0));
    let question = json!({ "prompt": "hello", "max_tokens": 3 });
    // The stand-in GPU computes no useful answer, but the server stays up.
    wait(|| first.get("/health").status == 200);
    assert_ne!(first.post("/v1/completions", &question).status, 0);
    assert_eq!(first.get("/health").status, 200);
    first.signal("TERM");
    assert_eq!(first.end().0, Some(0));
}
