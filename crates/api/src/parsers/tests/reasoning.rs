use super::*;

/// The reasoning, the content and the names of the functions that are called.
#[track_caller]
fn check(parsers: (&str, &str), prompt: &str, text: &str, want: (&str, &str, &[&str])) {
    let plan = plan(parsers.0, parsers.1, prompt);
    let message = message(check_cuts(&plan, text, false));
    let names: Vec<&str> = message.calls.iter().map(|call| call.name.as_str()).collect();
    let found = (message.reasoning.as_str(), message.content.as_str(), &names[..]);
    assert_eq!(found, want, "{parsers:?} {prompt:?} {text:?}");
}

#[test]
fn reasoning_is_separated_from_the_answer() {
    let qwen = ("hermes", "qwen3");
    check(qwen, "", "<think>\nHm, <b>.\n</think>\n\nYes.", ("Hm, <b>.", "Yes.", &[]));
    check(qwen, "", "\n<think>a", ("a", "", &[]));
    check(
        qwen,
        "",
        "No thoughts </think> here <think>.",
        ("", "No thoughts </think> here <think>.", &[]),
    );
    check(qwen, "", "<thin", ("", "<thin", &[]));
    // A prompt that starts the reasoning, and one that has ended it.
    check(qwen, "user: hi\nassistant: <think>\n", "Hm.\n</think>\nYes.", ("Hm.", "Yes.", &[]));
    check(qwen, "assistant: <think>\n", "<think>Hm.</think>Yes.", ("Hm.", "Yes.", &[]));
    check(qwen, "<think>\n\n</think>\n\n", "Yes.", ("", "Yes.", &[]));
    // Calls after reasoning; calls within it are part of it.
    let call = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    check(
        qwen,
        "",
        &format!("<think>Say {call}?</think>\n\n{call}"),
        (&format!("Say {call}?"), "", &["f"]),
    );
}

#[test]
fn thoughts_have_the_marks_of_their_parser() {
    check(("hermes", "deepseek_r1"), "", "Hm.</think>Yes.", ("Hm.", "Yes.", &[]));
    check(("hermes", "deepseek_r1"), "<think></think>", "Yes.", ("", "Yes.", &[]));
    check(
        ("mistral", "mistral"),
        "",
        "[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]f[ARGS]{}",
        ("Hm.", "Yes.", &["f"]),
    );
    check(
        ("granite", "granite"),
        "",
        "Here's my thought process: Hm. Here is my response: Yes.",
        ("Hm.", "Yes.", &[]),
    );
    check(("granite", "granite"), "", "Here is my answer.", ("", "Here is my answer.", &[]));
    check(("hermes", "seed_oss"), "", "<seed:think>Hm.</seed:think>Yes.", ("Hm.", "Yes.", &[]));
}

#[test]
fn a_call_ends_thoughts_that_are_not_closed() {
    let xml = "<think>Call <tool_call> now.\n<tool_call>\n<function=f>\n</function>\n</tool_call>";
    check(("qwen3_coder", "qwen3"), "", xml, ("Call <tool_call> now.", "", &["f"]));
    let kimi = "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check(("kimi_k2", "kimi_k2"), "<think>", kimi, ("Hm.", "", &["f"]));
}

#[test]
fn harmony_has_channels() {
    let parsers = ("openai", "openai_gptoss");
    let final_ = "<|channel|>final<|message|>Yes.\nDone.<|return|>";
    check(
        parsers,
        "",
        &format!("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{final_}"),
        ("Hm.", "Yes.\nDone.", &[]),
    );
    check(parsers, "", final_.trim_end_matches("<|return|>"), ("", "Yes.\nDone.", &[]));
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|x|>\"}<|call|>";
    check(
        parsers,
        "",
        &format!(
            "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|><|start|>assistant{call}"
        ),
        ("A.\nB.", "", &["f"]),
    );
    // The recipient before the channel, a preamble, and a tool that is not a function.
    check(parsers, "", " to=functions.g<|channel|>commentary<|message|>{}", ("", "", &["g"]));
    check(
        parsers,
        "",
        &format!("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{call}"),
        ("", "I look.", &["f"]),
    );
    check(
        parsers,
        "",
        "<|channel|>analysis to=python code<|message|>1+1<|call|>",
        ("1+1", "", &[]),
    );
    check(parsers, "", "{\"plain\": 1}", ("", "{\"plain\": 1}", &[]));
    check(parsers, "", "to be", ("", "to be", &[]));
    // Without functions, channels are also distinguished.
    let model_format = ModelFormat::new(None, Some("openai"), None);
    let plan = Plan::new(model_format, None, true, "").unwrap();
    let text =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
    let message = message(check_cuts(&plan, text, false));
    assert_eq!((message.reasoning.as_str(), message.content.as_str()), ("Hm.", "Yes."));
}
