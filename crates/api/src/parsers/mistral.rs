//! Parses Mistral's calls after `[TOOL_CALLS]`: an array of objects, or, since version 11 of the tokenizer,
//! `NAME[ARGS]{..}` for each.

use super::Reader;
use super::emitter::Emitter;
use super::input::{Input, is_blank};
use super::json::{CallObject, Rules, Scan, Step, ValueScan};
use std::mem;

pub(super) const CALLS: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const ID: &str = "[CALL_ID]";

#[derive(Debug, Default)]
pub(super) struct Mistral {
    state: State,
}

// There is one per answer: boxes would save no memory.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Default)]
enum State {
    #[default]
    Outside,
    /// After the marker, with the text so far.
    Opened(String),
    Object {
        before: String,
        call: CallObject,
        array: bool,
    },
    /// Between the calls of an array.
    Next,
    /// A name, and possibly an id.
    Header(String),
    Arguments(ValueScan),
    /// Arguments that are invalid JSON, up to the next call.
    Lost,
}

fn object(before: String, array: bool) -> State {
    State::Object { before, call: CallObject::new(Rules::default()), array }
}

impl Reader for Mistral {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        let mut state = mem::take(&mut self.state);
        let next = match &mut state {
            State::Outside => {
                let found = input.until(&[CALLS]);
                out.content(&found.text);
                found.mark.map(|_| State::Opened(CALLS.to_owned()))
            }
            State::Opened(before) => {
                before.push_str(&input.take_blank());
                match input.first() {
                    None => None,
                    Some('{') => Some(object(mem::take(before), false)),
                    Some('[') if input.starts(CALLS) == Some(false) => {
                        before.push_str(&input.take(1));
                        Some(object(mem::take(before), true))
                    }
                    Some('[') if input.starts(CALLS).is_none() => None,
                    Some(_) => Some(State::Header(String::new())),
                }
            }
            State::Object { before, call, array } => match call.step(input, out) {
                Step::More => None,
                Step::Done => Some(if *array { State::Next } else { State::Outside }),
                Step::Broken if call.started() => Some(State::Lost),
                Step::Broken => {
                    let call = mem::replace(call, CallObject::new(Rules::default()));
                    out.content(&(mem::take(before) + &call.into_raw()));
                    Some(State::Outside)
                }
            },
            State::Next => {
                let _ = input.take_blank();
                match input.first() {
                    None => None,
                    Some(',') => Some(object(input.take(1), true)),
                    Some(']') => {
                        input.take(1);
                        Some(State::Outside)
                    }
                    Some(_) => Some(State::Outside),
                }
            }
            State::Header(header) => {
                let found = input.until(&[ARGUMENTS, "{", CALLS]);
                header.push_str(&found.text);
                found.mark.map(|mark| match named(header) {
                    Some((name, id)) if mark < 2 => {
                        if mark == 1 {
                            input.put_back(1);
                        }
                        out.start(id, name);
                        State::Arguments(ValueScan::default())
                    }
                    _ => {
                        out.content(&format!("{CALLS}{header}"));
                        match mark {
                            2 => State::Opened(CALLS.to_owned()),
                            mark => {
                                input.put_back([ARGUMENTS, "{"][mark].len());
                                // The marker is text and must not be parsed again.
                                out.content(&input.take(1));
                                State::Outside
                            }
                        }
                    }
                })
            }
            State::Arguments(scan) => {
                if scan.kind().is_none() {
                    let _ = input.take_blank();
                }
                let (next, bytes) = match scan.scan(input.rest()) {
                    _ if input.rest().is_empty() => (None, 0),
                    Scan::More(bytes) => (None, bytes),
                    Scan::Done(bytes) => (Some(State::Outside), bytes),
                    Scan::Broken(bytes) => (Some(State::Lost), bytes),
                };
                out.arguments(&input.take(bytes));
                next
            }
            State::Lost => {
                let found = input.until(&[CALLS]);
                out.arguments(&found.text);
                found.mark.map(|_| State::Opened(CALLS.to_owned()))
            }
        };
        let moved = next.is_some();
        self.state = next.unwrap_or(state);
        moved
    }

    fn finish(&mut self, out: &mut Emitter, _cut: bool) {
        match mem::take(&mut self.state) {
            State::Opened(before) => out.content(&before),
            State::Header(header) => out.content(&format!("{CALLS}{header}")),
            State::Object { before, call, .. } if !call.started() => {
                out.content(&(before + &call.into_raw()));
            }
            State::Arguments(scan) if scan.kind().is_none() => out.arguments("{}"),
            _ => {}
        }
    }
}

/// The name and the id of `NAME` or `NAME[CALL_ID]ID`.
fn named(header: &str) -> Option<(&str, Option<String>)> {
    let (name, id) = match header.split_once(ID) {
        Some((name, id)) => (name, Some(id.trim().to_owned())),
        None => (header, None),
    };
    let name = name.trim();
    let is_name = !name.is_empty() && !name.contains(is_blank);
    is_name.then_some((name, id.filter(|id| !id.is_empty())))
}
