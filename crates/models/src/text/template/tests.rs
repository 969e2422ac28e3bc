use super::*;

/// The structure of Kimi's template, with features of other templates.
const TEMPLATE: &str = "{%- for message in messages -%}\n\
    {%- if message.role not in ['system', 'user', 'assistant'] -%}{{ raise_exception('no role ' + message.role) }}{%- endif -%}\n\
    <|im_{{ message.role }}|>{{ message['role'] }}<|im_middle|>{{ message.content.strip() }}<|im_end|>\n\
    {%- endfor -%}\n\
    {%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}{{ eos_token }}";

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap()
}

fn asked(messages: &[ChatMessage]) -> Conversation {
    Conversation::to_answer(messages.to_vec())
}

#[test]
fn conversations_render_to_text() {
    let config = r#"{"eos_token": {"content": "<E>"}}"#;
    let named = serde_json::json!({
        "eos_token": "<E>",
        "chat_template": [{ "name": "tools", "template": "" }, { "name": "default", "template": TEMPLATE }],
    });
    for files in [
        vec![("chat_template.jinja", TEMPLATE), ("tokenizer_config.json", config)],
        vec![("tokenizer_config.json", named.to_string().as_str())],
    ] {
        let folder = folder(&files);
        let template = ChatTemplate::read(folder.path()).unwrap();
        let two = [ChatMessage::new("system", "be brief "), ChatMessage::new("user", "hi")];
        assert_eq!(
            template.render(&asked(&two)).unwrap(),
            "<|im_system|>system<|im_middle|>be brief<|im_end|><|im_user|>user<|im_middle|>hi<|im_end|>\
             <|im_assistant|>assistant<|im_middle|><E>"
        );
        let error =
            template.render(&asked(&[ChatMessage::new("robot", "x")])).unwrap_err().to_string();
        assert!(
            error.contains("the template fails: ") && error.contains("no role robot"),
            "{error}"
        );
        let error = template.render(&asked(&[])).unwrap_err().to_string();
        assert!(error.ends_with("the conversation has no messages"), "{error}");
    }
}

#[test]
fn tools_select_the_tool_use_template() {
    let named = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "{{ tools[0].name }}"},
        {"name": "broken", "template": "{% if %}"}]}"#;
    let in_files = [
        ("chat_template.jinja", "D"),
        ("additional_chat_templates/tool_use.jinja", "{{ tools[0].name }}"),
        ("additional_chat_templates/broken.jinja", "{% if %}"),
    ];
    for files in [&[("tokenizer_config.json", named)][..], &in_files] {
        let folder = folder(files);
        let template = ChatTemplate::read(folder.path()).unwrap();
        let plain = asked(&[ChatMessage::new("user", "x")]);
        let tools = || Some(vec![json(r#"{"name": "search"}"#)]);
        assert_eq!(template.render(&plain).unwrap(), "D");
        let with_tools = Conversation { tools: tools(), ..plain.clone() };
        assert_eq!(template.render(&with_tools).unwrap(), "search");
        let by_name =
            |name: &str| Conversation { template: Some(name.to_owned()), ..with_tools.clone() };
        assert_eq!(template.render(&by_name("default")).unwrap(), "D");
        let error = template.render(&by_name("rag")).unwrap_err();
        assert!(error.to_string().ends_with("there is no template rag"), "{error}");
        assert_eq!(error.hint().unwrap(), "the model's templates are broken, default, tool_use");
        let error = template.render(&by_name("broken")).unwrap_err().to_string();
        assert!(error.contains("the template broken cannot be read: syntax error"), "{error}");
    }
}

#[test]
fn last_message_is_continued_at_its_end() {
    let folder = folder(&[(
        "chat_template.jinja",
        "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}",
    )]);
    let trims = ChatTemplate::read(folder.path()).unwrap();
    let continued = |last: ChatMessage| Conversation {
        messages: vec![ChatMessage::new("user", "x"), last],
        continue_final_message: true,
        ..Conversation::default()
    };
    let last = ChatMessage::new("assistant", "so far ");
    assert_eq!(trims.render(&continued(last.clone())).unwrap(), "<x><so far");
    let both = Conversation { add_generation_prompt: true, ..continued(last.clone()) };
    assert!(trims.render(&both).is_err());
    let whole = super::tests::folder(&[(
        "chat_template.jinja",
        "{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}>{% endfor %}",
    )]);
    let whole = ChatTemplate::read(whole.path()).unwrap();
    assert_eq!(whole.render(&continued(last)).unwrap(), "<x><so far ");
    let parts: ChatMessage = serde_json::from_str(
        r#"{"role": "assistant", "content": [{"text": "a"}, {"text": "b "}, {"type": "image"}]}"#,
    )
    .unwrap();
    assert_eq!(whole.render(&continued(parts)).unwrap(), "<x><ab ");
    let none: ChatMessage = serde_json::from_str(r#"{"role": "assistant"}"#).unwrap();
    let error = whole.render(&continued(none)).unwrap_err().to_string();
    assert!(error.ends_with("no text to continue"), "{error}");
}

#[test]
fn kwargs_override_special_tokens_but_not_messages() {
    let folder = folder(&[
        ("chat_template.jinja", "{{ bos_token }}{{ thinking }}"),
        ("tokenizer_config.json", r#"{"bos_token": "<B>"}"#),
    ]);
    let template = ChatTemplate::read(folder.path()).unwrap();
    let with = |kwargs: &[(&str, Json)]| Conversation {
        kwargs: kwargs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        ..asked(&[ChatMessage::new("user", "x")])
    };
    assert_eq!(template.render(&with(&[])).unwrap(), "<B>");
    let both = [("thinking", Json::from(true)), ("bos_token", Json::from("!"))];
    assert_eq!(template.render(&with(&both)).unwrap(), "!True");
    let error = template.render(&with(&[("messages", Json::from(""))])).unwrap_err().to_string();
    assert!(error.contains("`messages` is no argument"), "{error}");
}

#[test]
fn missing_template_is_an_error() {
    for files in [&[][..], &[("tokenizer_config.json", "{}")]] {
        let folder = folder(files);
        let error = ChatTemplate::read(folder.path()).unwrap_err();
        assert!(matches!(error, ModelError::NoTemplate { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.ends_with(
                "chat_template.jinja: there is no chat template, here or in tokenizer_config.json"
            ),
            "{text}"
        );
    }
}
