//! Tokens that the GPU chooses by itself, some while those before them are given out: it never waits for the host.
//!
//! All of it is in the order of one stream. So a slot may be reset, and its blocks be given to others, while the GPU still goes on with
//! the sequence that had them: what it writes then lies before everything that is asked of it later.

use super::decode::Size;
use super::pass::device_error;
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::choice::{Choice, Drawn, token};
use crate::engine::Batch;
use crate::pages::Pages;
use device::cuda::{Courier, CudaError, Fetched};
use kernels::Tensor;
use std::collections::VecDeque;

/// What the GPU is choosing, for the sequences of one batch.
pub(super) struct Ahead {
    courier: Courier,
    size: Size,
    rows: Vec<Row>,
    /// The tokens of each step in flight, oldest first. Each step has its own copy to pinned memory and its own event, so that its
    /// tokens are delivered when it ends and not when the steps after it do.
    steps: VecDeque<Fetched>,
    /// Steps that were launched, and those for which the caches have place, counted from the same one on.
    launched: usize,
    placed: usize,
}

/// A sequence.
struct Row {
    slot: usize,
    /// Tokens that it has read, as far as the host knows.
    read: usize,
    stops: Vec<u32>,
    /// Whether its tokens are counted.
    counted: bool,
    /// Whether it has ended, or nobody wants it any more: what is chosen for it means nothing.
    over: bool,
}

impl Ahead {
    pub(super) fn new(courier: Courier) -> Self {
        let (rows, steps) = (Vec::new(), VecDeque::new());
        Self { courier, size: Size::default(), rows, steps, launched: 0, placed: 0 }
    }

    /// The slot is another sequence's from now on.
    pub(super) fn leave(&mut self, slot: usize) {
        for row in self.rows.iter_mut().filter(|row| row.slot == slot) {
            row.over = true;
        }
    }
}

fn device(error: CudaError) -> ModelError {
    failed(device_error(error))
}

impl CudaEngine {
    /// Whether the recorded step chooses all of these tokens. Of a prompt's piece that is one token long, and not its last, nothing is
    /// chosen: the recorded step would.
    pub(super) fn by_itself(&self, batch: &Batch, how: &[Option<Choice<'_>>]) -> bool {
        let by_itself = |choice: &Option<Choice<'_>>| choice.as_ref().is_some_and(Choice::is_free);
        batch.tokens.len() == batch.sequences.len() && how.iter().all(by_itself)
    }

    /// Chooses so many tokens of each, and waits for them.
    pub(super) fn choose_all(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        self.begin(batch, how, count)?;
        for _ in 1..count {
            self.launch()?;
        }
        let mut drawn = self.oldest()?;
        while !self.ahead.steps.is_empty() {
            for (all, more) in drawn.iter_mut().zip(self.oldest()?) {
                all.tokens.extend(more.tokens);
            }
        }
        Ok(drawn)
    }

    /// Launches a step that chooses a token of each, and makes place for `place` of them.
    pub(super) fn begin(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        place: usize,
    ) -> Result<(), ModelError> {
        // Tokens that were not taken are not wanted.
        self.ahead.steps.clear();
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        self.saves.land(&batch.sequences).map_err(failed)?;
        self.clear_stale(batch)?;
        // Blocks for all of them first: the GPU goes from one token to the next by itself.
        let before: Vec<usize> = batch.sequences.iter().map(|slot| self.pages.len(*slot)).collect();
        let more: Vec<_> = batch.sequences.iter().map(|slot| (*slot, place)).collect();
        self.pages.grow(&more)?;
        let counts = self.counts(how, &batch.sequences)?;
        self.ahead.size = self.decoder(batch, &before, how, counts.as_ref())?;
        self.record(self.ahead.size, false)?;
        let rows = batch.sequences.iter().zip(before).zip(how);
        let row = |((slot, read), how): ((&usize, usize), &Option<Choice<'_>>)| Row {
            slot: *slot,
            read,
            stops: how.as_ref().map_or(Vec::new(), |how| how.stop_ids.to_vec()),
            counted: how.as_ref().is_some_and(|how| how.sampling.penalises()),
            over: false,
        };
        self.ahead.rows = rows.map(row).collect();
        (self.ahead.launched, self.ahead.placed) = (0, place);
        self.launch()
    }

    /// Launches the next step, for which there is place, and the copy of its tokens.
    fn launch(&mut self) -> Result<(), ModelError> {
        let stream = self.stream.clone();
        let graph = self.graph(self.ahead.size)?;
        graph.launch(&stream).map_err(failed)?;
        let chosen = graph.chosen().on().map_err(failed)?.clone();
        let tokens = self.ahead.courier.fetch(&chosen).map_err(device)?;
        self.ahead.steps.push_back(tokens);
        self.ahead.launched += 1;
        Ok(())
    }

    /// Launches the step after those in flight; whether it can.
    pub(super) fn go_on(&mut self, more: bool) -> Result<bool, ModelError> {
        let Ahead { rows, steps, launched, placed, size, .. } = &self.ahead;
        // The last step in flight already reads where the token after it lies.
        let going = !steps.is_empty() && placed > launched && rows.iter().all(|row| !row.over);
        if !going {
            return Ok(false);
        }
        let [_, width, _] = *size;
        let want = (launched + 1 + usize::from(more)).saturating_sub(*placed);
        let slots: Vec<usize> = rows.iter().map(|row| row.slot).collect();
        let lacking: usize = slots.iter().map(|slot| self.pages.lacking(*slot, want)).sum();
        let fits = |slot: &usize| Pages::blocks_for(self.pages.len(*slot) + want) <= width;
        if lacking > self.pages.free_blocks() || !slots.iter().all(fits) {
            return Ok(false);
        }
        let grown: Vec<_> = slots.iter().map(|slot| (*slot, want)).collect();
        self.pages.grow(&grown)?;
        self.ahead.placed += want;
        if lacking > 0 {
            let table = self.pages.table_of_width(&slots, width);
            let table = Tensor::new(&[table.len()], table);
            let there = self.graph(self.ahead.size)?.table().on().map_err(failed)?.clone();
            self.ahead.courier.send(table.bytes(), &there).map_err(device)?;
        }
        self.launch()?;
        Ok(true)
    }

    /// Waits for the oldest step in flight, and gives its tokens.
    pub(super) fn oldest(&mut self) -> Result<Vec<Drawn>, ModelError> {
        let step = self.ahead.steps.pop_front();
        let step = step.ok_or_else(|| ModelError::fault("no tokens are being chosen"))?;
        let words = self.ahead.courier.take(step).map_err(device)?;
        let words = words.as_chunks().0.iter().copied().map(i32::from_ne_bytes);
        let last = self.ahead.steps.is_empty();
        let mut drawn = vec![Drawn::default(); self.ahead.rows.len()];
        let rows = self.ahead.rows.iter_mut().zip(&mut drawn);
        for ((row, drawn), word) in rows.zip(words).filter(|((row, _), _)| !row.over) {
            let chosen = token(word);
            drawn.tokens.push(chosen);
            row.over = chosen.is_some_and(|token| row.stops.contains(&token));
            row.read += drawn.tokens.len();
            if row.counted {
                self.counts.advance(row.slot, drawn.tokens.len());
            }
            // The GPU took its slot away at its end: its states stand there, and what was written of keys and values is beyond.
            if row.over || last {
                self.pages.cut(row.slot, row.read);
            }
        }
        Ok(drawn)
    }
}
