//! The supported formats of tool calls, and detection of a chat template's format.

use super::grammar::{self, Grammar};
use super::harmony::{self, Harmony};
use super::kimi::{self, Kimi};
use super::llama::{self, ListCalls, Llama};
use super::mistral::{self, Mistral};
use super::reasoning::{STYLES, Style};
use super::tagged::Tagged;
use super::{Ids, Reader, xml};
use crate::calls::Function;
use models::{ChatMessage, ChatTemplate, Conversation, Json};
use serde_json::json;
use std::sync::Arc;

/// A format of tool calls.
#[derive(Debug)]
pub(crate) struct Format {
    /// vLLM's names for its parsers of this format.
    pub(super) names: &'static [&'static str],
    /// Texts of which a template writes one with a call.
    shown: &'static [&'static str],
    /// Texts in the source of a template whose rendered calls are not recognized.
    taught: &'static [&'static str],
    /// Markers that may be special tokens, which are otherwise omitted from the text.
    pub(super) marks: &'static [&'static str],
    /// Starts of a call that end reasoning without a closing marker.
    pub(super) interrupts: &'static [&'static str],
    /// Whether the format also marks reasoning.
    pub(super) has_channels: bool,
    pub(super) ids: Ids,
    pub(super) reader: fn(&Arc<[Function]>) -> Box<dyn Reader>,
    /// Writes a call of a function as a rule of a grammar.
    pub(super) grammar: fn(&mut Grammar<'_>, &Function) -> String,
}

const TOOL_CALL: &str = "<tool_call>";
const END_TOOL_CALL: &str = "</tool_call>";
const GRANITE_CALL: &str = "<|tool_call|>";

/// Every format; a template has the first one whose texts it contains.
const FORMATS: &[Format] = &[
    Format {
        names: &["openai", "gptoss"],
        shown: &[harmony::CHANNEL],
        taught: &[harmony::CHANNEL],
        marks: &[
            harmony::START,
            harmony::CHANNEL,
            harmony::CONSTRAIN,
            harmony::MESSAGE,
            harmony::END,
            harmony::CALL,
            harmony::RETURN,
        ],
        interrupts: &[],
        has_channels: true,
        ids: Ids::Random,
        reader: |functions| Box::new(Harmony::new(functions)),
        grammar: grammar::harmony,
    },
    Format {
        names: &["kimi_k2"],
        shown: &[kimi::SECTION, kimi::CALL],
        taught: &[kimi::SECTION, kimi::CALL],
        marks: &[kimi::SECTION, kimi::CALL, kimi::ARGUMENTS, kimi::END_CALL, kimi::END_SECTION],
        interrupts: &[kimi::SECTION],
        has_channels: false,
        ids: Ids::Kimi,
        reader: |_| Box::new(Kimi::default()),
        grammar: grammar::kimi,
    },
    Format {
        names: &["lfm2"],
        shown: &[llama::LIST],
        taught: &[llama::LIST, "<|tool_list_start|>"],
        marks: &[llama::LIST, llama::END_LIST],
        interrupts: &[llama::LIST],
        has_channels: false,
        ids: Ids::Random,
        reader: |_| Box::new(ListCalls::default()),
        grammar: |grammar, function| {
            let [open, close] = [llama::LIST, llama::END_LIST].map(|mark| grammar.mark(mark));
            format!("{open} {} {close}", grammar::python(grammar, function))
        },
    },
    Format {
        names: &["qwen3_coder", "qwen3_xml", "mimo"],
        shown: &[xml::FUNCTION],
        taught: &[xml::FUNCTION],
        marks: &[TOOL_CALL, END_TOOL_CALL],
        interrupts: &["<tool_call>\n<function=", "<tool_call><function="],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| {
            Box::new(Tagged::new(&[TOOL_CALL, xml::FUNCTION], Some(END_TOOL_CALL), functions))
        },
        grammar: grammar::xml,
    },
    Format {
        names: &["mistral"],
        shown: &[mistral::CALLS],
        taught: &[mistral::CALLS],
        marks: &[mistral::CALLS, mistral::ARGUMENTS, mistral::ID],
        interrupts: &[mistral::CALLS],
        has_channels: false,
        ids: Ids::NineLetters,
        reader: |_| Box::new(Mistral::default()),
        grammar: grammar::mistral,
    },
    Format {
        names: &["granite"],
        shown: &[GRANITE_CALL],
        taught: &[GRANITE_CALL],
        marks: &[GRANITE_CALL],
        interrupts: &[],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Tagged::new(&[GRANITE_CALL, TOOL_CALL], None, functions)),
        grammar: |grammar, function| {
            let open = grammar.mark(GRANITE_CALL);
            format!(r#"{open} "[" {} "]""#, grammar.call(function, "arguments"))
        },
    },
    Format {
        names: &["hermes", "granite4"],
        shown: &[TOOL_CALL],
        taught: &[TOOL_CALL],
        marks: &[TOOL_CALL, END_TOOL_CALL],
        interrupts: &["<tool_call>\n{\"name\""],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Tagged::new(&[TOOL_CALL], Some(END_TOOL_CALL), functions)),
        grammar: |grammar, function| {
            let [open, close] = [TOOL_CALL, END_TOOL_CALL].map(|mark| grammar.mark(mark));
            format!(r#"{open} "\n" {} "\n" {close}"#, grammar.call(function, "arguments"))
        },
    },
    Format {
        names: &["pythonic", "llama4_pythonic"],
        shown: &["[probe("],
        taught: &["[func_name1(params_name1="],
        marks: &[llama::PYTHON, llama::END_PYTHON],
        interrupts: &[],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Llama::new(functions)),
        grammar: grammar::python,
    },
    Format {
        names: &["llama3_json", "llama4_json"],
        shown: &[r#"{"name": "probe", "parameters": "#],
        taught: &[r#"{"name": function name, "parameters": "#],
        marks: &[llama::TAG],
        interrupts: &[],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Llama::new(functions)),
        grammar: |grammar, function| grammar.call(function, "parameters"),
    },
];

