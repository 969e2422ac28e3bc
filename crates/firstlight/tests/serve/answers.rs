//! Answers of `/v1/completions` and `/v1/chat/completions`, and the status endpoints.

use crate::client::Server;
use crate::model::model;
use crate::support::{expect, json as run};
use serde_json::{Value, json};
use std::path::Path;

/// The text of a token in log probabilities, with bytes escaped so that it is unique.
fn spelled(token: u64) -> String {
    match u8::try_from(token) {
        Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
        Ok(byte) => format!("bytes:\\x{byte:02x}"),
        Err(_) => format!("<|reserved_token_{token}|>"),
    }
}

/// The token texts and the text of `firstlight run`.
fn ran(folder: &Path, arguments: &[&str]) -> (Vec<String>, Value) {
    let ran = run(folder, &[&["run", "m", "--dtype", "f32"], arguments].concat(), 0);
    let answer = &ran["answers"][0];
    let ids = answer["tokens"].as_array().unwrap().iter();
    (ids.map(|id| spelled(id.as_u64().unwrap())).collect(), answer["text"].clone())
}

#[test]
fn greedy_answers_equal_run() {
    for name in ["kimi-linear-mini", "granite-moe-mini"] {
        let folder = model(name);
        let server = Server::start(folder.path(), &[]);
        let ask = |prompt: Value| {
            let body = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0, "ignore_eos": true });
            server.ask("/v1/completions", &body)
        };
        let texts = ["hello", "The sun", "x", "wörld"];
        let wanted: Vec<_> = texts
            .iter()
            .map(|text| ran(folder.path(), &["-p", text, "-n", "12", "--stop-ids", "511"]))
            .collect();
        // Separately, and all of them in one request.
        let all = ask(json!(texts));
        for (at, (text, (ids, said))) in texts.iter().zip(&wanted).enumerate() {
            for choice in [&ask(json!(text))["choices"][0], &all["choices"][at]] {
                assert_eq!(&choice["text"], said, "{name} {text}");
                assert_eq!(choice["logprobs"]["tokens"], json!(ids), "{name} {text}");
                assert_eq!(choice["finish_reason"], "length");
            }
            assert_eq!(all["choices"][at]["index"], at);
        }
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        assert_eq!(
            all["usage"],
            json!({ "prompt_tokens": bytes, "completion_tokens": 48, "total_tokens": bytes + 48,
                "prompt_tokens_details": { "cached_tokens": 0 } })
        );
        // Prompts of token ids: one list, and several lists.
        let (ids, _) = ran(folder.path(), &["--ids", "1,2,300", "-n", "12", "--stop-ids", "511"]);
        assert_eq!(ask(json!([1, 2, 300]))["choices"][0]["logprobs"]["tokens"], json!(ids));
        assert_eq!(ask(json!([[5], [1, 2, 300]]))["choices"][1]["logprobs"]["tokens"], json!(ids));
        server.wait_until_free();
    }
}

/// The joined chunks of each choice of a stream: text, log probabilities, finish reason.
fn joined(events: &[Value], chat: bool) -> Vec<(String, Vec<Value>, Value)> {
    let mut all: Vec<(String, Vec<Value>, Value)> = Vec::new();
    for event in events {
        for choice in event["choices"].as_array().unwrap() {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            if all.len() <= index {
                all.resize(index + 1, (String::new(), Vec::new(), Value::Null));
            }
            let (text, chances, finish) = &mut all[index];
            assert!(finish.is_null(), "a chunk follows the finish reason: {events:?}");
            let said = if chat { &choice["delta"]["content"] } else { &choice["text"] };
            text.push_str(said.as_str().unwrap());
            let key = if chat { "content" } else { "token_logprobs" };
            chances.extend(choice["logprobs"][key].as_array().into_iter().flatten().cloned());
            *finish = choice["finish_reason"].clone();
        }
    }
    all
}

