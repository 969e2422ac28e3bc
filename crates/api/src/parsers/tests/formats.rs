use super::*;

#[test]
fn hermes_calls_keep_the_arguments_as_written() {
    check(
        "hermes",
        "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"</tool_call>\\\"\"}}\n</tool_call>\n<tool_call>{\"arguments\":{\"x\":[1,{}]},\"name\":\"g\"}</tool_call> and",
        "Let me look. and",
        &[("f", r#"{"b": 1, "a": "</tool_call>\""}"#), ("g", r#"{"x":[1,{}]}"#)],
    );
    // Digits beyond those of 64 bits, and a string of JSON.
    check(
        "granite4",
        r#"<tool_call>{"name": "f", "arguments": {"n": 123456789012345678901234567890, "x": 0.10000000000000000000001}}</tool_call><tool_call>{"name": "g", "arguments": "{\"n\": 18446744073709551617}"}</tool_call>"#,
        "",
        &[
            ("f", r#"{"n": 123456789012345678901234567890, "x": 0.10000000000000000000001}"#),
            ("g", r#"{"n": 18446744073709551617}"#),
        ],
    );
    // No arguments in any spelling, a missing closing tag, and a surplus bracket.
    check(
        "hermes",
        r#"<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f", "arguments": null}<tool_call>{"name": "g", "arguments": {}}}</tool_call>"#,
        "",
        &[("f", "{}"), ("f", "{}"), ("g", "{}")],
    );
}

#[test]
fn text_that_only_begins_like_a_call_is_content() {
    for text in [
        "a < b, <tool_cal",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>nothing</tool_call> at all",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "Zürich <tool_callß",
        "<tool_call>  ",
        "  spaces around  ",
    ] {
        check("hermes", text, text, &[]);
    }
    check("qwen3_coder", "see <function=h> in <tool_call>", "see <function=h> in <tool_call>", &[]);
    check("mistral", "[TOOL_CALLS]a word", "[TOOL_CALLS]a word", &[]);
    check(
        "lfm2",
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        &[],
    );
    check("pythonic", "[1, 2] and [f(a=1)]", "[1, 2] and [f(a=1)]", &[]);
    check("pythonic", "[h(a=1)] is unknown", "[h(a=1)] is unknown", &[]);
    check("llama3_json", r#"{"name": "Ada", "age": 36}"#, r#"{"name": "Ada", "age": 36}"#, &[]);
    check("llama3_json", r#"{"name": "f"}"#, r#"{"name": "f"}"#, &[]);
    check("kimi_k2", "<|tool_call_begin|>f", "<|tool_call_begin|>f", &[]);
}

#[test]
fn arguments_that_are_no_json_are_passed_on() {
    check(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {a: <b>}}</tool_call> x",
        "x",
        &[("f", "{a: <b>}}")],
    );
    check(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1}}</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "",
        &[("f", "{\"a\": [1}}"), ("g", "{}")],
    );
    check(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
        "",
        &[("f", "{\"a\": \"b")],
    );
    check(
        "mistral",
        "[TOOL_CALLS]f[ARGS]{\"a\": ?}[TOOL_CALLS]g[ARGS]{}",
        "",
        &[("f", "{\"a\": ?}"), ("g", "{}")],
    );
}

#[test]
fn granite_3_calls_are_an_array() {
    for marker in ["<|tool_call|>", "<tool_call>"] {
        let text = format!(
            r#"{marker} [{{"name": "f", "arguments": {{"city": "Ulm"}}}}, {{"name": "g", "arguments": {{}}}}]"#
        );
        check("granite", &text, "", &[("f", r#"{"city": "Ulm"}"#), ("g", "{}")]);
    }
}

#[test]
fn kimi_calls_have_ids() {
    let text = "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|> {\"a\": \"]\"} <|tool_call_end|><|tool_call_begin|> functions.g:1 <|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>";
    check("kimi_k2", text, "Yes.", &[("f", r#"{"a": "]"}"#), ("g", "{}")]);
    let calls = message(parse(&plan("kimi_k2", "qwen3", ""), &[text], false)).calls;
    assert_eq!([calls[0].id.as_str(), &calls[1].id], ["functions.f:0", "functions.g:1"]);
}

fn xml(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameter =
        |(name, value): &(&str, &str)| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let parameters: String = parameters.iter().map(parameter).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

#[test]
fn values_in_xml_have_the_types_of_the_schema() {
    for (name, text, json) in [
        ("city", "Ulm", r#""Ulm""#),
        ("city", "12", r#""12""#),
        ("city", "null", r#""null""#),
        ("city", "", r#""""#),
        (
            "city",
            "\n two\n\nlines \"q\" \\ \u{1F600}\n",
            "\"\\n two\\n\\nlines \\\"q\\\" \\\\ \u{1F600}\\n\"",
        ),
        ("days", "3", "3"),
        ("days", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("days", "+7", "7"),
        ("days", "1_000", "1000"),
        ("days", "many", r#""many""#),
        ("days", "1.5", "1.5"),
        ("days", "[1]", "[1]"),
        ("days", "None", "null"),
        ("share", "0.1000000000000000000001", "0.1000000000000000000001"),
        ("share", "5.0", "5.0"),
        ("share", ".5", "0.5"),
        ("share", "1e400", "1e400"),
        ("share", "inf", r#""inf""#),
        ("dry", "True", "true"),
        ("dry", "1", "true"),
        ("dry", "0", "false"),
        ("dry", "2", "2"),
        ("dry", "no", r#""no""#),
        ("list", "[1, \"a\"]", "[1, \"a\"]"),
        ("list", "['a', True, None]", r#"["a", true, null]"#),
        ("list", "one, two", r#""one, two""#),
        ("object", r#"{"n": 18446744073709551617}"#, r#"{"n": 18446744073709551617}"#),
        ("object", "{'a': (1, 2)}", r#"{"a": [1, 2]}"#),
        ("object", r#""{\"a\": 1}""#, r#"{"a": 1}"#),
        ("note", "null", "null"),
        ("note", "None", r#""None""#),
        ("note", "text", r#""text""#),
        ("mixed", "5", "5"),
        ("mixed", "five", r#""five""#),
        ("unit", "C", r#""C""#),
        ("either", "4", "4"),
        ("either", "four", r#""four""#),
        ("reference", "8", "8"),
        ("unknown", "9", r#""9""#),
    ] {
        check(
            "qwen3_coder",
            &xml("f", &[(name, text)]),
            "",
            &[("f", &format!("{{\"{name}\": {json}}}"))],
        );
    }
}

#[test]
fn calls_in_xml_may_lack_tags_or_have_them_in_values() {
    let two = format!("First.\n{}\n{}", xml("f", &[("city", "Ulm"), ("days", "2")]), xml("g", &[]));
    check("qwen3_xml", &two, "First.", &[("f", r#"{"city": "Ulm", "days": 2}"#), ("g", "{}")]);
    // Tags as part of a value.
    let code = "print('</parameter>')\n</function>\n<parameter=x>\n<tool_call>";
    let json = serde_json::to_string(code).unwrap();
    check(
        "qwen3_coder",
        &xml("f", &[("city", code)]),
        "",
        &[("f", &format!("{{\"city\": {json}}}"))],
    );
    // Without the tag around the call, without closing tags, and with Windows' line ends.
    let call = [("f", r#"{"city": "Ulm", "days": 2}"#)];
    for text in [
        "<function=f>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n<parameter=days>\n2\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=city>Ulm</parameter><parameter=days>2</parameter></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n",
        "<tool_call>\r\n<function=f>\r\n<parameter=city>\r\nUlm\r\n</parameter>\r\n<parameter=days>\r\n2\r\n</parameter>\r\n</function>\r\n</tool_call>",
    ] {
        check("qwen3_coder", text, "", &call);
    }
    // The same model may write JSON, and a cut call is not closed.
    check(
        "qwen3_coder",
        r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#,
        "",
        &[("f", "{}")],
    );
    let text = "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n</parameter>\n";
    let cut = message(check_cuts(&plan("qwen3_coder", "qwen3", ""), text, true));
    assert_eq!(cut.calls[0].arguments, r#"{"city": "Ulm""#);
}

#[test]
fn mistral_calls_are_an_array_or_name_their_function_first() {
    let array = r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "a12345678"}, {"name": "g", "arguments": {}}]"#;
    check("mistral", array, "", &[("f", r#"{"a": 1}"#), ("g", "{}")]);
    let named =
        "Now:[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\"}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}";
    check("mistral", named, "Now:", &[("f", r#"{"a": "[TOOL_CALLS]"}"#), ("g", "{}")]);
    check("mistral", "[TOOL_CALLS]f{\"a\": 1}", "", &[("f", r#"{"a": 1}"#)]);
    let ids: Vec<String> = message(parse(&plan("mistral", "mistral", ""), &[named], false))
        .calls
        .into_iter()
        .map(|call| call.id)
        .collect();
    assert_eq!((ids[0].len(), ids[1].as_str()), (9, "abcdefghi"));
    assert!(ids[0].chars().all(|c| c.is_ascii_alphanumeric()));
}

#[test]
fn llama_calls_are_json_or_python() {
    let call = [("f", r#"{"a": "x"}"#)];
    for text in [
        r#"{"name": "f", "parameters": {"a": "x"}}"#,
        r#"  {"type": "function", "name": "f", "parameters": {"a": "x"}}"#,
        r#"<|python_tag|>{"name": "f", "arguments": {"a": "x"}}"#,
        r#"<|python_tag|>[f(a='x')]"#,
        r#"[f(a="x")]"#,
        r#"<|python_start|>[f(a="x")]<|python_end|>"#,
    ] {
        check("llama3_json", text, "", &call);
        check("pythonic", text, "", &call);
    }
    check(
        "llama3_json",
        r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}"#,
        "",
        &[("f", "{}"), ("g", "{}")],
    );
    check(
        "llama3_json",
        r#"Then <|python_tag|>{"name": "f", "parameters": {}}"#,
        "Then",
        &[("f", "{}")],
    );
    check(
        "llama4_pythonic",
        "[f(a=1, b=[True, None], c={'k': 'it\\'s'}), g()]",
        "",
        &[("f", r#"{"a": 1, "b": [true, null], "c": {"k": "it's"}}"#), ("g", "{}")],
    );
}

#[test]
fn lfm2_calls_are_a_list_between_marks() {
    check(
        "lfm2",
        "Yes<|tool_call_start|>[f(city=\"Ulm ]\", days=123456789012345678901), g()]<|tool_call_end|> done",
        "Yes done",
        &[("f", r#"{"city": "Ulm ]", "days": 123456789012345678901}"#), ("g", "{}")],
    );
    check(
        "lfm2",
        r#"<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>"#,
        "",
        &[("f", r#"{"a": 1}"#)],
    );
    check("lfm2", "<|tool_call_start|>[f(a=1)]", "", &[("f", r#"{"a": 1}"#)]);
}

#[test]
fn python_literals_are_json() {
    for (text, json) in [
        ("'a\\n\\x41\\u00e4'", "\"a\\nAä\""),
        ("\"\"\"two\nlines \"q\" \"\"\"", r#""two\nlines \"q\" ""#),
        ("'a' \"b\"", r#""ab""#),
        ("r'a\\n'", r#""a\\n""#),
        ("-0x1F", "-31"),
        ("007", "7"),
        ("1.", "1.0"),
        ("(1,)", "[1]"),
        ("{1: 'a', 'b': {}}", r#"{"1": "a", "b": {}}"#),
        ("'\\ud83d\\ude00'", "\"\u{1F600}\""),
    ] {
        assert_eq!(python::literal(text).as_deref(), Some(json), "{text}");
        assert!(serde_json::from_str::<Value>(json).is_ok());
    }
    for text in ["", "1 2", "f()", "[1", "{1}", "1__0", "--1", "1e", "'a", "nan", "x"] {
        assert_eq!(python::literal(text), None, "{text}");
    }
}

#[test]
fn one_call_is_made_where_parallel_calls_are_off() {
    let model_format = ModelFormat::new(None, Some("hermes"), None);
    let plan = Plan::new(model_format, Some(functions()), false, "").unwrap();
    let text = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "g", "arguments": {"a": 2}}</tool_call>"#;
    let calls = message(check_cuts(&plan, text, false)).calls;
    assert_eq!((calls.len(), calls[0].arguments.as_str()), (1, r#"{"a": 1}"#));
}