/// The names of the parsers of calls.
pub fn tool_call_parsers() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().flat_map(|format| format.names).copied()
}

/// The names of the parsers of reasoning.
pub fn reasoning_parsers() -> impl Iterator<Item = &'static str> {
    let channels = ["openai_gptoss"];
    STYLES.iter().flat_map(|style| style.names).copied().chain(channels)
}

/// The format of calls and the style of reasoning of a model.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ModelFormat {
    pub(super) format: Option<&'static Format>,
    pub(super) style: Option<&'static Style>,
}

impl ModelFormat {
    /// The named ones, or else those of a chat template.
    pub(crate) fn new(
        template: Option<&ChatTemplate>,
        tool_call_parser: Option<&str>,
        reasoning_parser: Option<&str>,
    ) -> Self {
        let format = |name: &str| FORMATS.iter().find(|format| format.names.contains(&name));
        let mut format = match tool_call_parser {
            Some(name) => format(name),
            None => template.and_then(taught_format),
        };
        let style = match reasoning_parser {
            Some(name) => STYLES.iter().find(|style| style.names.contains(&name)),
            None => template.and_then(taught_style),
        };
        if reasoning_parser == Some("openai_gptoss") && tool_call_parser.is_none() {
            format = FORMATS.iter().find(|format| format.has_channels);
        }
        // Channels mark all reasoning.
        let style = style.filter(|_| !format.is_some_and(|format| format.has_channels));
        Self { format, style }
    }
}

/// The format in which a template writes a call, or else the one in its source.
fn taught_format(template: &ChatTemplate) -> Option<&'static Format> {
    // Kimi's templates write the id, and Mistral's require nine alphanumeric characters.
    let texts = ["functions.probe:0", "probe0000"].map(|id| shown(template, id));
    let shows = |format: &&Format| {
        let mut texts = texts.iter().flatten();
        texts.any(|text| format.shown.iter().any(|shown| text.contains(shown)))
    };
    let teaches = |format: &&Format| format.taught.iter().any(|text| template.contains(text));
    FORMATS.iter().find(shows).or_else(|| FORMATS.iter().find(teaches))
}

/// A call as a template writes it: the rendered conversation with the call, without the part that the same conversation
/// has without it.
fn shown(template: &ChatTemplate, id: &str) -> Option<String> {
    let function = json!({ "name": "probe", "arguments": { "probe": "probe" } });
    let call = json!({ "id": id, "type": "function", "function": function });
    let called = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
    let result = json!({ "role": "tool", "name": "probe", "tool_call_id": id, "content": "probe" });
    let json = |value| serde_json::from_value::<Json>(value).ok().and_then(ChatMessage::from_json);
    let mut messages = vec![ChatMessage::new("user", "probe"), json(called)?];
    let render = |messages: &[ChatMessage]| {
        template.render(&Conversation::to_answer(messages.to_vec())).ok()
    };
    render(&messages).or_else(|| {
        messages.push(json(result)?);
        render(&messages)
    })
}

fn taught_style(template: &ChatTemplate) -> Option<&'static Style> {
    let teaches =
        |style: &&Style| style.opens.iter().chain(style.closes).any(|mark| template.contains(mark));
    STYLES.iter().find(teaches)
}
