//! Parses text, reasoning and tool calls from an answer while it is streamed.
//!
//! A [`Plan`] defines how the answers to a conversation are parsed; [`Parser`] parses one. It takes text in pieces of
//! any size and emits [`Event`]s. The joined events of an answer do not depend on the pieces: streamed and complete
//! answers are equal. A complete answer is a [`Message`], to which events are added.
//!
//! A call is emitted as soon as it is known to be one: its name, then its arguments as streamed, in the model's own
//! text. Text that only resembles the start of a call is content. Arguments that are invalid JSON, or that `max_tokens`
//! truncated, are passed on unchanged.
//!
//! Every format has a file and a row in the table of [`formats`]. Parsing takes linear time.

mod coerce;
mod emitter;
mod formats;
mod grammar;
mod harmony;
mod input;
mod json;
mod kimi;
mod llama;
mod mistral;
mod python;
mod reasoning;
mod tagged;
#[cfg(test)]
mod tests;
mod xml;

pub(crate) use formats::ModelFormat;
pub use formats::{reasoning_parsers, tool_call_parsers};

use crate::calls::Function;
use emitter::Emitter;
use grammar::Grammar;
use input::Input;
use models::Tokenizer;
use reasoning::Trim;
use serving::StructuredOutput;
use std::fmt::Debug;
use std::sync::Arc;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Text for the user.
    Content(String),
    /// Reasoning text.
    Reasoning(String),
    /// A call starts.
    CallStart {
        /// Its index among the calls of the answer.
        index: usize,
        id: String,
        name: String,
    },
    /// More of the text of a call's arguments.
    CallArguments { index: usize, text: String },
}

/// A call of a whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The text of a JSON object.
    pub(crate) arguments: String,
}

/// A complete answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
}

impl Message {
    pub(crate) fn add(&mut self, event: Event) {
        match event {
            Event::Content(text) => self.content += &text,
            Event::Reasoning(text) => self.reasoning += &text,
            Event::CallStart { id, name, .. } => {
                self.calls.push(Call { id, name, arguments: String::new() });
            }
            Event::CallArguments { index, text } => self.calls[index].arguments += &text,
        }
    }
}

/// How calls without an id get one.
#[derive(Debug, Clone, Copy)]
enum Ids {
    /// OpenAI's format.
    Random,
    /// Mistral's templates accept only this.
    NineLetters,
    /// Kimi's ids contain the function's name.
    Kimi,
}

impl Ids {
    fn make(self, seed: u64, index: usize, name: &str) -> String {
        // A step of SplitMix64.
        let mut bits = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        match self {
            Self::Random => format!("call_{bits:016x}"),
            Self::NineLetters => format!("{:09x}", bits & 0xf_ffff_ffff),
            Self::Kimi => format!("functions.{name}:{index}"),
        }
    }
}

/// A parser of calls in the text of an answer.
trait Reader: Debug + Send {
    /// Consumes the unambiguous front of the text. False if more text is needed.
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool;

    /// Ends the text; `cut` if the answer was truncated.
    fn finish(&mut self, out: &mut Emitter, cut: bool);
}

/// Defines how the answers to a conversation are parsed.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    model_format: ModelFormat,
    functions: Arc<[Function]>,
    /// Whether functions may be called.
    calls: bool,
    /// Whether an answer may have several calls.
    parallel: bool,
    /// Whether the prompt has started the reasoning.
    open: bool,
}

impl Plan {
    /// A plan for the answers to a prompt, with the callable functions. None if the answers are plain text.
    pub(crate) fn new(
        model_format: ModelFormat,
        functions: Option<Arc<[Function]>>,
        parallel: bool,
        prompt: &str,
    ) -> Option<Self> {
        let has_channels = model_format.format.is_some_and(|format| format.has_channels);
        let calls = functions.is_some() && model_format.format.is_some();
        if !calls && model_format.style.is_none() && !has_channels {
            return None;
        }
        let open = model_format.style.is_some_and(|style| style.is_open(prompt));
        let functions = functions.unwrap_or_else(|| Arc::new([]));
        Some(Self { model_format, functions, calls, parallel, open })
    }

    /// The plan for answers with a fixed structure, which have no reasoning.
    pub(crate) fn without_reasoning(mut self) -> Option<Self> {
        self.model_format.style = None;
        let has_channels = self.model_format.format.is_some_and(|format| format.has_channels);
        (self.calls || has_channels).then_some(self)
    }

    /// Whether a special token is part of the parsed text.
    pub(crate) fn has_marker(&self, word: &str) -> bool {
        let format = self.model_format.format.is_some_and(|format| format.markers.contains(&word));
        let style = |markers: &[&str]| markers.contains(&word);
        format || self.model_format.style.is_some_and(|all| style(all.opens) || style(all.closes))
    }

