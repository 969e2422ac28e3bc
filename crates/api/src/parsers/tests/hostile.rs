use super::*;
use std::time::{Duration, Instant};

const PARSERS: [&str; 9] = [
    "hermes",
    "granite",
    "kimi_k2",
    "qwen3_coder",
    "mistral",
    "llama3_json",
    "pythonic",
    "lfm2",
    "openai",
];

const PARTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    "<function=",
    "f>",
    "<parameter=",
    "city>",
    "</parameter>",
    "</function>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_calls_section_end|>",
    "<|channel|>",
    "analysis",
    "final",
    "commentary to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "assistant",
    "<think>",
    "</think>",
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}",
    "{\"name\": \"f\", \"arguments\": ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "f(a=1)",
    "f(",
    ")",
    "'",
    ",",
    ":",
    " ",
    "\r\n",
    "\n",
    "é",
    "\u{1F600}",
    "name",
    "1",
    "-",
    "null",
];

/// Parts of calls in any order: no panic, and the events do not depend on the cuts.
#[test]
fn random_parts_of_calls_are_parsed_alike_however_they_are_cut() {
    let mut random = 3u64;
    let mut next = |below: usize| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % below
    };
    for parser in PARSERS {
        let plan = plan(parser, "qwen3", "");
        for _ in 0..300 {
            let count = 1 + next(12);
            let text: String = (0..count).map(|_| PARTS[next(PARTS.len())]).collect();
            let whole = parse(&plan, &[&text], false);
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(parse(&plan, &characters, false), whole, "{parser}: {text:?} by characters");
            for at in text.char_indices().map(|(at, _)| at) {
                let pieces = [&text[..at], &text[at..]];
                assert_eq!(parse(&plan, &pieces, false), whole, "{parser}: {pieces:?}");
            }
        }
    }
}

/// Text that is slow in parsers that backtrack, in one piece and in small ones.
#[test]
fn long_answers_take_linear_time() {
    let texts = [
        "{\"name\": \"f\", \"arguments\": {\"a\": ",
        "<tool_call>",
        "<tool_call>{\"k\":[",
        "<tool_call>\n<function=f>\n<parameter=city>\n",
        "</parameter>\n",
        "</parameter></function>",
        "\n<parameter=days",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f[ARGS]{",
        "<|tool_calls_section_begin|><|tool_call_begin|>",
        "<|tool_call_start|>[f(a=",
        "[f(a=[",
        "<|channel|>analysis<|message|>",
        "<|start|>",
        "<",
        " ",
        "\n",
        "[",
        "{\"a\":",
        "\"",
    ];
    let heads = [
        "",
        "<tool_call>{\"name\": \"f\", \"arguments\": ",
        "<tool_call>\n<function=f>\n<parameter=list>\n",
        "<|tool_call_start|>[f(a=",
        "[f(a=",
        "[TOOL_CALLS]f[ARGS]",
        "<|channel|>final<|message|>",
    ];
    let check = |plan: &Plan, all: &str, size: usize| {
        let whole = parse(plan, &[all], true);
        let cut = |at: usize| &all[at..all.len().min(at + size)];
        let pieces: Vec<&str> = (0..all.len()).step_by(size).map(cut).collect();
        assert_eq!(parse(plan, &pieces, true), whole, "{all:.80}");
    };
    let start = Instant::now();
    for parser in PARSERS {
        let plan = plan(parser, "qwen3", "");
        for text in texts {
            for head in heads {
                check(&plan, &(head.to_owned() + &text.repeat(1_000 / text.len())), 7);
            }
            check(&plan, &text.repeat(60_000 / text.len()), 100);
        }
    }
    // A parser that rereads its text takes minutes.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
