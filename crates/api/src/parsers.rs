//! An answer's text as events.

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(dead_code)]
pub(crate) enum Event {
    Content(String),
    Reasoning(String),
    CallStart { index: usize, id: String, name: String },
    CallArguments { index: usize, text: String },
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// A whole answer.
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
            Event::CallArguments { index, text } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments += &text;
                }
            }
        }
    }
}