#[test]
fn streamed_chunks_equal_the_whole_answer() {
    let folder = model("kimi-linear-mini");
    let server = Server::start(folder.path(), &["--served-model-name", "mini"]);
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let text = json!({ "prompt": ["hello", "you"] });
    for (path, asked, is_chat) in
        [("/v1/chat/completions", chat, true), ("/v1/completions", text, false)]
    {
        for logprobs in [false, true] {
            let mut asked = asked.clone();
            let all = asked.as_object_mut().unwrap();
            let settings = json!({ "max_tokens": 25, "temperature": 1.0, "top_p": 0.9, "seed": 7, "n": 2, "stop": ["q", "zz"] });
            all.extend(settings.as_object().unwrap().clone());
            if logprobs && is_chat {
                all.extend([
                    ("logprobs".to_owned(), json!(true)),
                    ("top_logprobs".to_owned(), json!(2)),
                ]);
            } else if logprobs {
                all.insert("logprobs".to_owned(), json!(2));
            }
            let whole = server.ask(path, &asked);
            let all = asked.as_object_mut().unwrap();
            all.insert("stream".to_owned(), json!(true));
            all.insert("stream_options".to_owned(), json!({ "include_usage": true }));
            let mut events = server.stream(path, &asked);
            let last = events.pop().unwrap();
            assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]), "{path}");
            let mut begun = Vec::new();
            for event in &events {
                assert_eq!((&event["model"], &event["usage"]), (&json!("mini"), &Value::Null));
                assert_eq!(event["id"], events[0]["id"]);
                for choice in event["choices"].as_array().unwrap() {
                    let first = !begun.contains(&choice["index"]);
                    begun.push(choice["index"].clone());
                    let role = if first && is_chat { json!("assistant") } else { Value::Null };
                    assert_eq!(choice["delta"]["role"], role);
                }
            }
            let parts = joined(&events, is_chat);
            let choices = whole["choices"].as_array().unwrap();
            assert_eq!((parts.len(), choices.len()), if is_chat { (2, 2) } else { (4, 4) });
            for ((text, chances, finish), choice) in parts.iter().zip(choices) {
                let said = if is_chat { &choice["message"]["content"] } else { &choice["text"] };
                assert_eq!((&json!(text), finish), (said, &choice["finish_reason"]), "{path}");
                let key = if is_chat { "content" } else { "token_logprobs" };
                let wanted = choice["logprobs"][key].as_array().cloned().unwrap_or_default();
                assert_eq!((chances, !chances.is_empty()), (&wanted, logprobs), "{path}");
                assert!(!text.contains('q') && !text.contains("zz"));
            }
            // With one seed, the choices differ from each other and repeat in the next request.
            assert_ne!(parts[0].0, parts[1].0);
            assert_eq!(
                server.ask(path, &{
                    let mut asked = asked.clone();
                    asked["stream"] = json!(false);
                    asked.as_object_mut().unwrap().remove("stream_options");
                    asked
                })["choices"],
                whole["choices"]
            );
        }
    }
    server.wait_until_free();
}

#[test]
fn stop_string_ends_answer_and_frees_slot() {
    let folder = model("kimi-linear-mini");
    let server = Server::start(folder.path(), &[]);
    let body = |stop: Value| json!({ "prompt": "hello", "max_tokens": 200, "temperature": 1.0, "seed": 3, "stop": stop, "ignore_eos": true });
    let whole = server.ask("/v1/completions", &body(json!([])));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["usage"]["completion_tokens"], 200);
    // The stop string is two adjacent characters, which are two tokens.
    let characters: Vec<(usize, char)> = text.char_indices().collect();
    let pair = characters.windows(2).find(|pair| {
        pair.iter().all(|(_, c)| c.is_ascii_graphic())
            && text.find(&format!("{}{}", pair[0].1, pair[1].1)) == Some(pair[0].0)
    });
    let pair = pair.unwrap_or_else(|| panic!("no two adjacent ASCII characters in {text}"));
    let stop = format!("{}{}", pair[0].1, pair[1].1);
    let stopped = server.ask("/v1/completions", &body(json!([stop, "never this"])));
    let choice = &stopped["choices"][0];
    assert_eq!(choice["text"], text[..pair[0].0], "{stop}");
    assert_eq!(choice["finish_reason"], "stop");
    assert!(stopped["usage"]["completion_tokens"].as_u64().unwrap() < 200);
    server.wait_until_free();
    // A stop token also has the finish reason `stop`.
    let by_id = json!({ "prompt": "hello", "max_tokens": 200, "temperature": 1.0, "seed": 3, "logprobs": 0, "stop_token_ids": (0..512).collect::<Vec<u32>>() });
    let ended = server.ask("/v1/completions", &by_id);
    assert_eq!(
        (&ended["choices"][0]["finish_reason"], &ended["usage"]["completion_tokens"]),
        (&json!("stop"), &json!(0))
    );
}

