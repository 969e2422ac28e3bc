//! Errors for invalid requests and options.

use crate::client::{Answer, Server, posted, wait};
use crate::model::{model, overflow_on};
use crate::support::{expect, refuses};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use tempfile::tempdir;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[test]
fn chat_without_a_template_is_refused_with_an_alternative() {
    let folder = model("granite-moe-mini");
    std::fs::remove_file(folder.path().join("m/chat_template.jinja")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for (path, body) in [
        (CHAT, json!({ "messages": messages })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "hi" })),
        ("/tokenize", json!({ "messages": messages })),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        for words in
            ["no usable chat template", "chat_template.jinja: there is no", "/v1/completions"]
        {
            assert!(answer.body.contains(words), "{path}: no `{words}` in {}", answer.body);
        }
    }
    assert_eq!(server.post(TEXT, &json!({ "prompt": "x", "max_tokens": 2 })).status, 200);
}

#[test]
fn invalid_fields_are_refused_by_name() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &["--max-model-len", "256"]);
    let user = json!([{ "role": "user", "content": "hi" }]);
    let with = |name: &str, value: Value| {
        let mut body = json!({ "prompt": "x", "max_tokens": 2 });
        body[name] = value;
        body
    };
    for (path, body, param, words) in [
        (TEXT, with("top_kk", json!(1)), "top_kk", "the server does not know the field `top_kk`"),
        (
            TEXT,
            with("logit_bias", json!({ "5": 101 })),
            "logit_bias.5",
            "is 101, expected a number from",
        ),
        (TEXT, with("logit_bias", json!({ "5": "a" })), "logit_bias.5", "expected a number"),
        (
            TEXT,
            with("logit_bias", json!({ "5": 1, "512": 1 })),
            "logit_bias.512",
            "expected a token id below 512",
        ),
        (TEXT, with("logit_bias", json!({ "x": 100 })), "logit_bias.x", "expected a token id"),
        (TEXT, with("suffix", json!("end")), "suffix", "fill-in-the-middle"),
        (
            TEXT,
            with("temperature", json!("hot")),
            "temperature",
            "`temperature` is \"hot\", expected a number",
        ),
        (
            TEXT,
            with("temperature", json!(-1)),
            "temperature",
            "`temperature` is -1, expected 0 or more",
        ),
        (TEXT, with("top_p", json!(0)), "top_p", "`top_p` is 0, expected a number above 0"),
        (TEXT, with("n", json!(0)), "n", "expected a whole number from 1 to 128"),
        (TEXT, with("n", json!(129)), "n", "expected a whole number from 1 to 128"),
        (TEXT, with("max_tokens", json!(0)), "max_tokens", "expected a whole number, 1 or more"),
        (
            TEXT,
            with("max_tokens", json!(256)),
            "prompt",
            "1 prompt tokens and 256 tokens to generate exceed the limit of 256",
        ),
        (TEXT, with("logprobs", json!(21)), "logprobs", "from 0 to 20"),
        (TEXT, with("stop", json!(7)), "stop", "expected a string or a list of strings"),
        (TEXT, with("stop", json!(vec!["x"; 17])), "stop", "17 texts, expected at most 16"),
        (TEXT, with("prompt", json!("")), "prompt", "the prompt has no tokens"),
        (TEXT, with("prompt", json!([])), "prompt", "the prompt has no tokens"),
        (TEXT, with("prompt", json!(["x", 1])), "prompt", "a list of token ids"),
        (
            TEXT,
            with("prompt", json!([1, 512])),
            "prompt",
            "token 512 is beyond the model's vocabulary of 512",
        ),
        (TEXT, with("prompt", json!({})), "prompt", "expected a text"),
        (TEXT, json!({ "max_tokens": 1 }), "prompt", "`prompt` is missing"),
        (
            TEXT,
            with("stream_options", json!({})),
            "stream_options",
            "`stream_options` requires `stream`",
        ),
        (TEXT, with("max_completion_tokens", json!(2)), "max_completion_tokens", "does not know"),
        (CHAT, json!({}), "messages", "`messages` is missing"),
        (CHAT, json!({ "messages": [] }), "messages", "expected a list of messages"),
        (CHAT, json!({ "messages": ["hi"] }), "messages[0]", "expected an object"),
        (CHAT, json!({ "messages": [{ "content": "hi" }] }), "messages[0].role", "is missing"),
        (
            CHAT,
            json!({ "messages": [{ "role": "robot", "content": "hi" }] }),
            "messages",
            "no role robot",
        ),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content",
            "the model reads text",
        ),
        (
            CHAT,
            json!({ "messages": user, "top_logprobs": 2 }),
            "top_logprobs",
            "requires `logprobs`",
        ),
        (
            CHAT,
            json!({ "messages": user, "add_generation_prompt": false }),
            "add_generation_prompt",
            "an answer is a separate message",
        ),
        ("/tokenize", json!({}), "messages", "is missing"),
        (
            "/detokenize",
            json!({ "tokens": [1, 100_000] }),
            "tokens",
            "token 100000 is not in the vocabulary",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {body} {}", answer.body);
        let said = answer.error();
        assert!(said.contains(words), "{body}: {said}");
        let named = &answer.json()["error"]["param"];
        assert_eq!(named.as_str().unwrap_or(""), param, "{body}");
    }
    let user = json!([{ "role": "user", "content": "x".repeat(300) }]);
    for (path, body, code) in [
        (TEXT, with("top_kk", json!(1)), "unknown_parameter"),
        (TEXT, with("temperature", json!("hot")), "invalid_type"),
        (TEXT, with("temperature", json!(-1)), "integer_below_min_value"),
        (TEXT, with("top_p", json!(1.5)), "decimal_above_max_value"),
        (TEXT, with("n", json!(129)), "integer_above_max_value"),
        (TEXT, with("stop", json!(vec!["x"; 17])), "array_above_max_length"),
        (TEXT, json!({ "max_tokens": 1 }), "missing_required_parameter"),
        (TEXT, with("best_of", json!(3)), "unsupported_value"),
        (CHAT, json!({ "messages": user, "web_search_options": {} }), "unsupported_parameter"),
        (TEXT, with("max_tokens", json!(256)), "context_length_exceeded"),
        (TEXT, with("prompt", json!("x".repeat(300))), "context_length_exceeded"),
        (CHAT, json!({ "messages": user }), "context_length_exceeded"),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.json()["error"]["code"], code, "{path} {body}");
        if code == "context_length_exceeded" {
            let said = answer.error();
            assert!(said.contains("maximum context length is 256 tokens"), "{said}");
        }
    }
    let answer = server.post(TEXT, &json!({ "model": "gpt-4", "prompt": "x" }));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(answer.error().contains("this server has m"));
    for (method, path, status) in
        [("GET", "/v1/complete", 404), ("GET", TEXT, 405), ("DELETE", "/health", 405)]
    {
        let answer = server
            .send(&format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(answer.error().contains(path));
    }
    server.wait_until_free();
}

