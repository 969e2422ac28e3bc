//! Turns tokens into the text of answers, for both streamed and complete answers.

use crate::app::{App, Line, RejectedRequest};
use crate::error::ApiError;
use crate::parsers::{Event, Parser, Plan};
use crate::probabilities::{Offsets, ScoredToken};
use crate::sampling::AnswerSettings;
use models::{FinishReason, LogitsOf, Request, StopStrings, TextStream, Tokenizer};
use serving::{GrammarGuide, Sequence, SubmitError, Ticket, Update};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A part of an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delta {
    /// The index of the answer.
    pub(crate) index: usize,
    /// Text, reasoning and calls, in the order of the model's output.
    pub(crate) events: Vec<Event>,
    /// Log-probabilities of the tokens since the last delta, if requested.
    pub(crate) chances: Vec<ScoredToken>,
    /// The finish reason, in the last delta of an answer.
    pub(crate) finish: Option<&'static str>,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

impl Delta {
    /// The text for the user.
    pub(crate) fn text(&self) -> String {
        let text = |event: &Event| match event {
            Event::Content(text) => Some(text.clone()),
            _ => None,
        };
        self.events.iter().filter_map(text).collect()
    }
}

/// The answers to a request in progress.
pub(crate) struct Answers {
    app: Arc<App>,
    ticket: Ticket,
    open: Vec<Answer>,
    left: usize,
    /// Number of answers per prompt.
    choices: usize,
    /// Prompts whose tokens have log-probabilities.
    scored: Option<PromptScores>,
    pub(crate) line: Line,
}

/// Prompts whose tokens have log-probabilities, as part of the answers.
struct PromptScores {
    prompts: Vec<Vec<u32>>,
    /// Whether special tokens are omitted from their text.
    hides_special: bool,
}

/// One answer.
struct Answer {
    stream: TextStream,
    stops: StopStrings,
    /// Set if the text may have reasoning or calls.
    parser: Option<Parser>,
    chances: Vec<ScoredToken>,
    offsets: Offsets,
    ended: bool,
}

/// A generation to submit.
pub(crate) struct Work {
    /// The request field with the prompts, for messages.
    pub(crate) field: &'static str,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) asked: AnswerSettings,
    /// Maximum number of generated tokens for each prompt.
    pub(crate) limits: Vec<usize>,
    /// Number of top log-probabilities per token; none without log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Whether prompt tokens have them too.
    pub(crate) score: Option<ScorePrompts>,
    /// Length of the prefix that other prompts share, as far as known: the system message and the tools.
    pub(crate) shared: usize,
    /// Whether the conversation's next message is likely to follow.
    pub(crate) turn: bool,
    /// Parser plan for reasoning and calls, if there may be some.
    pub(crate) parser: Option<Plan>,
    /// The grammar of each answer.
    pub(crate) guide: Option<GrammarGuide>,
}

/// Settings for scoring prompt tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScorePrompts {
    /// Whether special tokens are omitted from their text.
    pub(crate) hides_special: bool,
}

impl Answers {
    /// Submits the work; the answers to one prompt are adjacent.
    pub(crate) fn new(
        app: &Arc<App>,
        work: Work,
        id: &str,
        mut line: Line,
    ) -> Result<Self, Box<RejectedRequest>> {
        let Work { field, prompts, asked, limits, logprobs, score, shared, turn, parser, guide } =
            work;
        line.begin(id, prompts.iter().map(Vec::len).sum());
        let count = prompts.len().saturating_mul(asked.choices);
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        if let Err(refusal) = app.service.limits().check_size(count, longest) {
            return Err(RejectedRequest::new(refused(refusal, field), line));
        }
        let mut sequences = Vec::with_capacity(count);
        for (prompt, limit) in prompts.iter().zip(&limits) {
            for choice in 0..asked.choices {
                let request = Request {
                    prompt: prompt.clone(),
                    limit: *limit,
                    sampling: asked.sampling_of(choice),
                    stop_ids: asked.stop_ids.clone(),
                    keep: false,
                    shared,
                    turn,
                    bypass_cache: false,
                    logits: LogitsOf::None,
                };
                let (guide, rules) = (guide.clone(), asked.rules.clone());
                let score_prompt = score.is_some();
                sequences.push(Sequence { request, logprobs, score_prompt, guide, rules });
            }
        }
        let left = sequences.len();
        let ticket = match app.service.submit(sequences) {
            Ok(ticket) => ticket,
            Err(refusal) => return Err(RejectedRequest::new(refused(refusal, field), line)),
        };
        app.service.count_settings(asked.choices, limits.into_iter().max().unwrap_or(0));
        let answer = || Answer {
            stream: app.texts.tokenizer.stream(),
            stops: StopStrings::new(asked.stops.iter().cloned()),
            parser: parser.as_ref().map(|plan| Parser::new(plan, app.random())),
            chances: Vec::new(),
            offsets: Offsets::default(),
            ended: false,
        };
        let open = (0..left).map(|_| answer()).collect();
        let choices = asked.choices.max(1);
        let scored =
            score.map(|ScorePrompts { hides_special }| PromptScores { prompts, hides_special });
        Ok(Self { app: Arc::clone(app), ticket, open, left, choices, scored, line })
    }

