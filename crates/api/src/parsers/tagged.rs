//! Parses calls between `<tool_call>` tags: JSON objects (Hermes, Qwen, Granite 4), JSON arrays (Granite 3) or XML
//! (Qwen3-Coder).

use super::Reader;
use super::emitter::Emitter;
use super::input::Input;
use super::json::{CallObject, Rules, Step};
use super::xml::{self, CallElement};
use crate::calls::Function;
use std::mem;
use std::sync::Arc;

/// Parses calls after one of several opening markers.
#[derive(Debug)]
pub(super) struct Tagged {
    /// The opening markers; the last one is `<function=` if calls in XML need no tag around them.
    opens: &'static [&'static str],
    /// The optional marker after a call.
    close: Option<&'static str>,
    functions: Arc<[Function]>,
    state: State,
}

#[derive(Debug)]
enum State {
    Outside,
    /// After an opening marker, with its text.
    Opened(String),
    /// The text before the call, and whether the call is in an array.
    Object {
        before: String,
        call: CallObject,
        array: bool,
    },
    Element {
        before: String,
        call: CallElement,
    },
    /// Between the calls of an array.
    Next,
    /// A call's arguments are invalid JSON; they are passed on up to the closing marker.
    Lost,
    /// After a call, with the white space since.
    Close(String),
}

impl Tagged {
    pub(super) fn new(
        opens: &'static [&'static str],
        close: Option<&'static str>,
        functions: &Arc<[Function]>,
    ) -> Self {
        Self { opens, close, functions: Arc::clone(functions), state: State::Outside }
    }

    /// The state after an opening marker.
    fn open(&self, marker: &str) -> State {
        match marker == xml::FUNCTION {
            // Without a tag, only existing functions are called.
            true => State::Element {
                before: marker.to_owned(),
                call: CallElement::new(&self.functions, true),
            },
            false => State::Opened(marker.to_owned()),
        }
    }

    fn opened(&self, before: &mut String, input: &mut Input, out: &mut Emitter) -> Option<State> {
        before.push_str(&input.take_whitespace());
        let mut before = || mem::take(&mut *before);
        match input.first() {
            Some('{') => {
                let call = CallObject::new(Rules::default());
                Some(State::Object { before: before(), call, array: false })
            }
            Some('[') => {
                let mut before = before();
                before += &input.take(1);
                let call = CallObject::new(Rules::default());
                Some(State::Object { before, call, array: true })
            }
            first => match first.map_or(Some(false), |_| input.starts(xml::FUNCTION)) {
                _ if first.is_none() && !input.ended => None,
                None => None,
                Some(true) => {
                    let before = before() + &input.take(xml::FUNCTION.len());
                    let call = CallElement::new(&self.functions, false);
                    Some(State::Element { before, call })
                }
                Some(false) => {
                    out.content(&before());
                    Some(State::Outside)
                }
            },
        }
    }

    /// The state after a call, with white space or surplus brackets.
    fn closed(&self, blank: &mut String, input: &mut Input, out: &mut Emitter) -> Option<State> {
        let Some(close) = self.close else { return Some(State::Outside) };
        loop {
            blank.push_str(&input.take_whitespace());
            match input.first() {
                Some('}' | ']') => drop(input.take(1)),
                _ => break,
            }
        }
        if input.starts(close)? {
            input.take(close.len());
        } else {
            out.content(blank);
        }
        Some(State::Outside)
    }
}

impl Reader for Tagged {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        let mut state = mem::replace(&mut self.state, State::Outside);
        let next = match &mut state {
            State::Outside => {
                let found = input.until(self.opens);
                out.content(&found.text);
                found.marker.map(|marker| self.open(self.opens[marker]))
            }
            State::Opened(before) => self.opened(before, input, out),
            State::Object { before, call, array } => match call.step(input, out) {
                Step::More => None,
                Step::Done if *array => Some(State::Next),
                Step::Done => Some(State::Close(String::new())),
                Step::Broken if call.started() => Some(State::Lost),
                Step::Broken => {
                    let call = mem::replace(call, CallObject::new(Rules::default()));
                    out.content(&(mem::take(before) + &call.into_raw()));
                    Some(State::Outside)
                }
            },
            State::Element { before, call } => match call.step(input, out) {
                Step::More => None,
                Step::Done => Some(State::Close(String::new())),
                Step::Broken => {
                    out.content(&(mem::take(before) + &call.take_raw()));
                    Some(State::Outside)
                }
            },
            State::Next => {
                let _ = input.take_whitespace();
                match input.first() {
                    None if !input.ended => None,
                    Some(',') => {
                        let before = input.take(1);
                        let call = CallObject::new(Rules::default());
                        Some(State::Object { before, call, array: true })
                    }
                    Some(']') => {
                        input.take(1);
                        Some(State::Close(String::new()))
                    }
                    _ => Some(State::Close(String::new())),
                }
            }
            State::Lost => {
                let markers: Vec<&str> =
                    self.close.into_iter().chain(self.opens.iter().copied()).collect();
                let found = input.until(&markers);
                out.arguments(&found.text);
                found.marker.map(|marker| match self.close == Some(markers[marker]) {
                    true => State::Outside,
                    false => self.open(markers[marker]),
                })
            }
            State::Close(blank) => self.closed(blank, input, out),
        };
        let moved = next.is_some();
        self.state = next.unwrap_or(state);
        moved
    }

    fn finish(&mut self, out: &mut Emitter, cut: bool) {
        match mem::replace(&mut self.state, State::Outside) {
            State::Opened(before) => out.content(&before),
            State::Object { before, call, .. } if !call.started() => {
                out.content(&(before + &call.into_raw()));
            }
            State::Element { before, mut call } => {
                let is_call = call.finish(out, cut);
                if !is_call {
                    out.content(&(before + &call.take_raw()));
                }
            }
            _ => {}
        }
    }
}
