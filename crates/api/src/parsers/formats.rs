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
    /// A template that renders a call with one of these texts uses this format.
    rendered: &'static [&'static str],
    /// If the rendered call is not recognized, a template whose source has one of these texts uses it.
    template_texts: &'static [&'static str],
    /// Markers that may be special tokens, which are otherwise omitted from the text.
    pub(super) markers: &'static [&'static str],
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
        rendered: &[harmony::CHANNEL],
        template_texts: &[harmony::CHANNEL],
        markers: &[
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
        rendered: &[kimi::SECTION, kimi::CALL],
        template_texts: &[kimi::SECTION, kimi::CALL],
        markers: &[kimi::SECTION, kimi::CALL, kimi::ARGUMENTS, kimi::END_CALL, kimi::END_SECTION],
        interrupts: &[kimi::SECTION],
        has_channels: false,
        ids: Ids::Kimi,
        reader: |_| Box::new(Kimi::default()),
        grammar: grammar::kimi,
    },
    Format {
        names: &["lfm2"],
        rendered: &[llama::LIST],
        template_texts: &[llama::LIST, "<|tool_list_start|>"],
        markers: &[llama::LIST, llama::END_LIST],
        interrupts: &[llama::LIST],
        has_channels: false,
        ids: Ids::Random,
        reader: |_| Box::new(ListCalls::default()),
        grammar: |grammar, function| {
            let [open, close] = [llama::LIST, llama::END_LIST].map(|marker| grammar.marker(marker));
            format!("{open} {} {close}", grammar::python(grammar, function))
        },
    },
    Format {
        names: &["qwen3_coder", "qwen3_xml", "mimo"],
        rendered: &[xml::FUNCTION],
        template_texts: &[xml::FUNCTION],
        markers: &[TOOL_CALL, END_TOOL_CALL],
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
        rendered: &[mistral::CALLS],
        template_texts: &[mistral::CALLS],
        markers: &[mistral::CALLS, mistral::ARGUMENTS, mistral::ID],
        interrupts: &[mistral::CALLS],
        has_channels: false,
        ids: Ids::NineLetters,
        reader: |_| Box::new(Mistral::default()),
        grammar: grammar::mistral,
    },
    Format {
        names: &["granite"],
        rendered: &[GRANITE_CALL],
        template_texts: &[GRANITE_CALL],
        markers: &[GRANITE_CALL],
        interrupts: &[],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Tagged::new(&[GRANITE_CALL, TOOL_CALL], None, functions)),
        grammar: |grammar, function| {
            let open = grammar.marker(GRANITE_CALL);
            format!(r#"{open} "[" {} "]""#, grammar.call(function, "arguments"))
        },
    },
    Format {
        names: &["hermes", "granite4"],
        rendered: &[TOOL_CALL],
        template_texts: &[TOOL_CALL],
        markers: &[TOOL_CALL, END_TOOL_CALL],
        interrupts: &["<tool_call>\n{\"name\""],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Tagged::new(&[TOOL_CALL], Some(END_TOOL_CALL), functions)),
        grammar: |grammar, function| {
            let [open, close] = [TOOL_CALL, END_TOOL_CALL].map(|marker| grammar.marker(marker));
            format!(r#"{open} "\n" {} "\n" {close}"#, grammar.call(function, "arguments"))
        },
    },
    Format {
        names: &["pythonic", "llama4_pythonic"],
        rendered: &["[probe("],
        template_texts: &["[func_name1(params_name1="],
        markers: &[llama::PYTHON, llama::END_PYTHON],
        interrupts: &[],
        has_channels: false,
        ids: Ids::Random,
        reader: |functions| Box::new(Llama::new(functions)),
        grammar: grammar::python,
    },
    Format {
        names: &["llama3_json", "llama4_json"],
        rendered: &[r#"{"name": "probe", "parameters": "#],
        template_texts: &[r#"{"name": function name, "parameters": "#],
        markers: &[llama::TAG],
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
            None => template.and_then(template_format),
        };
        let style = match reasoning_parser {
            Some(name) => STYLES.iter().find(|style| style.names.contains(&name)),
            None => template.and_then(template_style),
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
fn template_format(template: &ChatTemplate) -> Option<&'static Format> {
    // Kimi's templates write the id, and Mistral's require nine alphanumeric characters.
    let texts = ["functions.probe:0", "probe0000"].map(|id| render_call(template, id));
    let renders_format = |format: &&Format| {
        let mut texts = texts.iter().flatten();
        texts.any(|text| format.rendered.iter().any(|part| text.contains(part)))
    };
    let names_format =
        |format: &&Format| format.template_texts.iter().any(|text| template.contains(text));
    FORMATS.iter().find(renders_format).or_else(|| FORMATS.iter().find(names_format))
}

/// A call as a template writes it: the rendered conversation with the call, without the part that the same conversation
/// has without it.
fn render_call(template: &ChatTemplate, id: &str) -> Option<String> {
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

fn template_style(template: &ChatTemplate) -> Option<&'static Style> {
    let names_format = |style: &&Style| {
        style.opens.iter().chain(style.closes).any(|marker| template.contains(marker))
    };
    STYLES.iter().find(names_format)
}
