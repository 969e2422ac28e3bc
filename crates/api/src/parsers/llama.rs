//! Parses calls without a closing marker: Llama's JSON `{"name": .., "parameters": ..}`, after `<|python_tag|>` or at
//! the start of an answer, and calls as a Python list, `[f(a=1), g()]`.

use super::Reader;
use super::emitter::Emitter;
use super::input::{Input, is_json_whitespace};
use super::json::{CallObject, Rules, Step};
use super::python;
use crate::calls::Function;
use std::mem;
use std::sync::Arc;

pub(super) const TAG: &str = "<|python_tag|>";
pub(super) const PYTHON: &str = "<|python_start|>";
pub(super) const END_PYTHON: &str = "<|python_end|>";

#[derive(Debug)]
pub(super) struct Llama {
    /// The functions of the request. Text without markers is a call only if it names one of them.
    functions: Arc<[Function]>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A call may start here. The string is the text before it.
    Begin(String),
    Text,
    Object {
        before: String,
        call: CallObject,
    },
    List {
        text: String,
        scan: ListScan,
    },
    /// Another call may follow.
    Next(String),
    /// A call's arguments are invalid JSON.
    InvalidArguments,
}

impl Llama {
    pub(super) fn new(functions: &Arc<[Function]>) -> Self {
        Self { functions: Arc::clone(functions), state: State::Begin(String::new()) }
    }

    fn begin(&self, before: &mut String, input: &mut Input, out: &mut Emitter) -> Option<State> {
        before.push_str(&input.take_whitespace());
        let first = input.first()?;
        let markers = [TAG, PYTHON].map(|marker| (marker, input.starts(marker)));
        if let Some((marker, _)) = markers.iter().find(|(_, starts)| *starts == Some(true)) {
            before.push_str(&input.take(marker.len()));
            return Some(State::Begin(mem::take(before)));
        }
        if markers.iter().any(|(_, starts)| starts.is_none()) {
            return None;
        }
        Some(match first {
            '{' => {
                let rules =
                    Rules { only: Some(Arc::clone(&self.functions)), needs_arguments: true };
                State::Object { before: mem::take(before), call: CallObject::new(rules) }
            }
            '[' => State::List { text: mem::take(before), scan: ListScan::default() },
            _ => {
                out.content(&mem::take(before));
                State::Text
            }
        })
    }

    /// Emits the calls of a complete list if all of their functions exist, otherwise the text.
    fn list(&self, text: &str, out: &mut Emitter) {
        let list = text.trim_start_matches(is_json_whitespace);
        let list = [TAG, PYTHON].iter().fold(list, |list, marker| {
            list.strip_prefix(marker).unwrap_or(list).trim_start_matches(is_json_whitespace)
        });
        let exists = |name: &str| self.functions.iter().any(|function| function.name == name);
        match python::calls(list).filter(|calls| calls.iter().all(|(name, _)| exists(name))) {
            Some(calls) => emit(&calls, out),
            None => out.content(text),
        }
    }
}

fn emit(calls: &[python::PythonCall], out: &mut Emitter) {
    for (name, arguments) in calls {
        out.start(None, name);
        out.arguments(arguments);
    }
}

