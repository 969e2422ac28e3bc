//! Emits the events of an answer, and handles white space between its parts.

use super::input::is_json_whitespace;
use super::reasoning::Trim;
use super::{Event, Ids};

/// Collects events. White space next to calls is a separator and is omitted from the text.
#[derive(Debug)]
pub(super) struct Emitter {
    events: Vec<Event>,
    /// Number of calls.
    count: usize,
    /// White space that is content only if more content follows.
    blank: String,
    /// White space that is reasoning only if more reasoning follows.
    reasoning_blank: String,
    trim: Trim,
    last: LastItem,
    content_begun: bool,
    reasoning_begun: bool,
    /// Whether an answer may have several calls.
    parallel: bool,
    /// Whether the current call is omitted.
    muted: bool,
    ids: Ids,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastItem {
    Nothing,
    Content,
    Reasoning,
    Call,
}

impl Emitter {
    pub(super) fn new(ids: Ids, seed: u64, parallel: bool, trim: Trim) -> Self {
        Self {
            events: Vec::new(),
            count: 0,
            blank: String::new(),
            reasoning_blank: String::new(),
            trim,
            last: LastItem::Nothing,
            content_begun: false,
            reasoning_begun: false,
            parallel,
            muted: false,
            ids,
            seed,
        }
    }

    /// The events since the previous call of this method.
    pub(super) fn drain(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn called(&self) -> bool {
        self.count > 0
    }

    pub(super) fn content(&mut self, text: &str) {
        self.blank.push_str(text);
        let solid = self.blank.trim_end_matches(is_json_whitespace).len();
        if solid == 0 {
            return;
        }
        let mut text: String = self.blank.drain(..solid).collect();
        if !self.content_begun && self.last == LastItem::Call {
            text.drain(..text.len() - text.trim_start_matches(is_json_whitespace).len());
        }
        self.content_begun = true;
        self.last = LastItem::Content;
        match self.events.last_mut() {
            Some(Event::Content(last)) => last.push_str(&text),
            _ => self.events.push(Event::Content(text)),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        let text = match self.reasoning_begun || self.trim != Trim::Both {
            true => text,
            false => text.trim_start_matches(is_json_whitespace),
        };
        self.reasoning_blank.push_str(text);
        let solid = match self.trim {
            Trim::Neither => self.reasoning_blank.len(),
            Trim::End | Trim::Both => {
                self.reasoning_blank.trim_end_matches(is_json_whitespace).len()
            }
        };
        if solid == 0 {
            return;
        }
        let text: String = self.reasoning_blank.drain(..solid).collect();
        self.reasoning_begun = true;
        self.last = LastItem::Reasoning;
        match self.events.last_mut() {
            Some(Event::Reasoning(last)) => last.push_str(&text),
            _ => self.events.push(Event::Reasoning(text)),
        }
    }

    /// Ends the reasoning; further reasoning is a new paragraph.
    pub(super) fn end_reasoning(&mut self) {
        self.reasoning_blank.clear();
        if self.reasoning_begun {
            self.reasoning_blank.push('\n');
        }
        if self.last == LastItem::Nothing {
            self.last = LastItem::Reasoning;
        }
    }

    /// Starts a call.
    pub(super) fn start(&mut self, id: Option<String>, name: &str) {
        self.blank.clear();
        self.last = LastItem::Call;
        self.muted = !self.parallel && self.called();
        if self.muted {
            return;
        }
        let index = self.count;
        self.count += 1;
        let id = id.unwrap_or_else(|| self.ids.make(self.seed, index, name));
        self.events.push(Event::CallStart { index, id, name: name.to_owned() });
    }

    /// Adds text to the arguments of the current call.
    pub(super) fn arguments(&mut self, more: &str) {
        if self.muted || more.is_empty() {
            return;
        }
        let index = self.count - 1;
        match self.events.last_mut() {
            Some(Event::CallArguments { text, .. }) => text.push_str(more),
            _ => self.events.push(Event::CallArguments { index, text: more.to_owned() }),
        }
    }

    /// Ends the answer.
    pub(super) fn finish(&mut self) {
        let blank = std::mem::take(&mut self.blank);
        if blank.is_empty() || self.last == LastItem::Call {
            return;
        }
        match self.events.last_mut() {
            Some(Event::Content(last)) => last.push_str(&blank),
            _ => self.events.push(Event::Content(blank)),
        }
    }
}