    /// The grammar of an answer that must call one of these functions.
    pub(crate) fn forced(
        &self,
        functions: &[&Function],
        tokenizer: &Tokenizer,
    ) -> Option<StructuredOutput> {
        let format = self.model_format.format?;
        let mut grammar = Grammar::new(tokenizer);
        let calls: Vec<String> = functions
            .iter()
            .map(|function| {
                let call = (format.grammar)(&mut grammar, function);
                grammar.rule("", &call)
            })
            .collect();
        let mut start = format!("({})", calls.join(" | "));
        if let Some(style) = self.model_format.style.filter(|_| self.open) {
            let reasoning = grammar.text_until(style.closes[0]);
            start = format!(r"{reasoning} /[\n]*/ {start}");
        }
        Some(StructuredOutput::Lark(grammar.finish(&start)))
    }
}

/// Parses a streamed answer.
#[derive(Debug)]
pub(crate) struct Parser {
    plan: Plan,
    stage: Stage,
    input: Input,
    out: Emitter,
    reader: Option<Box<dyn Reader>>,
    /// The markers that end the reasoning, those that start it, and the starts of calls that end it.
    marks: Vec<&'static str>,
}

#[derive(Debug)]
enum Stage {
    /// Reasoning may start; with the white space before it.
    Begin(String),
    Reasoning,
    Answer,
}

impl Parser {
    /// `seed` determines the ids of calls.
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        let ModelFormat { format, style } = plan.model_format;
        let has_channels = format.is_some_and(|format| format.has_channels);
        let format = format.filter(|_| plan.calls || has_channels);
        let ids = format.map_or(Ids::Random, |format| format.ids);
        let mut marks = style.map_or(Vec::new(), |style| [style.closes, style.opens].concat());
        marks.extend(format.map_or(&[][..], |format| format.interrupts));
        let stage = match style {
            Some(_) if plan.open => Stage::Reasoning,
            Some(_) => Stage::Begin(String::new()),
            None => Stage::Answer,
        };
        // Channels separate messages, which are joined by line breaks.
        let trim = style.map_or(Trim::Both, |style| style.trim);
        Self {
            stage,
            input: Input::default(),
            out: Emitter::new(ids, seed, plan.parallel, trim),
            reader: format.map(|format| (format.reader)(&plan.functions)),
            marks,
            plan: plan.clone(),
        }
    }

    pub(crate) fn has_marker(&self, word: &str) -> bool {
        self.plan.has_marker(word)
    }

    /// Whether the answer has a call.
    pub(crate) fn called(&self) -> bool {
        self.out.called()
    }

    /// Adds text.
    pub(crate) fn push(&mut self, more: &str) -> Vec<Event> {
        self.input.add(more);
        while self.step() {}
        self.out.drain()
    }

    /// Ends the text and returns the last events; `cut` if the answer was truncated.
    pub(crate) fn finish(&mut self, cut: bool) -> Vec<Event> {
        self.input.ended = true;
        while self.step() {}
        if let Stage::Begin(blank) = &mut self.stage {
            self.out.content(&std::mem::take(blank));
        }
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut self.out, cut);
        }
        let rest = self.input.take(self.input.rest().len());
        self.out.content(&rest);
        self.out.finish();
        self.out.drain()
    }

    fn step(&mut self) -> bool {
        match (&mut self.stage, self.plan.model_format.style) {
            (Stage::Begin(blank), Some(style)) => {
                blank.push_str(&self.input.take_whitespace());
                if self.input.rest().is_empty() {
                    return false;
                }
                let starts: Vec<Option<bool>> =
                    style.opens.iter().map(|marker| self.input.starts(marker)).collect();
                if let Some(marker) = starts.iter().position(|starts| *starts == Some(true)) {
                    self.input.take(style.opens[marker].len());
                } else if starts.contains(&None) {
                    return false;
                } else {
                    let blank = std::mem::take(blank);
                    self.out.content(&blank);
                    self.stage = Stage::Answer;
                    return true;
                }
                self.stage = Stage::Reasoning;
                true
            }
            (Stage::Reasoning, Some(style)) => {
                let found = self.input.until(&self.marks);
                self.out.reasoning(&found.text);
                let Some(marker) = found.marker else { return false };
                if marker >= style.closes.len() {
                    if marker < style.closes.len() + style.opens.len() {
                        // The prompt has started the reasoning, and the answer starts it again.
                        return true;
                    }
                    // A call starts without the closing marker of the reasoning.
                    self.input.put_back(self.marks[marker].len());
                }
                self.out.end_reasoning();
                self.stage = Stage::Answer;
                true
            }
            _ => match &mut self.reader {
                Some(reader) => reader.step(&mut self.input, &mut self.out),
                None => {
                    let text = self.input.take(self.input.rest().len());
                    self.out.content(&text);
                    false
                }
            },
        }
    }
}