#[test]
fn malformed_or_huge_bodies_do_not_affect_other_clients() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &[]);
    let deep = "[".repeat(100_000);
    for (body, status, words) in [
        ("", 400, "the body is not JSON"),
        ("{\"prompt\": \"x\"", 400, "the body is not JSON: EOF"),
        ("\u{0}\u{1}", 400, "the body is not JSON"),
        ("[1]", 400, "the body is not a JSON object"),
        ("\"x\"", 400, "the body is not a JSON object"),
        (deep.as_str(), 400, "recursion limit"),
        ("{\"prompt\": \"\\ud800\"}", 400, "the body is not JSON"),
    ] {
        let answer = server.send(&posted(TEXT, body));
        assert_eq!(answer.status, status, "{body:.40}");
        assert!(answer.error().contains(words), "{}", answer.body);
    }
    // The body is too large, by its Content-Length or by its chunks.
    let head = format!("POST {TEXT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    let said = server.send(&format!("{head}content-length: 99999999\r\n\r\n"));
    assert_eq!(
        (said.status, said.error()),
        (413, "the body is larger than 16777216 bytes".to_owned())
    );
    let mut stream = server.connect();
    stream.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    while stream.write_all(chunk.as_bytes()).is_ok() {}
    // A small body that asks for much work is refused at once: 128 answers to each of a million prompts, or to one prompt
    // of a million tokens.
    for prompt in [vec![json!([1]); 1_000_000], vec![json!(1); 1_000_000]] {
        let answer = server.post(TEXT, &json!({ "prompt": prompt, "n": 128, "max_tokens": 1 }));
        assert_eq!(answer.status, 400, "{}", answer.body);
        let words = [
            "128000000 sequences in one request exceed the limit",
            "the prompt has 1000000 tokens",
        ];
        assert!(words.iter().any(|words| answer.error().contains(words)), "{}", answer.body);
    }
    #[cfg(target_os = "linux")]
    assert!(server.taken().1 < 1 << 30, "memory is freed: {:?}", server.taken());
    // Connections with half a request do not delay others.
    let mut never: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for stream in &mut never {
        stream.write_all(format!("{head}content-length: 100\r\n\r\n{{\"pro").as_bytes()).unwrap();
    }
    let mut head_alone = server.connect();
    head_alone.write_all(b"POST /v1/comple").unwrap();
    let fine = server.ask(TEXT, &json!({ "prompt": "x", "max_tokens": 2 }));
    assert_eq!(fine["usage"]["completion_tokens"], 2);
    drop(never);
    // A request that is no HTTP gets a 400 or a closed connection.
    let nonsense = server.send("\u{1}\u{2}nonsense\r\n\r\n");
    assert!(nonsense.status == 400 || nonsense.status == 0, "{nonsense:?}");
    server.wait_until_free();
    assert_eq!(server.health()["failed_steps"], 0);
}

