//! Tokens that the GPU chooses by itself, some while those before them are given out: it never waits for the host.
//!
//! All of it is in the order of one stream. So a slot may be reset, and its blocks be given to others, while the GPU still goes on with
//! the sequence that had them: what it writes then lies before everything that is asked of it later.

use super::decode::{STEPS, Size};
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
    /// Oldest first.
    parts: VecDeque<Part>,
    /// Tokens of each that it was told to choose, and those that the caches have place for, from the same one on.
    told: usize,
    placed: usize,
}

/// Steps whose tokens have not been taken.
struct Part {
    count: usize,
    words: Fetched,
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
        let (rows, parts) = (Vec::new(), VecDeque::new());
        Self { courier, size: Size::default(), rows, parts, told: 0, placed: 0 }
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
        let by_itself = |choice: &Option<Choice<'_>>| {
            choice.as_ref().is_some_and(|choice| choice.mask.is_none() && !choice.logits)
        };
        batch.tokens.len() == batch.sequences.len() && how.iter().all(by_itself)
    }

    /// Chooses so many tokens of each, and waits for them.
    pub(super) fn choose_all(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        self.begin(batch, how, count.min(STEPS), count)?;
        for first in (STEPS..count).step_by(STEPS) {
            self.launch(STEPS.min(count - first))?;
        }
        let mut drawn = self.oldest()?;
        while !self.ahead.parts.is_empty() {
            for (all, more) in drawn.iter_mut().zip(self.oldest()?) {
                all.tokens.extend(more.tokens);
            }
        }
        Ok(drawn)
    }

    /// Tells the GPU to choose so many tokens of each, and makes place for `place`.
    pub(super) fn begin(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
        place: usize,
    ) -> Result<(), ModelError> {
        // What nobody took, nobody wants.
        self.ahead.parts.clear();
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        self.saves.land(&batch.sequences).map_err(failed)?;
        // Blocks for all of them first: the GPU goes from one token to the next by itself.
        let before: Vec<usize> = batch.sequences.iter().map(|slot| self.pages.len(*slot)).collect();
        let more: Vec<_> = batch.sequences.iter().map(|slot| (*slot, place)).collect();
        self.pages.grow(&more)?;
        let counts = self.counts(how, &batch.sequences)?;
        self.ahead.size = self.decoder(batch, &before, how, counts.as_ref())?;
        let rows = batch.sequences.iter().zip(before).zip(how);
        let row = |((slot, read), how): ((&usize, usize), &Option<Choice<'_>>)| Row {
            slot: *slot,
            read,
            stops: how.as_ref().map_or(Vec::new(), |how| how.stop_ids.to_vec()),
            counted: how.as_ref().is_some_and(|how| how.sampling.penalises()),
            over: false,
        };
        self.ahead.rows = rows.map(row).collect();
        (self.ahead.told, self.ahead.placed) = (0, place);
        self.launch(count)
    }

    /// Lets it choose so many tokens more, for which there is place.
    fn launch(&mut self, count: usize) -> Result<(), ModelError> {
        let stream = self.stream.clone();
        let graph = self.graph(self.ahead.size)?;
        graph.launch(count, &stream).map_err(failed)?;
        let history = graph.history().on().map_err(failed)?.clone();
        let words = self.ahead.courier.fetch(&history).map_err(device)?;
        self.ahead.parts.push_back(Part { count, words });
        self.ahead.told += count;
        Ok(())
    }

    /// Lets it go on behind what it was told last; whether it does.
    pub(super) fn go_on(&mut self, count: usize, more: bool) -> Result<bool, ModelError> {
        let Ahead { rows, parts, told, placed, size, .. } = &self.ahead;
        // The last step of those that are under way already asks where the token behind it lies.
        let going = !parts.is_empty() && placed > told && rows.iter().all(|row| !row.over);
        if !going || !(1..=STEPS).contains(&count) {
            return Ok(false);
        }
        let [_, width, _] = *size;
        let want = (told + count + usize::from(more)).saturating_sub(*placed);
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
        self.launch(count)?;
        Ok(true)
    }

    /// Waits for the oldest part, and gives its tokens.
    pub(super) fn oldest(&mut self) -> Result<Vec<Drawn>, ModelError> {
        let part = self.ahead.parts.pop_front();
        let Part { count, words } =
            part.ok_or_else(|| ModelError::fault("no tokens are being chosen"))?;
        let words = self.ahead.courier.take(words).map_err(device)?;
        let words: Vec<i32> = words.as_chunks().0.iter().copied().map(i32::from_ne_bytes).collect();
        let (steps, last) = (words.len() / STEPS, self.ahead.parts.is_empty());
        let mut drawn = vec![Drawn::default(); self.ahead.rows.len()];
        for (at, (row, drawn)) in self.ahead.rows.iter_mut().zip(&mut drawn).enumerate() {
            if row.over {
                continue;
            }
            let chosen = words.iter().skip(at).step_by(steps.max(1)).take(count);
            for word in chosen {
                drawn.tokens.push(token(*word));
                row.over = token(*word).is_some_and(|token| row.stops.contains(&token));
                if row.over {
                    break;
                }
            }
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
