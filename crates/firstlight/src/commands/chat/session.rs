//! A conversation on one sequence of an engine.

use super::answer::{Answer, Ended};
use crate::cli::as_typed;
use crate::failure::Failure;
use crate::output::{self, Output};
use models::{
    ChatTemplate, Conversation, Event, LogitsOf, Message, Request, RequestId, Sampling, Scheduler,
    StopStrings, TextStream, Tokenizer,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// How answers are made.
pub(super) struct Settings {
    pub(super) sampling: Sampling,
    pub(super) stop_ids: Vec<u32>,
    /// Texts that end an answer.
    pub(super) stops: Vec<String>,
    /// Most tokens of an answer; none for what the context has left.
    pub(super) limit: Option<usize>,
    /// Tokens that the conversation may have.
    pub(super) context: usize,
}

/// The conversation so far, and what answers it.
pub(super) struct Session<'a, 'e> {
    scheduler: Scheduler<'e>,
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    settings: Settings,
    system: Option<String>,
    /// What was said, without the system message.
    messages: Vec<Message>,
    /// Messages that were answered, of this conversation and earlier ones: each is drawn by a seed of its own.
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

    /// Forgets what was said, but for the system message.
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

    /// Answers a message, and shows the answer as it comes, unless JSON is wanted. A message that cannot be answered is not part of
    /// the conversation.
    pub(super) fn answer(
        &mut self,
        text: &str,
        output: &Output,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Answer> {
        let asked = Message::new("user", text);
        let prompt = self.prompt(&asked)?;
        let (prompt_tokens, context) = (prompt.len(), self.settings.context);
        if prompt_tokens >= context {
            let what = format!(
                "the conversation has {prompt_tokens} tokens with this message, and the context holds {context}"
            );
            let option = as_typed("--max-model-len", &["--context", "--ctx-size", "-c"]);
            let hint = format!(
                "/reset begins anew; {option} TOKENS gives more room, up to the model's own limit"
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
            anew: false,
            logits: LogitsOf::None,
        };
        // One that came while nothing was answered meant nothing.
        interrupted.store(false, Ordering::Relaxed);
        let limit = request.limit;
        let id = self.scheduler.submit(request)?;
        let mut voice = Voice::new(self.tokenizer, &self.settings.stops, !output.json);
        let mut answer = Answer::new(prompt_tokens, context);
        let heard = self.hear(id, &mut voice, &mut answer, interrupted);
        if heard.is_err() {
            self.scheduler.cancel(id);
        }
        heard?;
        voice.finish()?;
        if answer.ended == Ended::Limit && limit == left {
            answer.ended = Ended::Context;
        }
        answer.text = voice.text;
        self.messages.extend([asked, Message::new("assistant", answer.text.clone())]);
        self.answered += 1;
        Ok(answer)
    }

    /// Token ids of the conversation with one more message, up to where its answer begins.
    fn prompt(&self, asked: &Message) -> anyhow::Result<Vec<u32>> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages = system.chain(self.messages.iter().cloned()).chain([asked.clone()]);
        let conversation = Conversation::to_answer(messages.collect());
        let rendered = self.template.render(&conversation).map_err(|error| {
            Failure::hinted(
                error.to_string(),
                "/reset begins anew; the template's words say what it wants",
            )
        });
        Ok(self.tokenizer.encode(&rendered?)?)
    }

    /// Takes an answer's tokens as they come.
    fn hear(
        &mut self,
        id: RequestId,
        voice: &mut Voice,
        answer: &mut Answer,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<()> {
        loop {
            let events = self.scheduler.step().inspect_err(|_| self.broken = true)?;
            answer.kept_tokens = self.scheduler.reused(id).unwrap_or(answer.kept_tokens);
            for event in events {
                match event {
                    Event::Token { token, .. } => {
                        answer.hear(token);
                        if voice.say(token)? {
                            answer.ended = Ended::StopString;
                            self.scheduler.cancel(id);
                            return Ok(());
                        }
                    }
                    Event::Finished { ended, .. } => {
                        answer.ended = ended.into();
                        return Ok(());
                    }
                    Event::Begun { .. }
                    | Event::Scored { .. }
                    | Event::Embedded { .. }
                    | Event::Preempted { .. } => {}
                }
            }
            if interrupted.swap(false, Ordering::Relaxed) {
                answer.ended = Ended::Interrupted;
                self.scheduler.cancel(id);
                return Ok(());
            }
        }
    }
}

/// An answer as text.
struct Voice {
    stream: Option<TextStream>,
    stops: StopStrings,
    text: String,
    live: bool,
}

impl Voice {
    fn new(tokenizer: &Tokenizer, stops: &[String], live: bool) -> Self {
        let stops = StopStrings::new(stops.iter().cloned());
        Self { stream: Some(tokenizer.stream()), stops, text: String::new(), live }
    }

    /// Says a token; whether a stop string came.
    fn say(&mut self, token: u32) -> anyhow::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let (text, stopped) = self.stops.push(&stream.push(token)?);
        self.show(&text)?;
        if stopped {
            // What is held back stands behind it.
            self.stream = None;
        }
        Ok(stopped)
    }

    /// Says what was held back.
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
