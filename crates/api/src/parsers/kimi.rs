//! Parses Kimi K2's calls: special tokens around a section, around each call, and between its id and its arguments.

use super::Reader;
use super::emitter::Emitter;
use super::input::{Input, is_json_whitespace};
use std::mem;

pub(super) const SECTION: &str = "<|tool_calls_section_begin|>";
pub(super) const END_SECTION: &str = "<|tool_calls_section_end|>";
pub(super) const CALL: &str = "<|tool_call_begin|>";
pub(super) const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
pub(super) const END_CALL: &str = "<|tool_call_end|>";

/// Reads `<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>{..}<|tool_call_end|>`.
#[derive(Debug, Default)]
pub(super) struct Kimi {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    Id(String),
    /// The arguments. `blank` is white space that is emitted only if more text follows.
    Arguments {
        blank: String,
        started: bool,
    },
}

impl Reader for Kimi {
    fn step(&mut self, input: &mut Input, out: &mut Emitter) -> bool {
        let mut state = mem::take(&mut self.state);
        let next = match &mut state {
            State::Text => {
                let found = input.until(&[CALL, SECTION, END_SECTION]);
                out.content(&found.text);
                found
                    .marker
                    .map(|marker| if marker == 0 { State::Id(String::new()) } else { State::Text })
            }
            State::Id(id) => {
                let found = input.until(&[ARGUMENTS, END_CALL, CALL, END_SECTION]);
                id.push_str(&found.text);
                found.marker.map(|marker| match function_name(id) {
                    Some(name) if marker == 0 => {
                        out.start(Some(id.trim().to_owned()), name);
                        State::Arguments { blank: String::new(), started: false }
                    }
                    _ => {
                        out.content(&format!("{CALL}{id}"));
                        if marker == 2 { State::Id(String::new()) } else { State::Text }
                    }
                })
            }
            State::Arguments { blank, started } => {
                let found = input.until(&[END_CALL, CALL, END_SECTION]);
                blank.push_str(&found.text);
                if !*started {
                    blank.drain(..blank.len() - blank.trim_start_matches(is_json_whitespace).len());
                }
                let complete: String =
                    blank.drain(..blank.trim_end_matches(is_json_whitespace).len()).collect();
                *started |= !complete.is_empty();
                out.arguments(&complete);
                found.marker.map(|marker| {
                    if !*started {
                        out.arguments("{}");
                    }
                    if marker == 1 { State::Id(String::new()) } else { State::Text }
                })
            }
        };
        let moved = next.is_some();
        self.state = next.unwrap_or(state);
        moved
    }

    fn finish(&mut self, out: &mut Emitter, _cut: bool) {
        if let State::Id(id) = mem::take(&mut self.state) {
            out.content(&format!("{CALL}{id}"));
        }
    }
}

/// The function's name in `functions.NAME:NUMBER`.
fn function_name(id: &str) -> Option<&str> {
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    (!name.is_empty() && !name.contains(is_json_whitespace)).then_some(name)
}
