//! OpenAI's text completions.

use super::{CompleteAnswer, DONE, Renderer, Usage, push_event};
use crate::answers::Delta;
use crate::app::{App, now};
use crate::error::{ApiError, ErrorShape};
use crate::probabilities::{self, ScoredToken};
use crate::sampling::{AnswerSettings, StreamUsage};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) struct CompletionRenderer {
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: bool,
    usage: StreamUsage,
    /// Text before the first delta of each answer.
    before: Vec<String>,
}

impl CompletionRenderer {
    /// `echoed` is the text of each prompt, or empty.
    pub(crate) fn new(
        app: &Arc<App>,
        logprobs: bool,
        asked: &AnswerSettings,
        echoed: Vec<String>,
    ) -> Self {
        let (app, id) = (Arc::clone(app), app.id("cmpl-"));
        let before = echoed.into_iter().flat_map(|text| std::iter::repeat_n(text, asked.choices));
        let before = before.collect();
        Self { app, id, created: now(), logprobs, usage: asked.usage, before }
    }

    /// Prepends the text before an answer to its first delta.
    fn with_prompt(&mut self, index: usize, text: String) -> String {
        match self.before.get_mut(index) {
            Some(before) => std::mem::take(before) + &text,
            None => text,
        }
    }

    fn head(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.app.name(), "choices": choices,
        })
    }

    fn chunk(&self, choices: Vec<Value>, usage: Option<Usage>) -> Value {
        let mut chunk = self.head(choices);
        if self.usage != StreamUsage::Never {
            chunk["usage"] = usage.map_or(Value::Null, |usage| usage.of_completion());
        }
        chunk
    }

    fn choice(
        &self,
        index: usize,
        text: &str,
        chances: &[ScoredToken],
        finish: Option<&'static str>,
    ) -> Value {
        let logprobs = match self.logprobs {
            true => probabilities::of_completion(chances, &self.app.texts.tokenizer),
            false => Value::Null,
        };
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
    }
}

impl Renderer for CompletionRenderer {
    fn id(&self) -> &str {
        &self.id
    }

    fn delta(&mut self, delta: &Delta, usage: Usage, events: &mut String) {
        let text = self.with_prompt(delta.index, delta.text());
        let choice = self.choice(delta.index, &text, &delta.chances, delta.finish);
        let usage = (self.usage == StreamUsage::Every).then_some(usage);
        push_event(events, &self.chunk(vec![choice], usage));
    }

    fn end(&mut self, usage: Usage, events: &mut String) {
        if self.usage != StreamUsage::Never {
            push_event(events, &self.chunk(Vec::new(), Some(usage)));
        }
        *events += DONE;
    }

    fn fail(&mut self, error: &ApiError, _: Usage, events: &mut String) {
        push_event(events, &error.json(ErrorShape::OpenAi));
        *events += DONE;
    }

    fn document(&mut self, answers: Vec<CompleteAnswer>, usage: Usage) -> String {
        let choice = |(index, whole): (usize, CompleteAnswer)| {
            let text = self.with_prompt(index, whole.message().content);
            self.choice(index, &text, &whole.chances, whole.finish)
        };
        let choices = answers.into_iter().enumerate().map(choice).collect();
        let mut document = self.head(choices);
        document["usage"] = usage.of_completion();
        document.to_string()
    }
}
