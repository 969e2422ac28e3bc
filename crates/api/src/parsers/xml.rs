//! Parses calls in XML, as written by Qwen3-Coder, Qwen3.5 and Nemotron 3: `<function=NAME>`, a `<parameter=NAME>` with
//! its text for each argument, `</function>`.
//!
//! The text has no types. The schema of the function's arguments has them. A string is streamed, other values are
//! passed on when they are complete. A value may contain tags: a closing tag counts if the text after it continues the
//! call.

use super::coerce::{self, Types};
use super::emitter::Emitter;
use super::input::Input;
use super::json::Step;
use crate::calls::Function;
use serde_json::Value;
use std::mem;
use std::sync::Arc;

pub(super) const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_FUNCTION: &str = "</function>";
const END_CALL: &str = "</tool_call>";

/// A call after `<function=`.
#[derive(Debug)]
pub(super) struct CallElement {
    functions: Arc<[Function]>,
    /// The index of the function; none for an unknown one.
    function: Option<usize>,
    /// Whether only existing functions are called.
    only: bool,
    state: State,
    /// The name that is being read: of the function, then of a parameter.
    name: String,
    value: ParameterValue,
    seen: Vec<String>,
    started: bool,
}

#[derive(Debug)]
enum State {
    Name,
    Between,
    ParameterName,
    Value,
    /// After a tag in a value, with the text since: that text decides whether the tag is part of the value.
    Tag(&'static str, String),
}

/// The value of a parameter while it is parsed.
#[derive(Debug, Default)]
struct ParameterValue {
    types: Types,
    /// The text, except for a streamed string.
    text: String,
    /// A line break, which belongs to the value only if more of it follows.
    line: String,
    /// Whether a string has started.
    begun: bool,
    /// Whether text was read.
    read: bool,
}

impl CallElement {
    pub(super) fn new(functions: &Arc<[Function]>, only: bool) -> Self {
        Self {
            functions: Arc::clone(functions),
            function: None,
            only,
            state: State::Name,
            name: String::new(),
            value: ParameterValue::default(),
            seen: Vec::new(),
            started: false,
        }
    }

    /// The text of an element that is not a call.
    pub(super) fn take_raw(&mut self) -> String {
        mem::take(&mut self.name)
    }

    pub(super) fn step(&mut self, input: &mut Input, out: &mut Emitter) -> Step {
        loop {
            let next = match mem::replace(&mut self.state, State::Between) {
                State::Name => {
                    let found = input.until(&[">", "<", "\n"]);
                    self.name.push_str(&found.text);
                    match found.mark {
                        None => Err((State::Name, Step::More)),
                        Some(0) if self.start(out) => Ok(State::Between),
                        Some(mark) => {
                            // The marker is text.
                            input.put_back(1);
                            if mark == 0 {
                                self.name.push_str(&input.take(1));
                            }
                            Err((State::Name, Step::Broken))
                        }
                    }
                }
                State::Between => self.between(input, out),
                State::ParameterName => {
                    let found = input.until(&[">"]);
                    self.name.push_str(&found.text);
                    match found.mark {
                        None => Err((State::ParameterName, Step::More)),
                        Some(_) => {
                            self.begin_value(out);
                            Ok(State::Value)
                        }
                    }
                }
                State::Value => {
                    const TAGS: [&str; 3] = [END_PARAMETER, END_FUNCTION, PARAMETER];
                    let found = input.until(&TAGS);
                    self.value.push(&found.text, out);
                    match found.mark {
                        None => Err((State::Value, Step::More)),
                        Some(tag) => Ok(State::Tag(TAGS[tag], String::new())),
                    }
                }
                State::Tag(tag, since) => self.tag(tag, since, input, out),
            };
            match next {
                Ok(state) => self.state = state,
                Err((state, step)) => {
                    self.state = state;
                    return step;
                }
            }
        }
    }

    /// Ends the text. False if no call had started. A call of a complete answer is closed.
    pub(super) fn finish(&mut self, out: &mut Emitter, cut: bool) -> bool {
        if self.started && !cut && matches!(self.state, State::Between) {
            self.close(out);
        }
        self.started
    }

    /// Ends the function's name. False if it is invalid.
    fn start(&mut self, out: &mut Emitter) -> bool {
        let name = self.name.trim_matches([' ', '"', '\'']);
        self.function = self.functions.iter().position(|function| function.name == name);
        if name.is_empty() || (self.only && self.function.is_none()) {
            return false;
        }
        out.start(None, name);
        self.started = true;
        self.name.clear();
        true
    }

    fn close(&mut self, out: &mut Emitter) {
        out.arguments(if self.seen.is_empty() { "{}" } else { "}" });
    }

