//! Models that say a chosen text: the fixture itself, in every command that writes text.

use crate::client::Server;
use crate::support::{json as run, scripted};
use serde_json::json;
use tempfile::tempdir;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_scripted_model_says_its_script() {
    let folder = tempdir().unwrap();
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 1, 1, 11]}}\n</tool_call> ünï 🚀🚀";
    scripted::say(&folder.path().join("m"), text, &["<|im_end|>", "<|im_start|>"]);
    std::fs::write(folder.path().join("m/chat_template.jinja"), TEMPLATE).unwrap();
    for prompt in ["hi", "a longer text with <tool_call> in it"] {
        let ran = run(folder.path(), &["run", "m", "-p", prompt, "-n", "200"], 0);
        assert_eq!(ran["answers"][0]["text"], text, "{prompt}");
        assert_eq!(ran["answers"][0]["ended"], "stop id");
    }
    let server = Server::start(folder.path(), &[]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "temperature": 0 });
    let answer = server.ask("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}
