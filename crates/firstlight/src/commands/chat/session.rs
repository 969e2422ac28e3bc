//! A conversation on one sequence of an engine.

use super::answer::{Answer, FinishReason};
use crate::cli::as_typed;
use crate::failure::Failure;
use crate::output::{self, Output};
use models::{
    ChatMessage, ChatTemplate, Conversation, LogitsOf, Request, RequestId, Sampling, Scheduler,
    SchedulerEvent, StopStrings, TextStream, Tokenizer,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Settings of answers.
pub(super) struct Settings {
    pub(super) sampling: Sampling,
    pub(super) stop_ids: Vec<u32>,
    /// Stop strings.
    pub(super) stops: Vec<String>,
    /// Maximum number of tokens of an answer; none for the rest of the context.
    pub(super) limit: Option<usize>,
    /// Context length of the conversation.
    pub(super) context: usize,
}

/// The conversation so far, and its engine.
pub(super) struct Session<'a, 'e> {
    scheduler: Scheduler<'e>,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    settings: Settings,
    system: Option<String>,
    /// The messages without the system message.
    messages: Vec<ChatMessage>,
    /// Number of answered messages, in this conversation and earlier ones: each answer has a separate seed.
    answered: u64,
    broken: bool,
}

impl<'a, 'e> Session<'a, 'e> {
    pub(super) fn new(
        scheduler: Scheduler<'e>,
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        settings: Settings,
    ) -> Self {
        let (system, messages) = (None, Vec::new());
        Self {
            scheduler,
            tokenizer,
            template,
            settings,
            system,
            messages,
            answered: 0,
            broken: false,
        }
    }

    /// Clears the conversation except for the system message.
    pub(super) fn reset(&mut self) {
        self.messages.clear();
    }

    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.system = text;
    }

    pub(super) fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Whether the engine failed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Answers a message, and streams the answer unless JSON is requested. A message that cannot be answered is not
    /// added to the conversation.
    pub(super) fn answer(
        &mut self,
        text: &str,
        output: &Output,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Answer> {
        let asked = ChatMessage::new("user", text);
        let prompt = self.prompt(&asked)?;
        let (prompt_tokens, context) = (prompt.len(), self.settings.context);
        if prompt_tokens >= context {
            let what = format!(
                "the conversation has {prompt_tokens} tokens with this message, the context has {context}"
            );
            let option = as_typed("--max-model-len", &["--context", "--ctx-size", "-c"]);
            let hint = format!(
                "/reset starts a new conversation; {option} TOKENS extends the context, up to the model's limit"
            );
            return Err(Failure::hinted(what, hint));
        }
        let left = context - prompt_tokens;
        let seed = self.settings.sampling.seed.wrapping_add(self.answered);
        let request = Request {
            prompt,
            limit: self.settings.limit.map_or(left, |limit| limit.min(left)),
            sampling: Sampling { seed, ..self.settings.sampling.clone() },
            stop_ids: self.settings.stop_ids.clone(),
            keep: true,
            shared: 0,
            turn: false,
            bypass_cache: false,
            logits: LogitsOf::None,
        };
        // An interrupt between answers has no effect.
        interrupted.store(false, Ordering::Relaxed);
        let limit = request.limit;
        let id = self.scheduler.submit(request)?;
        let mut voice = AnswerPrinter::new(self.tokenizer, &self.settings.stops, !output.json);
        let mut answer = Answer::new(prompt_tokens, context);
        let heard = self.receive(id, &mut voice, &mut answer, interrupted);
        if heard.is_err() {
            self.scheduler.cancel(id);
        }
        heard?;
        voice.finish()?;
        if answer.ended == FinishReason::Limit && limit == left {
            answer.ended = FinishReason::Context;
        }
        answer.text = voice.text;
        self.messages.extend([asked, ChatMessage::new("assistant", answer.text.clone())]);
        self.answered += 1;
        Ok(answer)
    }

    /// Token ids of the conversation with one more message, up to the start of its answer.
    fn prompt(&self, asked: &ChatMessage) -> anyhow::Result<Vec<u32>> {
        let system = self.system.iter().map(|text| ChatMessage::new("system", text));
        let messages = system.chain(self.messages.iter().cloned()).chain([asked.clone()]);
        let conversation = Conversation::to_answer(messages.collect());
        let rendered = self.template.render(&conversation).map_err(|error| {
            Failure::hinted(
                error.to_string(),
                "/reset starts a new conversation; the template's message names its requirement",
            )
        });
        Ok(self.tokenizer.encode(&rendered?)?)
    }

    /// Receives an answer's tokens.
    fn receive(
        &mut self,
        id: RequestId,
        voice: &mut AnswerPrinter,
        answer: &mut Answer,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<()> {
        loop {
            let events = self.scheduler.step().inspect_err(|_| self.broken = true)?;
            answer.kept_tokens = self.scheduler.reused(id).unwrap_or(answer.kept_tokens);
            for event in events {
                match event {
                    SchedulerEvent::Token { token, .. } => {
                        answer.count_token(token);
                        if voice.print_token(token)? {
                            answer.ended = FinishReason::StopString;
                            self.scheduler.cancel(id);
                            return Ok(());
                        }
                    }
                    SchedulerEvent::Finished { ended, .. } => {
                        answer.ended = ended.into();
                        return Ok(());
                    }
                    SchedulerEvent::Begun { .. }
                    | SchedulerEvent::Scored { .. }
                    | SchedulerEvent::Embedded { .. }
                    | SchedulerEvent::Preempted { .. } => {}
                }
            }
            if interrupted.swap(false, Ordering::Relaxed) {
                answer.ended = FinishReason::Interrupted;
                self.scheduler.cancel(id);
                return Ok(());
            }
        }
    }
}

/// Prints an answer's text.
struct AnswerPrinter {
    stream: Option<TextStream>,
    stops: StopStrings,
    text: String,
    live: bool,
}

impl AnswerPrinter {
    fn new(tokenizer: &Tokenizer, stops: &[String], live: bool) -> Self {
        let stops = StopStrings::new(stops.iter().cloned());
        Self { stream: Some(tokenizer.stream()), stops, text: String::new(), live }
    }

    /// Prints a token; returns whether a stop string was found.
    fn print_token(&mut self, token: u32) -> anyhow::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let (text, stopped) = self.stops.push(&stream.push(token)?);
        self.show(&text)?;
        if stopped {
            // The buffered text belongs to the stop string.
            self.stream = None;
        }
        Ok(stopped)
    }

    /// Prints the buffered text.
    fn finish(&mut self) -> anyhow::Result<()> {
        if let Some(mut stream) = self.stream.take() {
            let (mut text, stopped) = self.stops.push(&stream.finish()?);
            if !stopped {
                text += &std::mem::take(&mut self.stops).finish();
            }
            self.show(&text)?;
        }
        if self.live { output::write("\n") } else { Ok(()) }
    }

    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        self.text.push_str(text);
        if self.live && !text.is_empty() { output::write(text) } else { Ok(()) }
    }
}