    /// The next delta of any answer; none when all have ended.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Delta, ApiError>>> {
        while self.left > 0 {
            let taken = match ready!(self.ticket.poll_next(context)) {
                Some(update) => self.take(update),
                None => Err(ApiError::server("the engine's thread has ended")),
            };
            match taken {
                Ok(None) => {}
                Ok(Some(delta)) => {
                    self.left -= usize::from(delta.finish.is_some());
                    return Poll::Ready(Some(Ok(delta)));
                }
                Err(error) => {
                    self.left = 0;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        Poll::Ready(None)
    }

    /// As [`Self::poll_next`], asynchronously.
    pub(crate) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn take(&mut self, update: Update) -> Result<Option<Delta>, ApiError> {
        let tokenizer = &self.app.texts.tokenizer;
        let broken = |error: models::ModelError| ApiError::server(error.to_string());
        match update {
            Update::Started { index, cached } => {
                // Answers to one prompt are adjacent: the prompt is counted once.
                if index.is_multiple_of(self.choices) {
                    self.line.cached(cached);
                }
                Ok(None)
            }
            Update::Prompt { index, logprobs } => {
                let Some(PromptScores { prompts, hides_special }) = &self.scored else {
                    return Ok(None);
                };
                let answer = &mut self.open[index];
                let logprobs = std::iter::once(None).chain(logprobs.into_iter().map(Some));
                for (token, logprobs) in prompts[index / self.choices].iter().zip(logprobs) {
                    let shown = !(*hides_special && tokenizer.is_special(*token));
                    let chance = answer.offsets.push(tokenizer, *token, logprobs, shown);
                    answer.chances.push(chance);
                }
                Ok(None)
            }
            Update::Token { index, token, logprobs } => {
                let answer = &mut self.open[index];
                // After a stop string the engine may have run one more step.
                if answer.ended {
                    return Ok(None);
                }
                self.line.token();
                let shown = answer.shows(tokenizer, token);
                let more = match shown {
                    true => answer.stream.push_special(token),
                    false => answer.stream.push(token),
                };
                let more = more.map_err(broken)?;
                let chance = logprobs
                    .map(|logprobs| answer.offsets.push(tokenizer, token, Some(logprobs), shown));
                answer.chances.extend(chance);
                let (text, stopped) = answer.stops.push(&more);
                if stopped {
                    self.ticket.stop(index);
                }
                Ok(answer.delta(index, text, stopped.then_some("stop")))
            }
            Update::Finished { index, ended } => {
                let answer = &mut self.open[index];
                if answer.ended {
                    return Ok(None);
                }
                let rest = answer.stream.finish().map_err(broken)?;
                let (mut text, stopped) = answer.stops.push(&rest);
                if !stopped {
                    text += &std::mem::take(&mut answer.stops).finish();
                }
                let finish = match ended {
                    FinishReason::Limit if !stopped => "length",
                    _ => "stop",
                };
                Ok(answer.delta(index, text, Some(finish)))
            }
            Update::Embedded { .. } => Ok(None),
            Update::Failed { index, .. } if self.open[index].ended => Ok(None),
            Update::Failed { why, .. } => Err(why.into()),
        }
    }
}

/// The error of a rejected submission; it refers to a prompt unless it names another field.
fn refused(refusal: SubmitError, field: &str) -> ApiError {
    match refusal {
        SubmitError::Invalid { .. } | SubmitError::TooLong { .. } => {
            ApiError::from(refusal).with_param(field)
        }
        refusal => refusal.into(),
    }
}

impl Answer {
    /// The delta for more text; none while all of it is buffered.
    fn delta(
        &mut self,
        index: usize,
        text: String,
        mut finish: Option<&'static str>,
    ) -> Option<Delta> {
        self.ended = finish.is_some();
        let mut events = match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Event::Content(text)],
        };
        if let Some(parser) = self.parser.as_mut().filter(|_| finish.is_some()) {
            events.extend(parser.finish(finish == Some("length")));
            if finish == Some("stop") && parser.called() {
                finish = Some("tool_calls");
            }
        }
        if events.is_empty() && finish.is_none() {
            return None;
        }
        let chances = std::mem::take(&mut self.chances);
        let stop = self.stops.matched().map(str::to_owned);
        Some(Delta { index, events, chances, finish, stop })
    }

    /// Whether a token is part of the text. Special tokens are not, except for markers of reasoning and calls.
    fn shows(&self, tokenizer: &Tokenizer, token: u32) -> bool {
        if !tokenizer.is_special(token) {
            return true;
        }
        let name = |token| tokenizer.bytes(token).and_then(|name| String::from_utf8(name).ok());
        let parser = self.parser.as_ref();
        parser.is_some_and(|parser| name(token).is_some_and(|name| parser.has_marker(&name)))
    }
}