    fn between(&mut self, input: &mut Input, out: &mut Emitter) -> Result<State, (State, Step)> {
        let _ = input.take_blank();
        if input.rest().is_empty() {
            return Err((State::Between, Step::More));
        }
        let [parameter, end, tag] =
            [PARAMETER, END_FUNCTION, END_CALL].map(|tag| input.starts(tag));
        if parameter == Some(true) {
            input.take(PARAMETER.len());
            self.name.clear();
            return Ok(State::ParameterName);
        }
        if end == Some(true) || tag == Some(true) {
            if end == Some(true) {
                input.take(END_FUNCTION.len());
            }
            self.close(out);
            return Err((State::Between, Step::Done));
        }
        if [parameter, end, tag].contains(&None) {
            return Err((State::Between, Step::More));
        }
        // Text between parameters is not an argument.
        let rest = input.rest();
        let skipped =
            rest.char_indices().skip(1).find(|(_, c)| *c == '<').map_or(rest.len(), |(at, _)| at);
        input.take(skipped);
        Ok(State::Between)
    }

    fn begin_value(&mut self, out: &mut Emitter) {
        let name = self.name.trim_matches([' ', '"', '\'']).to_owned();
        let schema = self.function.map(|at| &self.functions[at].arguments);
        let types = schema.map_or_else(Types::default, |schema| Types::of_property(schema, &name));
        self.value = ParameterValue { types, ..ParameterValue::default() };
        let between = if self.seen.is_empty() { "{" } else { ", " };
        out.arguments(&format!("{between}{}: ", Value::from(name.as_str())));
        self.seen.push(name);
    }

    /// Whether a tag in a value ends it.
    fn tag(
        &mut self,
        tag: &'static str,
        mut since: String,
        input: &mut Input,
        out: &mut Emitter,
    ) -> Result<State, (State, Step)> {
        if tag == PARAMETER {
            // A missing closing tag: another parameter of the function starts on a new line.
            return match self.begins_parameter(input) {
                None => Err((State::Tag(tag, since), Step::More)),
                Some(true) => {
                    self.value.end(out);
                    self.name.clear();
                    Ok(State::ParameterName)
                }
                Some(false) => {
                    self.value.push(tag, out);
                    Ok(State::Value)
                }
            };
        }
        since.push_str(&input.take_blank());
        let follow: &[&str] = match tag {
            END_PARAMETER => &[PARAMETER, END_FUNCTION, END_CALL],
            _ => &[END_CALL],
        };
        let starts: Vec<Option<bool>> = follow.iter().map(|tag| input.starts(tag)).collect();
        let ended = input.ended && input.rest().is_empty();
        if !ended && !starts.contains(&Some(true)) {
            if starts.contains(&None) {
                return Err((State::Tag(tag, since), Step::More));
            }
            self.value.push(tag, out);
            self.value.push(&since, out);
            return Ok(State::Value);
        }
        self.value.end(out);
        if tag == END_PARAMETER {
            return Ok(State::Between);
        }
        self.close(out);
        Err((State::Between, Step::Done))
    }

    fn begins_parameter(&self, input: &Input) -> Option<bool> {
        let Some(function) = self.function.filter(|_| self.value.is_at_line()) else {
            return Some(false);
        };
        let properties = self.functions[function].arguments.get("properties");
        let names =
            properties.and_then(Value::as_object).into_iter().flat_map(|names| names.keys());
        let mut begins = Some(false);
        for name in names.filter(|name| !self.seen.contains(name)) {
            match input.starts(&format!("{name}>")) {
                Some(true) => return Some(true),
                None => begins = None,
                Some(false) => {}
            }
        }
        begins
    }
}

impl ParameterValue {
    fn is_at_line(&self) -> bool {
        self.line.ends_with('\n')
    }

    fn push(&mut self, more: &str, out: &mut Emitter) {
        if more.is_empty() {
            return;
        }
        let mut text = mem::take(&mut self.line) + more;
        if !self.read {
            // The line break after the opening tag belongs to the format.
            if text == "\r" {
                self.line = text;
                return;
            }
            let own = ["\r\n", "\n"].iter().find_map(|line| text.strip_prefix(line));
            text = own.unwrap_or(&text).to_owned();
            self.read = true;
        }
        let line = ["\r\n", "\n", "\r"].iter().find(|line| text.ends_with(**line));
        let solid = text.len() - line.map_or(0, |line| line.len());
        self.line = text.split_off(solid);
        match self.types.is_string() {
            true => self.string(&text, out),
            false => self.text.push_str(&text),
        }
    }

    fn string(&mut self, text: &str, out: &mut Emitter) {
        let quoted = Value::from(text).to_string();
        let begin = usize::from(self.begun);
        self.begun = true;
        out.arguments(&quoted[begin..quoted.len() - 1]);
    }

    /// Ends the value.
    fn end(&mut self, out: &mut Emitter) {
        if self.types.is_string() {
            let open = if self.begun { "" } else { "\"" };
            out.arguments(&format!("{open}\""));
        } else {
            out.arguments(&coerce::value(&self.text, &self.types));
        }
    }
}
