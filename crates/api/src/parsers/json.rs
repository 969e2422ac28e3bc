//! Parses streamed JSON: finds the end of a value, and reads calls that are objects with a name and arguments. Values
//! are passed on as text, so that numbers keep all digits.

use super::emitter::Emitter;
use super::input::{Input, is_json_whitespace};
use crate::calls::Function;
use std::sync::Arc;

/// Finds the end of a JSON value. It checks strings, brackets and literals, in linear time and without recursion.
#[derive(Debug, Default)]
pub(super) struct ValueScan {
    kind: Option<Kind>,
    /// The closing brackets of open containers.
    closers: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Container,
    String,
    Scalar,
}

/// The result of a scan, and the bytes of the text that belong to the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scan {
    More(usize),
    Done(usize),
    /// The next byte is not valid JSON.
    Broken(usize),
}

impl ValueScan {
    pub(super) fn kind(&self) -> Option<Kind> {
        self.kind
    }

    pub(super) fn scan(&mut self, text: &str) -> Scan {
        for (at, byte) in text.bytes().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.closers.is_empty() {
                            return Scan::Done(at + 1);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            let kind = *self.kind.get_or_insert(match byte {
                b'{' | b'[' => Kind::Container,
                b'"' => Kind::String,
                _ => Kind::Scalar,
            });
            match byte {
                b'"' if kind != Kind::Scalar => self.in_string = true,
                b'{' if kind == Kind::Container => self.closers.push(b'}'),
                b'[' if kind == Kind::Container => self.closers.push(b']'),
                b'}' | b']' if kind == Kind::Container => {
                    if self.closers.last() != Some(&byte) {
                        return Scan::Broken(at);
                    }
                    self.closers.pop();
                    if self.closers.is_empty() {
                        return Scan::Done(at + 1);
                    }
                }
                b'+' | b'-' | b'.' => {}
                byte if byte.is_ascii_alphanumeric() => {}
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' if kind == Kind::Container => {}
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b'}' | b']'
                    if at > 0 || kind == Kind::Scalar =>
                {
                    return Scan::Done(at);
                }
                _ => return Scan::Broken(at),
            }
        }
        Scan::More(text.len())
    }
}

/// The text of a JSON string.
pub(super) fn string(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// The result of parsing a part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// More text is needed.
    More,
    Done,
    /// The text is invalid.
    Broken,
}

/// Rules for calls without a marker: their keys and names distinguish them from other JSON.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// The functions that can be called, if calls of others are content.
    pub(super) only: Option<Arc<[Function]>>,
    /// Whether a call needs arguments.
    pub(super) needs_arguments: bool,
}

/// A call as a JSON object: `{"name": "f", "arguments": {..}}`, in any order of keys; Llama writes `parameters`.
#[derive(Debug)]
pub(super) struct CallObject {
    rules: Rules,
    state: State,
    /// All text so far, while it may still be content.
    raw: String,
    value: ValueScan,
    /// The key or the value that is being read.
    text: String,
    key: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that preceded the name.
    arguments: Option<String>,
    started: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// A key, or the end of the object.
    Key,
    KeyText,
    Colon,
    ValueStart,
    Value,
    Next,
}

