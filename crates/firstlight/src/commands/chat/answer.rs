//! The line of statistics after an answer.

use crate::output::Output;
use serde_json::json;
use std::time::Instant;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinishReason {
    StopId,
    StopString,
    Limit,
    Context,
    Interrupted,
    NoToken,
}

impl FinishReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::StopId => "stop id",
            Self::StopString => "stop string",
            Self::Limit => "limit",
            Self::Context => "context",
            Self::Interrupted => "interrupted",
            Self::NoToken => "no token could be sampled",
        }
    }
}

impl From<models::FinishReason> for FinishReason {
    fn from(ended: models::FinishReason) -> Self {
        match ended {
            models::FinishReason::StopId => Self::StopId,
            models::FinishReason::Limit => Self::Limit,
            models::FinishReason::Caller => Self::StopString,
            models::FinishReason::NoToken => Self::NoToken,
        }
    }
}

/// An answer and its statistics.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) ended: FinishReason,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Prompt tokens that were already computed for earlier answers.
    pub(super) kept_tokens: usize,
    context: usize,
    begin: Instant,
    first_seconds: f64,
    last_seconds: f64,
}

impl Answer {
    /// A new answer.
    pub(super) fn new(prompt_tokens: usize, context: usize) -> Self {
        Self {
            text: String::new(),
            ended: FinishReason::Limit,
            tokens: Vec::new(),
            prompt_tokens,
            kept_tokens: 0,
            context,
            begin: Instant::now(),
            first_seconds: 0.0,
            last_seconds: 0.0,
        }
    }

    /// Counts a generated token.
    pub(super) fn count_token(&mut self, token: u32) {
        self.last_seconds = self.begin.elapsed().as_secs_f64();
        if self.tokens.is_empty() {
            self.first_seconds = self.last_seconds;
        }
        self.tokens.push(token);
    }

    /// Tokens per second after the first token.
    fn tokens_per_second(&self) -> Option<f64> {
        let (after, seconds) =
            (self.tokens.len().saturating_sub(1), self.last_seconds - self.first_seconds);
        (after > 0 && seconds > 0.0).then(|| after as f64 / seconds)
    }

    pub(super) fn print(&self, output: &Output) -> anyhow::Result<()> {
        if !output.json {
            output.notice(|_| self.line());
            return Ok(());
        }
        let document = json!({
            "text": self.text, "tokens": self.tokens, "ended": self.ended.as_str(),
            "prompt_tokens": self.prompt_tokens, "kept_tokens": self.kept_tokens, "context_tokens": self.context,
            "first_token_seconds": (!self.tokens.is_empty()).then_some(self.first_seconds),
            "tokens_per_second": self.tokens_per_second(),
        });
        output.text(&document.to_string())
    }

    /// The line of statistics.
    fn line(&self) -> String {
        let count = self.tokens.len();
        let mut line = match self.tokens_per_second() {
            Some(rate) => format!("[{rate:.1} tokens/s"),
            None if count == 1 => "[1 token".to_owned(),
            None => format!("[{count} tokens"),
        };
        let used = self.prompt_tokens + count;
        line += &format!("; context {used} of {}", self.context);
        if self.kept_tokens > 0 {
            line += &format!(", {} cached", self.kept_tokens);
        }
        match self.ended {
            FinishReason::StopId | FinishReason::StopString => {}
            FinishReason::Limit => line += "; ended by -n",
            FinishReason::Interrupted => line += "; stopped",
            FinishReason::NoToken => line += "; the model's logits are NaN",
            FinishReason::Context => {
                line +=
                    "]\n[the context is full: /reset starts a new one, --max-model-len extends it"
            }
        }
        line + "]"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_line_fits_a_terminal() {
        let mut answer = Answer::new(130_000, 131_072);
        (0..1072).for_each(|token| answer.count_token(token));
        (answer.kept_tokens, answer.first_seconds, answer.last_seconds) = (129_000, 0.5, 2.5);
        let line = |ended: FinishReason, answer: &mut Answer| {
            answer.ended = ended;
            answer.line()
        };
        let plain = "[535.5 tokens/s; context 131072 of 131072, 129000 cached";
        assert_eq!(line(FinishReason::StopId, &mut answer), format!("{plain}]"));
        assert_eq!(line(FinishReason::Limit, &mut answer), format!("{plain}; ended by -n]"));
        assert_eq!(line(FinishReason::Interrupted, &mut answer), format!("{plain}; stopped]"));
        let full = line(FinishReason::Context, &mut answer);
        assert!(full.lines().all(|line| line.len() <= 80), "{full}");
        let mut one = Answer::new(5, 100);
        one.count_token(1);
        assert_eq!(line(FinishReason::StopId, &mut one), "[1 token; context 6 of 100]");
    }
}