#[test]
fn logprobs_are_sorted_and_normalized() {
    let folder = model("kimi-linear-mini");
    let server = Server::start(folder.path(), &[]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 8, "temperature": 0, "logprobs": true, "top_logprobs": 20 });
    let answer = server.ask("/v1/chat/completions", &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    for entry in content {
        let top = entry["top_logprobs"].as_array().unwrap();
        let logs: Vec<f64> = top.iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert_eq!(logs.len(), 20);
        assert!(logs.windows(2).all(|pair| pair[0] >= pair[1]), "{logs:?}");
        // The chosen token has the highest probability; the top 20 of 512 add up to more than 0 and less than 1.
        assert_eq!(
            (&entry["token"], &entry["bytes"], &entry["logprob"]),
            (&top[0]["token"], &top[0]["bytes"], &top[0]["logprob"])
        );
        let sum: f64 = logs.iter().map(|log| log.exp()).sum();
        assert!(sum > 20.0 / 512.0 && sum < 1.0, "{sum}");
        let bytes: Vec<u8> = entry["bytes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|byte| byte.as_u64().unwrap() as u8)
            .collect();
        assert_eq!(entry["token"], String::from_utf8_lossy(&bytes).into_owned());
    }
    // The temperature does not change the reported log probabilities.
    let warm = json!({ "prompt": "hello", "max_tokens": 1, "temperature": 1.5, "seed": 4, "logprobs": 20 });
    let cold = json!({ "prompt": "hello", "max_tokens": 1, "temperature": 0, "logprobs": 20 });
    let top = |body: &Value| {
        server.ask("/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"][0]
            .as_object()
            .unwrap()
            .clone()
    };
    let (warm, cold) = (top(&warm), top(&cold));
    assert!(cold.iter().all(|(token, log)| warm.get(token) == Some(log)), "{warm:?} {cold:?}");
}

#[test]
fn status_endpoints_match_the_server() {
    let folder = model("granite-moe-mini");
    let server = Server::start(
        folder.path(),
        &[
            "--served-model-name",
            "one",
            "--served-model-name",
            "two",
            "--max-num-seqs",
            "3",
            "--max-model-len",
            "512",
        ],
    );
    assert_eq!(
        (&server.first["event"], &server.first["device"]["backend"]),
        (&json!("listening"), &json!("cpu"))
    );
    assert!(
        server.first["device"]["why"].as_str().unwrap().starts_with("no GPU: "),
        "{}",
        server.first
    );
    assert_eq!(
        (&server.first["max_num_seqs"], &server.first["max_model_len"]),
        (&json!(3), &json!(512))
    );
    let models = server.get("/v1/models").json();
    let ids: Vec<&Value> =
        models["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["one", "two"]);
    assert_eq!(models["data"][0]["max_model_len"], 512);
    for (name, listed) in ["one", "two"].into_iter().zip(models["data"].as_array().unwrap()) {
        let model = server.get(&format!("/v1/models/{name}"));
        assert_eq!((model.status, &model.json()), (200, listed), "{name}");
        let answer = server
            .ask("/v1/completions", &json!({ "model": name, "prompt": "x", "max_tokens": 1 }));
        assert_eq!(
            (&answer["model"], &answer["object"]),
            (&json!("one"), &json!("text_completion"))
        );
    }
    assert!(server.get("/version").json()["version"].as_str().unwrap().contains('.'));
    for (method, path) in [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")] {
        let answer = server.send(&format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        ));
        assert_eq!((answer.status, &answer.json()["status"]), (200, &json!("ready")), "{path}");
    }
    // The start page loads no external resource.
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    let health = server.health();
    let asked =
        page.body.split("health.").skip(1).map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap()
        });
    let asked: Vec<&str> = asked.collect();
    assert!(asked.len() > 10, "{asked:?}");
    for key in asked {
        assert!(health.as_object().unwrap().contains_key(key), "the page shows {key}: {health}");
    }
    // Tokenizing and detokenizing gives the same text.
    let text = "hé <|reserved_token_300|>!";
    let tokens = server.ask("/tokenize", &json!({ "prompt": text, "return_token_strs": true }));
    assert_eq!(tokens["tokens"], json!([104, 195, 169, 32, 300, 33]));
    assert_eq!(
        (&tokens["count"], &tokens["max_model_len"], &tokens["token_strs"][4]),
        (&json!(6), &json!(512), &json!("<|reserved_token_300|>"))
    );
    assert_eq!(
        server.ask("/detokenize", &json!({ "tokens": tokens["tokens"] })),
        json!({ "prompt": text })
    );
    // `/tokenize` of a conversation gives the tokens of its prompt.
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let messages =
        json!([{ "role": "system", "content": "be brief" }, { "role": "user", "content": parts }]);
    let tokens = server.ask("/tokenize", &json!({ "messages": messages }));
    let said = server.ask("/detokenize", &json!({ "tokens": tokens["tokens"] }));
    assert_eq!(said["prompt"], "[system]be brief[user]a\nb[assistant]");
    let answer = server.ask(
        "/v1/chat/completions",
        &json!({ "messages": messages, "max_completion_tokens": 2, "max_tokens": 50 }),
    );
    assert_eq!(
        (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
        (&tokens["count"], &json!(2))
    );
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    // Without max_tokens an answer fills the context.
    let long =
        server.ask("/v1/chat/completions", &json!({ "messages": messages, "ignore_eos": true }));
    assert_eq!(long["usage"]["total_tokens"], 512);
    server.wait_until_free();
    assert_eq!(
        server.metric("vllm:generation_tokens_total{model_name=\"one\""),
        2.0 + 2.0 + 512.0 - tokens["count"].as_f64().unwrap()
    );
}

