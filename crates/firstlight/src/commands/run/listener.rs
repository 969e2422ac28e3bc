//! Streams generated tokens to the user.

use crate::output::Output;
use models::{
    GeneratedToken, GenerationControl, ModelError, Request, StopStrings, TextStream, Tokenizer,
};
use std::time::Instant;

/// The record of a generation.
pub(super) struct GenerationRecord {
    /// Tokens of each request.
    pub(super) tokens: Vec<Vec<u32>>,
    /// Text of each request, with a tokenizer.
    pub(super) texts: Vec<String>,
    /// Tokens of the first request up to the last one that had logits.
    pub(super) with_logits: usize,
    /// The logits from which that token was sampled.
    pub(super) last_logits: Vec<f32>,
    /// Seconds to the first request's first token.
    pub(super) first_seconds: f64,
    /// Seconds to the last token.
    pub(super) last_seconds: f64,
}

/// Streams the text of a single prompt, and records everything.
pub(super) struct Listener {
    start: Instant,
    heard: GenerationRecord,
    streams: Vec<(Option<TextStream>, StopStrings)>,
    /// Whether text is streamed: with several prompts it would be mixed, and JSON is printed at the end.
    live: bool,
    failed: Option<anyhow::Error>,
}

impl Listener {
    pub(super) fn new(
        tokenizer: Option<&Tokenizer>,
        requests: &[Request],
        stops: &[String],
        output: &Output,
        start: Instant,
    ) -> Self {
        let count = requests.len();
        let stream = || (tokenizer.map(Tokenizer::stream), StopStrings::new(stops.iter().cloned()));
        Self {
            start,
            heard: GenerationRecord {
                tokens: vec![Vec::new(); count],
                texts: vec![String::new(); count],
                with_logits: 0,
                last_logits: Vec::new(),
                first_seconds: 0.0,
                last_seconds: 0.0,
            },
            streams: (0..count).map(|_| stream()).collect(),
            live: count == 1 && !output.json,
            failed: None,
        }
    }

    /// Receives a token.
    pub(super) fn receive(&mut self, chosen: GeneratedToken<'_>) -> GenerationControl {
        let index = chosen.request;
        self.heard.last_seconds = self.start.elapsed().as_secs_f64();
        if index == 0 {
            if self.heard.tokens[0].is_empty() {
                self.heard.first_seconds = self.heard.last_seconds;
            }
            if let Some(logits) = chosen.logits {
                self.heard.with_logits = self.heard.tokens[0].len() + 1;
                self.heard.last_logits = logits.to_vec();
            }
        }
        self.heard.tokens[index].push(chosen.token);
        let shown = self.text(index, chosen.token).and_then(|(text, stopped)| {
            self.show(index, &text)?;
            Ok(stopped)
        });
        match shown {
            Ok(false) => GenerationControl::More,
            Ok(true) => GenerationControl::End,
            // The output is closed, or the tokenizer failed.
            Err(error) => {
                self.failed = Some(error);
                GenerationControl::End
            }
        }
    }

    fn text(&mut self, index: usize, token: u32) -> anyhow::Result<(String, bool)> {
        let (stream, stops) = &mut self.streams[index];
        Ok(match stream {
            Some(text) => {
                let (shown, stopped) = stops.push(&text.push(token)?);
                if stopped {
                    // The buffered text follows the stop string.
                    let _ = text.finish()?;
                }
                (shown, stopped)
            }
            None => (format!("{token} "), false),
        })
    }

    fn show(&mut self, index: usize, text: &str) -> anyhow::Result<()> {
        self.heard.texts[index].push_str(text);
        if self.live && !text.is_empty() {
            crate::output::write(text)?;
        }
        Ok(())
    }

    /// Prints the buffered text, and returns the record.
    pub(super) fn finish(mut self) -> anyhow::Result<GenerationRecord> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        for index in 0..self.streams.len() {
            let (stream, mut stops) = std::mem::take(&mut self.streams[index]);
            let finish = |mut stream: TextStream| stream.finish();
            let last = stream.map_or(Ok::<_, ModelError>(String::new()), finish)?;
            let (mut text, stopped) = stops.push(&last);
            if !stopped {
                text += &stops.finish();
            }
            self.show(index, &text)?;
        }
        if self.live {
            self.show(0, "\n")?;
            self.heard.texts[0].pop();
        }
        Ok(self.heard)
    }
}
