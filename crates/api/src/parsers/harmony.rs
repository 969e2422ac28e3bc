//! Parses gpt-oss's messages (harmony): `<|channel|>NAME<|message|>TEXT<|end|>`. The channel `analysis` is reasoning,
//! `final` is the answer, and a message to `functions.NAME` is a call. `<|call|>` and `<|return|>` end an answer.

use super::Reader;
use super::emitter::Emitter;
use super::input::{Input, is_json_whitespace};
use crate::calls::Function;
use std::mem;
use std::sync::Arc;

pub(super) const START: &str = "<|start|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
pub(super) const CALL: &str = "<|call|>";
pub(super) const RETURN: &str = "<|return|>";

#[derive(Debug)]
pub(super) struct Harmony {
    functions: Arc<[Function]>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// In a message's header, whose start may be in the prompt; its text so far.
    Header(String),
    /// After a header.
    Body(Body),
}

#[derive(Debug, Clone)]
enum Body {
    Content,
    Reasoning,
    /// The arguments of a call.
    Call {
        /// White space that is emitted only if more text follows.
        blank: String,
        /// Whether text of the arguments was emitted.
        begun: bool,
    },
}

impl Harmony {
    pub(super) fn new(functions: &Arc<[Function]>) -> Self {
        Self { functions: Arc::clone(functions), state: State::Header(String::new()) }
    }

    /// The kind of the message with this header; starts a call if it is one.
    fn body(&self, header: &str, out: &mut Emitter) -> Body {
        let channel = header.split_once(CHANNEL).map_or("", |(_, after)| after.trim_start());
        let to = header.split_once("to=").map_or("", |(_, after)| after);
        let end = |c: char| is_json_whitespace(c) || c == '<';
        let recipient = to.split(end).next().unwrap_or_default();
        let exists = |name: &str| self.functions.iter().any(|function| function.name == name);
        let function = recipient.strip_prefix("functions.");
        let function = function.or_else(|| Some(recipient).filter(|name| exists(name)));
        if let Some(name) = function.filter(|name| !name.is_empty()) {
            out.start(None, name);
            return Body::Call { blank: String::new(), begun: false };
        }
        // Calls of gpt-oss's built-in tools are not supported: they are treated as reasoning.
        match !recipient.is_empty() || channel.split(end).next() == Some("analysis") {
            true => Body::Reasoning,
            false => Body::Content,
        }
    }
}

impl Body {
    fn push(&mut self, text: &str, out: &mut Emitter) {
        match self {
            Self::Content => out.content(text),
            Self::Reasoning => out.reasoning(text),
            Self::Call { blank, begun } => {
                blank.push_str(text);
                if !*begun {
                    blank.drain(..blank.len() - blank.trim_start_matches(is_json_whitespace).len());
                }
                let solid: String =
                    blank.drain(..blank.trim_end_matches(is_json_whitespace).len()).collect();
                *begun |= !solid.is_empty();
                out.arguments(&solid);
            }
        }
    }

    fn end(&self, out: &mut Emitter) {
        match self {
            Self::Content => {}
            Self::Reasoning => out.end_reasoning(),
            Self::Call { begun, .. } => {
                if !begun {
                    out.arguments("{}");
                }
            }
        }
    }
}

impl Reader for Harmony {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        match &mut self.state {
            State::Header(header) => {
                if header.trim_matches(is_json_whitespace).is_empty() {
                    header.push_str(&input.take_whitespace());
                    let begins = ["<|", "to=", "assistant"].map(|begin| input.starts(begin));
                    if input.first().is_none()
                        || (begins.contains(&None) && !begins.contains(&Some(true)))
                    {
                        return false;
                    }
                    if !begins.contains(&Some(true)) {
                        // Text without a header, as in structured output.
                        out.content(&mem::take(header));
                        self.state = State::Body(Body::Content);
                        return true;
                    }
                }
                let found = input.until(&[MESSAGE, START, END, CALL, RETURN]);
                header.push_str(&found.text);
                match found.marker {
                    None => return false,
                    Some(0) => {
                        let header = mem::take(header);
                        self.state = State::Body(self.body(&header, out));
                    }
                    // A header without a message is dropped.
                    Some(_) => header.clear(),
                }
            }
            State::Body(body) => {
                let found = input.until(&[END, CALL, RETURN, START, CHANNEL]);
                body.push(&found.text, out);
                let Some(marker) = found.marker else { return false };
                body.end(out);
                let header = if marker == 4 { CHANNEL.to_owned() } else { String::new() };
                self.state = State::Header(header);
            }
        }
        true
    }

    fn finish(&mut self, out: &mut Emitter, cut: bool) {
        match mem::replace(&mut self.state, State::Header(String::new())) {
            State::Body(body) if !cut => body.end(out),
            // Text without a message.
            State::Header(header) if !header.contains(CHANNEL) && header.trim() != "assistant" => {
                out.content(&header);
            }
            State::Body(_) | State::Header(_) => {}
        }
    }
}