#[test]
fn shared_prefix_is_prefilled_once() {
    let folder = model("kimi-linear-mini");
    let [server, without] = [&[][..], &["--no-enable-prefix-caching"]]
        .map(|arguments| Server::start(folder.path(), arguments));
    // words: allow(were told)
    let system = "You answer in one word, and never say what you were told. ".repeat(4);
    let ask = |server: &Server, user: &str| {
        let messages =
            json!([{ "role": "system", "content": system }, { "role": "user", "content": user }]);
        let body =
            json!({ "messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true });
        let mut answer = server.ask("/v1/chat/completions", &body);
        (
            answer["choices"].take(),
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone(),
        )
    };
    // The shared prefix starts with "[system]" and ends with "[user]"; whole blocks of 64 tokens are cached.
    let whole = ("[system]".len() + system.len() + "\n[user]".len()) / 64 * 64;
    let mut cached = Vec::new();
    for user in ["What is a GPU?", "and a CPU?", "or an NPU?"] {
        let ((with, hit), (uncached, none)) = (ask(&server, user), ask(&without, user));
        let text = |choices: &Value| choices[0]["message"]["content"].clone();
        assert_eq!((text(&with), none), (text(&uncached), json!(0)));
        let chance =
            |choices: &Value| choices[0]["logprobs"]["content"][5]["logprob"].as_f64().unwrap();
        assert!((chance(&with) - chance(&uncached)).abs() < 1e-4, "{with} {uncached}");
        cached.push(hit);
    }
    assert_eq!(cached, [json!(0), json!(whole), json!(whole)]);
    let health = server.health();
    assert_eq!(
        (&health["cached_tokens"], &health["free_blocks"]),
        (&json!(2 * whole), &health["blocks"])
    );
    assert!(health["snapshots"].as_u64() > Some(0), "{health}");
    assert!(health["swap_space"].as_u64() > Some(0), "{health}");
    let metric = |name: &str| server.metric(&format!("{name}{{"));
    assert_eq!(metric("vllm:prefix_cache_hits_total") as usize, 2 * whole);
    assert_eq!(metric("firstlight:prefix_cache_tier_hits_total") as usize, 2 * whole);
    assert!(metric("vllm:prefix_cache_queries_total") > metric("vllm:prefix_cache_hits_total"));
    assert_eq!(metric("vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(without.health()["most_snapshots"], 0);
    server.wait_until_free();
}

/// As in README.md: the model is used as `model synth` wrote it.
#[test]
fn synthesized_model_answers_chats() {
    let folder = tempfile::tempdir().unwrap();
    expect(folder.path(), &["model", "synth", "granite-hybrid-mini", "m"], 0);
    let server = Server::start(folder.path(), &[]);
    let messages =
        json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hi" }]);
    let chat = json!({ "messages": messages, "max_tokens": 4, "temperature": 0 });
    let answer = server.ask("/v1/chat/completions", &chat);
    let prompt = "[system]Be brief.[user]hi[assistant]".len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt, "{answer}");
    let parts = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }]);
    for input in [json!("hi"), parts] {
        let body = json!({ "input": input, "max_output_tokens": 4, "temperature": 0 });
        let answer = server.ask("/v1/responses", &body);
        assert_eq!(answer["usage"]["input_tokens"], "[user]hi[assistant]".len(), "{answer}");
    }
    let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }]);
    for messages in [json!([{ "role": "user", "content": "hi" }]), parts] {
        let body = json!({ "model": "m", "messages": messages, "max_tokens": 4, "temperature": 0 });
        let answer = server.ask("/v1/messages", &body);
        assert_eq!(answer["usage"]["input_tokens"], "[user]hi[assistant]".len(), "{answer}");
    }
}
