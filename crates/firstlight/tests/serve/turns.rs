//! Conversations: each turn prefills only its new tokens.

use crate::client::Server;
use crate::model::ending;
use serde_json::{Value, json};

/// Templates: one that ends a turn with the end token of an answer, and a published one.
const TEMPLATES: [&str; 2] = [
    "{%- for message in messages -%}\n\
     [{{ message.role }}]{{ message.content }}<|reserved_token_511|>\n{%- endfor -%}\n[assistant]",
    include_str!("../../../models/tests/templates/granite-4.0.jinja"),
];

/// Prompt tokens, cached prompt tokens, and completion tokens.
fn counted(usage: &Value) -> [u64; 3] {
    let details = &usage["prompt_tokens_details"]["cached_tokens"];
    [&usage["prompt_tokens"], details, &usage["completion_tokens"]].map(|of| of.as_u64().unwrap())
}

#[test]
fn each_turn_prefills_only_new_tokens() {
    for (name, template) in ["granite-hybrid-mini", "kimi-linear-mini"].into_iter().zip(TEMPLATES) {
        let folder = ending(name);
        std::fs::write(folder.path().join("m/chat_template.jinja"), template).unwrap();
        // Answers are constrained to ASCII, because random bytes are invalid UTF-8 and change when they are sent back.
        let body = |messages: &[Value], seed: usize| {
            json!({ "messages": messages, "temperature": 1.0, "seed": seed, "max_tokens": 200,
                "structured_outputs": { "regex": "[a-z ]{20,40}[.]" } })
        };
        let [kept, none] = [&[][..], &["--no-enable-prefix-caching"]];
        let [kept, none] = [kept, none].map(|arguments| Server::start(folder.path(), arguments));
        // Two conversations alternate.
        let mut conversations = vec![(Vec::new(), 0); 2];
        for turn in 0..4 {
            for (at, (messages, ended)) in conversations.iter_mut().enumerate() {
                let said = format!("{at} {turn} {}", "and so on ".repeat(turn * at));
                messages.push(json!({ "role": "user", "content": said }));
                let asked = body(messages, 10 * turn + at);
                let answer = kept.ask("/v1/chat/completions", &asked);
                let [prompt, cached, added] = counted(&answer["usage"]);
                // The cache ends at the end of the previous answer, with or without its last token.
                let exact = cached == *ended || cached + 1 == *ended;
                assert!(turn == 0 || exact, "{name}: {cached} of {ended}");
                let message = &answer["choices"][0]["message"];
                let uncached = none.ask("/v1/chat/completions", &asked);
                assert_eq!(
                    (message, counted(&uncached["usage"])[1]),
                    (&uncached["choices"][0]["message"], 0)
                );
                messages.push(message.clone());
                *ended = prompt + added;
            }
        }
    }
}
