//! Embeddings: texts whose hidden states are pooled into one vector each, next to requests that generate.
//!
//! They are prefilled in separate passes, one after each step, because such a pass returns the hidden states of every
//! token instead of logits. A text has a slot while it is prefilled and is not cached.

use super::{RequestId, Scheduler, SchedulerEvent};
use crate::engine::LogitsSelection;
use crate::{Batch, ModelError, Pages, PoolingMode};
use std::collections::{BTreeMap, VecDeque};

/// A text to embed.
#[derive(Debug)]
struct Text {
    id: RequestId,
    tokens: Vec<u32>,
    pooling: PoolingMode,
    /// Tokens prefilled so far.
    read: usize,
    /// The pooled vector so far; for mean pooling the sum.
    pooled: Vec<f64>,
    slot: Option<usize>,
    /// Whether it is processed alone because a pass with several texts failed.
    alone: bool,
}

impl Text {
    /// Adds the hidden states `[tokens, hidden]` of the next tokens.
    fn take(&mut self, states: &[f32], tokens: usize) {
        let hidden = states.len() / tokens.max(1);
        let mut rows = states.chunks_exact(hidden.max(1));
        let wide = |row: &[f32]| row.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        match self.pooling {
            PoolingMode::Mean => {
                self.pooled.resize(hidden, 0.0);
                for row in rows {
                    self.pooled.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            PoolingMode::Last => self.pooled = rows.next_back().map(wide).unwrap_or_default(),
            PoolingMode::First if self.read == 0 => {
                self.pooled = rows.next().map(wide).unwrap_or_default();
            }
            PoolingMode::First => {}
        }
        self.read += tokens;
    }

    /// The vector, once all tokens are prefilled.
    fn vector(&self) -> Vec<f32> {
        let count = match self.pooling {
            PoolingMode::Mean => self.tokens.len() as f64,
            PoolingMode::Last | PoolingMode::First => 1.0,
        };
        self.pooled.iter().map(|value| (value / count) as f32).collect()
    }

    fn restart(&mut self) -> Option<usize> {
        self.read = 0;
        self.pooled.clear();
        self.slot.take()
    }
}

/// Texts that wait or are prefilled, and results that were not fetched.
#[derive(Debug, Default)]
pub(super) struct Embeddings {
    texts: VecDeque<Text>,
    done: BTreeMap<RequestId, Result<Vec<f32>, String>>,
}

impl Embeddings {
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

impl Scheduler<'_> {
    /// Adds a text; an [`SchedulerEvent::Embedded`] reports its result.
    ///
    /// # Errors
    /// [`ModelError::Call`] when it has no tokens, one is out of range, or it is longer than the context or than all
    /// blocks.
    pub fn submit_embedding(
        &mut self,
        tokens: Vec<u32>,
        pooling: PoolingMode,
    ) -> Result<RequestId, ModelError> {
        if tokens.is_empty() {
            return Err(ModelError::call("the text has no tokens", "give some text"));
        }
        self.check_tokens(&tokens, 0)?;
        let id = RequestId(self.submitted);
        self.submitted += 1;
        let (read, pooled) = (0, Vec::new());
        let text = Text { id, tokens, pooling, read, pooled, slot: None, alone: false };
        self.embeddings.texts.push_back(text);
        Ok(id)
    }

    /// The result of a text that an event reported.
    pub fn take_embedding(&mut self, id: RequestId) -> Option<Result<Vec<f32>, String>> {
        self.embeddings.done.remove(&id)
    }

    /// Drops a text; returns whether it was active.
    pub(super) fn cancel_embedding(&mut self, id: RequestId) -> bool {
        self.embeddings.done.remove(&id);
        let Some(at) = self.embeddings.texts.iter().position(|text| text.id == id) else {
            return false;
        };
        let slot = self.embeddings.texts.remove(at).and_then(|text| text.slot);
        slot.into_iter().for_each(|slot| self.free(slot));
        true
    }

    /// Restarts all texts: the engine may have lost their sequences.
    pub(super) fn restart_embeddings(&mut self) {
        let slots: Vec<usize> =
            self.embeddings.texts.iter_mut().filter_map(Text::restart).collect();
        slots.into_iter().for_each(|slot| self.free(slot));
    }

    /// Prefills the next tokens of texts, as many as fit in a step.
    pub(super) fn embed(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        if self.embeddings.is_empty() || self.alone.is_some() {
            return Ok(());
        }
        let (batch, counts) = self.embedding_batch();
        if counts.is_empty() {
            return Ok(());
        }
        let states = match self.engine.step(&batch, LogitsSelection::Hidden) {
            Ok(states) => states,
            Err(error) if error.is_lost() => return Err(error),
            Err(error) => {
                self.fail_embeddings(counts.len(), &error, events);
                return Ok(());
            }
        };
        self.stepped += batch.tokens().len();
        let hidden = states.len() / batch.tokens().len().max(1);
        let mut rest = &states[..];
        for (at, count) in counts.iter().enumerate() {
            let (own, others) = rest.split_at(count * hidden);
            self.embeddings.texts[at].take(own, *count);
            rest = others;
        }
        let is_done = |text: &Text| text.read == text.tokens.len();
        for at in (0..counts.len()).rev() {
            if is_done(&self.embeddings.texts[at])
                && let Some(text) = self.embeddings.texts.remove(at)
            {
                text.slot.into_iter().for_each(|slot| self.free(slot));
                self.embeddings.done.insert(text.id, Ok(text.vector()));
                events.push(SchedulerEvent::Embedded { request: text.id });
            }
        }
        Ok(())
    }

    /// The next tokens of the first texts that have slots, and the number of tokens of each.
    fn embedding_batch(&mut self) -> (Batch, Vec<usize>) {
        let mut left = match self.running.is_empty() {
            true => self.budget.tokens.max(1),
            false => self.budget.max_mixed_tokens.max(1),
        };
        let (mut batch, mut counts) = (Batch::new(), Vec::new());
        // Sequences that decode need these blocks in the next step.
        let mut taken = self.blocks_needed(|live| usize::from(live.decodes()));
        let several = self.embeddings.texts.front().is_some_and(|text| !text.alone);
        let most = if several { self.embeddings.texts.len() } else { 1 };
        for at in 0..most {
            if left == 0 || !counts.is_empty() && self.embeddings.texts[at].alone {
                break;
            }
            let Some(slot) = self.embedding_slot(at) else { break };
            let text = &self.embeddings.texts[at];
            let count = (text.tokens.len() - text.read).min(left);
            let wanted = self.engine.pages().blocks_needed(slot, count);
            while taken + wanted > self.free_blocks() && self.evict_one(None) {}
            if taken + wanted > self.free_blocks() {
                // Generating sequences use all blocks: this text restarts when some end.
                let slot = self.embeddings.texts[at].restart();
                slot.into_iter().for_each(|slot| self.free(slot));
                break;
            }
            taken += wanted;
            left -= count;
            let text = &self.embeddings.texts[at];
            batch.add(slot, text.tokens[text.read..text.read + count].iter().copied());
            counts.push(count);
        }
        (batch, counts)
    }

    /// The slot of a text given by index; a free one if it has none.
    fn embedding_slot(&mut self, at: usize) -> Option<usize> {
        if let Some(slot) = self.embeddings.texts[at].slot {
            return Some(slot);
        }
        while self.free_slots.is_empty() && self.evict_one(None) {}
        let slot = self.free_slots.pop_first()?;
        self.embeddings.texts[at].slot = Some(slot);
        Some(slot)
    }

    /// Handles a failed pass of the first texts: a text that was alone fails, several are retried one at a time.
    fn fail_embeddings(
        &mut self,
        texts: usize,
        error: &ModelError,
        events: &mut Vec<SchedulerEvent>,
    ) {
        self.stop_all(events);
        if texts == 1 {
            if let Some(text) = self.embeddings.texts.pop_front() {
                self.embeddings.done.insert(text.id, Err(error.to_string()));
                events.push(SchedulerEvent::Embedded { request: text.id });
            }
        } else {
            self.embeddings.texts.iter_mut().take(texts).for_each(|text| text.alone = true);
        }
    }

    /// Checks that tokens are the model's.
    pub(super) fn check_vocabulary(
        &self,
        mut tokens: impl Iterator<Item = u32>,
    ) -> Result<(), ModelError> {
        let vocabulary = self.engine.architecture().vocabulary;
        let Some(token) = tokens.find(|token| *token as usize >= vocabulary) else { return Ok(()) };
        let what = format!("token {token} is beyond the model's vocabulary of {vocabulary}");
        let hint = "token ids come from the model's own tokenizer, and count from 0";
        Err(ModelError::call(what, hint))
    }

    /// Checks that a prompt and its generated tokens fit in the context and the cache.
    pub(super) fn check_tokens(&self, prompt: &[u32], added: usize) -> Result<(), ModelError> {
        self.check_vocabulary(prompt.iter().copied())?;
        let context = self.engine.architecture().context;
        let tokens = prompt.len().saturating_add(added);
        let wants = match added {
            0 => format!("the text has {tokens} tokens"),
            _ => format!("prompt and continuation have {tokens} tokens"),
        };
        if tokens > context {
            let what = format!("{wants}, the model's context is {context}");
            return Err(ModelError::call(what, "shorten the prompt, or ask for fewer tokens"));
        }
        // The last generated token is not fed to the engine.
        if Pages::blocks_for(prompt.len() + added.saturating_sub(1)) > self.blocks {
            let what = format!("{wants}, the cache holds {}", self.blocks * crate::pages::BLOCK);
            let hint = "shorten the prompt, ask for fewer tokens, or open the model for more";
            return Err(ModelError::call(what, hint));
        }
        Ok(())
    }
}