impl Reader for Llama {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        let mut state = mem::replace(&mut self.state, State::Text);
        let next = match &mut state {
            State::Begin(before) => self.begin(before, input, out),
            State::Text => {
                let found = input.until(&[TAG, PYTHON]);
                out.content(&found.text);
                found.marker.map(|marker| State::Begin([TAG, PYTHON][marker].to_owned()))
            }
            State::Object { before, call } => match call.step(input, out) {
                Step::More => None,
                Step::Done => Some(State::Next(String::new())),
                Step::Broken if call.started() => Some(State::InvalidArguments),
                Step::Broken => {
                    let call = mem::replace(call, CallObject::new(Rules::default()));
                    out.content(&(mem::take(before) + &call.into_raw()));
                    Some(State::Text)
                }
            },
            State::List { text, scan } => {
                let (bytes, done) = scan.scan(input.rest());
                text.push_str(&input.take(bytes));
                done.then(|| {
                    let text = mem::take(text);
                    self.list(&text, out);
                    State::Next(String::new())
                })
            }
            State::Next(between) => {
                between.push_str(&input.take_whitespace());
                match input.first() {
                    None => None,
                    Some(';' | ',') => {
                        between.push_str(&input.take(1));
                        Some(State::Next(mem::take(between)))
                    }
                    Some(_) if input.starts(END_PYTHON) == Some(true) => {
                        input.take(END_PYTHON.len());
                        Some(State::Next(mem::take(between)))
                    }
                    Some(_) if input.starts(END_PYTHON).is_none() => None,
                    Some(_) => Some(State::Begin(mem::take(between))),
                }
            }
            State::InvalidArguments => {
                let found = input.until(&[TAG, PYTHON]);
                out.arguments(&found.text);
                found.marker.map(|marker| State::Begin([TAG, PYTHON][marker].to_owned()))
            }
        };
        let moved = next.is_some();
        self.state = next.unwrap_or(state);
        moved
    }

    fn finish(&mut self, out: &mut Emitter, _cut: bool) {
        match mem::replace(&mut self.state, State::Text) {
            State::Begin(text) | State::List { text, .. } => out.content(&text),
            State::Next(between) => out.content(&between),
            State::Object { before, call } if !call.started() => {
                out.content(&(before + &call.into_raw()));
            }
            _ => {}
        }
    }
}

/// Finds the end of a Python list.
#[derive(Debug, Default)]
struct ListScan {
    depth: usize,
    /// Whether the first name has started; without a name the list has no calls.
    named: bool,
    /// The quote of the current string.
    quote: Option<u8>,
    escaped: bool,
}

impl ListScan {
    /// Bytes of the text that belong to the list, and whether it has ended.
    fn scan(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            if self.depth == 1 && !self.named && !byte.is_ascii_whitespace() {
                self.named = true;
                if !byte.is_ascii_alphabetic() && byte != b'_' {
                    return (at, true);
                }
            }
            match (self.quote, byte) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), b'\\') => self.escaped = true,
                (Some(quote), byte) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'[' | b'(' | b'{') => self.depth += 1,
                (None, b']' | b')' | b'}') => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                (None, _) => {}
            }
        }
        (text.len(), false)
    }
}

pub(super) const LIST: &str = "<|tool_call_start|>";
pub(super) const END_LIST: &str = "<|tool_call_end|>";

/// Parses LFM2's calls: a Python list, or JSON, between special tokens.
#[derive(Debug, Default)]
pub(super) struct ListCalls {
    /// The text after the opening marker.
    inside: Option<String>,
}

impl Reader for ListCalls {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        let Some(inside) = &mut self.inside else {
            let found = input.until(&[LIST]);
            out.content(&found.text);
            self.inside = found.marker.map(|_| String::new());
            return found.marker.is_some();
        };
        let found = input.until(&[END_LIST]);
        inside.push_str(&found.text);
        if found.marker.is_none() {
            return false;
        }
        let inside = mem::take(inside);
        self.inside = None;
        if !emit_marked_calls(&inside, out) {
            out.content(&format!("{LIST}{inside}{END_LIST}"));
        }
        true
    }

    fn finish(&mut self, out: &mut Emitter, _cut: bool) {
        if let Some(inside) = self.inside.take()
            && !emit_marked_calls(&inside, out)
        {
            out.content(&format!("{LIST}{inside}"));
        }
    }
}

/// Emits the calls of a complete list; false if it has none.
fn emit_marked_calls(text: &str, out: &mut Emitter) -> bool {
    if let Some(calls) = python::calls(text) {
        emit(&calls, out);
        return true;
    }
    // LFM2 writes JSON if the system message asks for it.
    let mut input = Input::default();
    input.add(text);
    input.ended = true;
    let _ = input.take_whitespace();
    if input.first() == Some('[') {
        input.take(1);
    }
    let mut called = false;
    loop {
        let mut call = CallObject::new(Rules::default());
        if call.step(&mut input, out) != Step::Done {
            if call.started() {
                out.arguments(input.rest());
            }
            return called || call.started();
        }
        called = true;
        let _ = input.take_whitespace();
        match input.first() {
            Some(',') => drop(input.take(1)),
            _ => return true,
        }
    }
}