impl CallObject {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            state: State::Open,
            raw: String::new(),
            value: ValueScan::default(),
            text: String::new(),
            key: String::new(),
            name: None,
            id: None,
            arguments: None,
            started: false,
        }
    }

    /// Whether the call was recognized and started.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// The text of an object that is not a call.
    pub(super) fn into_raw(self) -> String {
        self.raw
    }

    pub(super) fn step(&mut self, input: &mut Input, out: &mut Emitter) -> Step {
        loop {
            if !matches!(self.state, State::KeyText | State::Value) {
                let blank = input.take_whitespace();
                self.keep(&blank);
            }
            let Some(first) = input.first() else { return Step::More };
            self.state = match (self.state, first) {
                (State::Open, '{') => self.take(input, State::Key),
                (State::Next, ',') => self.take(input, State::Key),
                (State::Colon, ':') => self.take(input, State::ValueStart),
                (State::Key | State::Next, '}') => {
                    self.take(input, State::Next);
                    return self.close(out);
                }
                (State::Key, '"') | (State::ValueStart, _) => {
                    (self.value, self.text) = (ValueScan::default(), String::new());
                    if self.state == State::Key { State::KeyText } else { State::Value }
                }
                (State::KeyText, _) => match self.scan(input) {
                    (Step::Done, _) => match string(&self.text).filter(|key| self.may_have(key)) {
                        Some(key) => {
                            self.key = key;
                            State::Colon
                        }
                        None => return Step::Broken,
                    },
                    (step, _) => return step,
                },
                (State::Value, _) => {
                    let (step, more) = self.scan(input);
                    if !self.value(step, &more, out) {
                        return Step::Broken;
                    }
                    match step {
                        Step::Done => State::Next,
                        step => return step,
                    }
                }
                _ => return Step::Broken,
            };
        }
    }

    fn take(&mut self, input: &mut Input, next: State) -> State {
        let taken = input.take(1);
        self.keep(&taken);
        next
    }

    fn keep(&mut self, text: &str) {
        if !self.started {
            self.raw.push_str(text);
        }
    }

    /// Consumes more of a key or value.
    fn scan(&mut self, input: &mut Input) -> (Step, String) {
        let (step, bytes) = match self.value.scan(input.rest()) {
            Scan::More(bytes) => (Step::More, bytes),
            Scan::Done(bytes) => (Step::Done, bytes),
            Scan::Broken(bytes) => (Step::Broken, bytes),
        };
        let more = input.take(bytes);
        self.keep(&more);
        if !self.is_streamed() {
            self.text.push_str(&more);
        }
        (step, more)
    }

    fn is_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters")
    }

    /// Whether the value is streamed.
    fn is_streamed(&self) -> bool {
        self.state == State::Value
            && self.is_arguments()
            && self.name.is_some()
            && self.value.kind() == Some(Kind::Container)
    }

    /// Whether a call may have this key.
    fn may_have(&self, key: &str) -> bool {
        self.rules.only.is_none()
            || ["name", "arguments", "parameters", "type", "id", "function"].contains(&key)
    }

    /// Consumes more of a value. False if the object is not a call.
    fn value(&mut self, step: Step, more: &str, out: &mut Emitter) -> bool {
        if self.is_streamed() {
            self.start(out);
            out.arguments(more);
            return true;
        }
        if step != Step::Done {
            return true;
        }
        let text = std::mem::take(&mut self.text);
        match self.key.as_str() {
            "name" => {
                let known = |name: &String| match &self.rules.only {
                    Some(only) => only.iter().any(|function| function.name == *name),
                    None => !name.is_empty(),
                };
                self.name = string(&text).filter(known);
                self.name.is_some()
            }
            "id" => {
                self.id = string(&text).filter(|id| !id.is_empty());
                true
            }
            "arguments" | "parameters" => {
                // Some models write the arguments as a JSON string; `null` and an empty text are no arguments.
                let text = string(&text).unwrap_or(text);
                let empty = matches!(text.trim_matches(is_json_whitespace), "" | "null");
                self.arguments = Some(if empty { "{}".to_owned() } else { text });
                true
            }
            _ => true,
        }
    }

    fn start(&mut self, out: &mut Emitter) {
        if !std::mem::replace(&mut self.started, true) {
            self.raw.clear();
            out.start(self.id.take(), self.name.as_deref().unwrap_or_default());
        }
    }

    /// Ends the object.
    fn close(&mut self, out: &mut Emitter) -> Step {
        if self.started {
            return Step::Done;
        }
        let missing = self.arguments.is_none() && self.rules.needs_arguments;
        if self.name.is_none() || missing {
            return Step::Broken;
        }
        self.start(out);
        out.arguments(self.arguments.as_deref().unwrap_or("{}"));
        Step::Done
    }
}
