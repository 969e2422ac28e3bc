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
    let taught = ("hermes", "deepseek_v3");
    check(taught, "", "<think>\nHm, <b>.\n</think>\n\nYes.", ("\nHm, <b>.\n", "\n\nYes.", &[]));
    check(taught, "", "\n<think>a", ("a", "", &[]));
    check(
        taught,
        "",
        "No thoughts </think> here <think>.",
        ("", "No thoughts </think> here <think>.", &[]),
    );
    check(taught, "", "<thin", ("", "<thin", &[]));
    // Calls after reasoning; calls within it are part of it.
    let call = r#"<tool_call>{"name": "f", "arguments": {}}</tool_call>"#;
    check(
        taught,
        "",
        &format!("<think>Say {call}?</think>\n\n{call}"),
        (&format!("Say {call}?"), "", &["f"]),
    );
}

/// Answers to a prompt that has started the reasoning have only a closing marker, or none.
#[test]
fn splits_reasoning_that_the_prompt_has_started_as_vllm() {
    // Answers with the reasoning and the content of vLLM 0.33.
    let cases = [
        ("</think>", ("", "")),
        ("</think>Yes.", ("", "Yes.")),
        ("</think>\n\nYes.", ("", "\n\nYes.")),
        ("Hm.</think>", ("Hm.", "")),
        ("\nHm.\n</think>\n\nYes.\n", ("\nHm.\n", "\n\nYes.\n")),
        ("Hm.</think>\n", ("Hm.", "\n")),
        ("Hm. </thin", ("Hm. </thin", "")),
        ("  Hm. ", ("  Hm. ", "")),
        ("<think>Hm.</think>Yes.", ("Hm.", "Yes.")),
        ("<think>\n\n</think>\n\nYes.", ("\n\n", "\n\nYes.")),
        ("Hm. <think>more</think>Yes.", ("Hm. more", "Yes.")),
    ];
    let open = ["deepseek_r1", "holo2", "mimo", "olmo3", "qwen3", "step3"];
    let trimmed = ["glm45", "glm47", "kimi_k2", "minimax_m2", "nemotron_v3", "step3p5"];
    for (parser, trims) in
        open.map(|name| (name, false)).into_iter().chain(trimmed.map(|name| (name, true)))
    {
        for (text, (reasoning, content)) in cases {
            let reasoning = if trims { reasoning.trim_end() } else { reasoning };
            // These parsers expect reasoning after any prompt that has not ended it.
            for prompt in ["", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"] {
                check(("hermes", parser), prompt, text, (reasoning, content, &[]));
            }
        }
        check(("hermes", parser), "<think>\n\n</think>\n\n", "Yes.", ("", "Yes.", &[]));
    }
    // For this style, which every template without a named parser has, the prompt decides.
    for (text, (reasoning, content)) in cases {
        check(("hermes", "deepseek_v3"), "assistant: <think>\n", text, (reasoning, content, &[]));
    }
    check(("hermes", "deepseek_v3"), "<think>\n\n</think>\n\n", "Yes.", ("", "Yes.", &[]));
}

#[test]
fn thoughts_have_the_marks_of_their_parser() {
    check(
        ("mistral", "mistral"),
        "",
        "[THINK]Hm.\n[/THINK]Yes.[TOOL_CALLS]f[ARGS]{}",
        ("Hm.", "Yes.", &["f"]),
    );
    check(
        ("granite", "granite"),
        "",
        "Here's my thought process: Hm. Here is my response: Yes.",
        (" Hm. ", " Yes.", &[]),
    );
    check(("granite", "granite"), "", "Here is my answer.", ("", "Here is my answer.", &[]));
    check(("hermes", "seed_oss"), "", "<seed:think>Hm.</seed:think>Yes.", ("Hm.", "Yes.", &[]));
    check(("hermes", "seed_oss"), "", "Hm.</seed:think>Yes.", ("Hm.", "Yes.", &[]));
}

#[test]
fn a_call_ends_thoughts_that_are_not_closed() {
    let xml = "<think>Call <tool_call> now.\n<tool_call>\n<function=f>\n</function>\n</tool_call>";
    check(("qwen3_coder", "qwen3"), "", xml, ("Call <tool_call> now.\n", "", &["f"]));
    let xml = "Hm.<tool_call><function=f></function></tool_call>";
    check(("qwen3_coder", "qwen3"), "<think>", xml, ("Hm.", "", &["f"]));
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