#[test]
fn api_keys_protect_endpoints() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &["--api-key", "sesame", "--api-key", "second"]);
    let ask = |path: &str, key: Option<&str>| {
        let key = key.map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
        server.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n{key}connection: close\r\n\r\n"))
    };
    for path in ["/v1/models", "/metrics", "/load", "/version"] {
        for wrong in [None, Some("sesam"), Some("sesame2"), Some("")] {
            let answer = ask(path, wrong);
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, Some("bearer")),
                "{path}"
            );
            assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        }
        for right in ["sesame", "second"] {
            assert_eq!(ask(path, Some(right)).status, 200, "{path}");
        }
    }
    // Without a key the body is not parsed.
    assert_eq!(server.post(TEXT, &json!({ "top_kk": 1 })).status, 401);
    assert_eq!(server.first["keys"], 2);
    for path in ["/health", "/ping"] {
        assert_eq!(ask(path, None).status, 200, "probes have no key");
    }
}

#[test]
fn nan_logits_end_only_their_request() {
    let folder = model("kimi-linear-mini");
    // A token that does not occur in the other answers.
    const BAD: usize = 411;
    overflow_on(folder.path(), BAD);
    let server = Server::start(folder.path(), &[]);
    let good = json!({ "prompt": "hello", "max_tokens": 300, "temperature": 0, "ignore_eos": true, "logprobs": 0 });
    let tokens = |answer: Value| answer["choices"][0]["logprobs"]["tokens"].clone();
    let alone = tokens(server.ask(TEXT, &good));
    std::thread::scope(|scope| {
        let others: Vec<_> =
            (0..3).map(|_| scope.spawn(|| tokens(server.ask(TEXT, &good)))).collect();
        wait(|| server.health()["running"].as_u64() > Some(0));
        let bad = server.post(TEXT, &json!({ "prompt": [104, BAD, 105], "max_tokens": 5 }));
        assert_eq!((bad.status, &bad.json()["error"]["code"]), (500, &json!("engine_error")));
        assert!(bad.error().contains("NaN"), "{}", bad.body);
        // A stream has already begun, so the error is an event.
        let streamed = server.post(TEXT, &json!({ "prompt": [BAD], "stream": true }));
        let events: Vec<Value> = Answer::events(&streamed);
        assert_eq!(events.last().unwrap()["error"]["code"], "engine_error", "{events:?}");
        for answer in others {
            assert_eq!(answer.join().unwrap(), alone, "another request changed");
        }
    });
    let health = server.health();
    assert_eq!(health["status"], "ready");
    assert!(
        health["failed_steps"].as_u64().unwrap() >= 2
            && health["last_error"]["message"].as_str().unwrap().contains("NaN"),
        "{health}"
    );
    server.wait_until_free();
}

#[test]
fn invalid_options_fail_before_loading() {
    let folder = model("granite-moe-mini");
    let here = folder.path();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let hints = |arguments: &[&str], sentence: &str, hint: &str| {
        refuses(here, arguments, &[sentence]);
        let (_, err) = expect(here, arguments, 2);
        assert!(err.lines().nth(1).unwrap().contains(hint), "no `{hint}` in {err}");
    };
    hints(
        &["serve", "m", "--port", &port],
        &format!("cannot listen on 127.0.0.1:{port}"),
        "--port 0",
    );
    hints(&["serve", "m", "--host", "203.0.113.7"], "cannot listen on 203.0.113.7:8000", "0.0.0.0");
    hints(&["serve", "absent", "--port", "0"], "absent/config.json", "check the path");
    hints(
        &["serve", "m", "--port", "0", "--max-model-len", "4097"],
        "--max-model-len is 4097, the model's context is 4096",
        "leave it out",
    );
    hints(&["serve", "m", "--port", "0", "--api-key", ""], "an API key is empty", "openssl rand");
    // More than any machine can hold; the hint has the limit.
    let many = ["serve", "m", "--port", "0", "--max-num-seqs", "400000000"];
    hints(
        &many,
        "400000000 requests at once leave too little memory",
        "the largest that fit: --max-num-seqs ",
    );
    // This number of sequences fits only with less than the model's context, which is not reduced silently.
    let line = ["serve", "m", "--port", "0", "--backend", "cpu", "--max-num-seqs", "1000000"];
    hints(
        &line,
        "leave too little memory for one of 4096 tokens, the model's context",
        "--max-num-seqs ",
    );
    // One sequence of 4096 tokens would fit, and so would 100,000 short ones, but not 100,000 of 4096 tokens.
    let both = ["--max-num-seqs", "100000", "--max-model-len", "4096"];
    hints(
        &[&["serve", "m", "--port", "0", "--backend", "cpu"][..], &both].concat(),
        "100000 requests at once of 4096 tokens each need ",
        "the largest that fit: --max-num-seqs ",
    );
    hints(
        &["serve", "m", "--port", "0", "--swap-space", "100000"],
        "--swap-space 100000 is more than the RAM that is free",
        "at most --swap-space ",
    );
    std::fs::remove_file(here.join("m/tiktoken.model")).unwrap();
    hints(
        &["serve", "m", "--port", "0"],
        "tokenizer.json",
        "put the tokenizer published with the weights",
    );
    let empty = tempdir().unwrap();
    refuses(empty.path(), &["serve", "m"], &["m/config.json"]);
}
