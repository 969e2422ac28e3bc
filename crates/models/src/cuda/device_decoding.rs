//! Decoding on the GPU without waiting for the host: the GPU chooses tokens while the host delivers earlier ones.
//!
//! All work is in the order of one stream. A slot may be reset and its blocks reused while the GPU still decodes the
//! former sequence: its writes precede everything that is launched later.

use super::decode::Size;
use super::pass::device_error;
use super::{CudaEngine, failed};
use crate::ModelError;
use crate::choice::{Choice, SampledTokens, token};
use crate::engine::Batch;
use crate::pages::Pages;
use device::cuda::{DeviceError, PendingRead, StagingBuffer};
use ops::Tensor;
use std::collections::VecDeque;

/// The batch that the GPU is decoding.
pub(super) struct DeviceDecoding {
    staging: StagingBuffer,
    size: Size,
    rows: Vec<Row>,
    /// Results of the steps in flight, oldest first. Each step has its own copy in pinned memory and its own event, so
    /// that its tokens are delivered when it ends and not when later steps do.
    steps: VecDeque<PendingRead>,
    /// Number of steps launched, and of steps that the caches have room for, both counted from the start of the batch.
    launched: usize,
    placed: usize,
}

/// A sequence.
struct Row {
    slot: usize,
    /// Tokens that it has read, as far as the host knows.
    read: usize,
    stops: Vec<u32>,
    /// Whether its tokens are counted for penalties.
    counted: bool,
    /// Whether it has ended or was cancelled; its further tokens are ignored.
    over: bool,
}

impl DeviceDecoding {
    pub(super) fn new(staging: StagingBuffer) -> Self {
        let (rows, steps) = (Vec::new(), VecDeque::new());
        Self { staging, size: Size::default(), rows, steps, launched: 0, placed: 0 }
    }

    /// Marks a slot as reused by another sequence.
    pub(super) fn leave(&mut self, slot: usize) {
        for row in self.rows.iter_mut().filter(|row| row.slot == slot) {
            row.over = true;
        }
    }
}

fn device(error: DeviceError) -> ModelError {
    failed(device_error(error))
}

impl CudaEngine {
    /// Whether the decode graph can choose all of these tokens. A chunk of a prompt that is one token long and not the
    /// last must not have a token chosen, which the graph would do.
    pub(super) fn decodes_on_device(&self, batch: &Batch, how: &[Option<Choice<'_>>]) -> bool {
        let decodes_on_device =
            |choice: &Option<Choice<'_>>| choice.as_ref().is_some_and(Choice::is_free);
        batch.tokens.len() == batch.sequences.len() && how.iter().all(decodes_on_device)
    }

    /// Chooses `count` tokens of each sequence and waits for them.
    pub(super) fn choose_all(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
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

    /// Launches a step that chooses one token of each sequence, and allocates blocks for `place` tokens.
    pub(super) fn begin(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        place: usize,
    ) -> Result<(), ModelError> {
        // Tokens that were not fetched are dropped.
        self.ahead.steps.clear();
        batch.check(self.pages.sequences(), self.architecture.vocabulary)?;
        self.saves.wait_for_copies(&batch.sequences).map_err(failed)?;
        self.clear_stale(batch)?;
        // Allocate blocks for all tokens first: the GPU decodes them without the host.
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

    /// Launches the next step and the copy of its tokens. Its blocks are allocated.
    fn launch(&mut self) -> Result<(), ModelError> {
        let stream = self.stream.clone();
        let graph = self.graph(self.ahead.size)?;
        graph.launch(&stream).map_err(failed)?;
        let chosen = graph.chosen().on().map_err(failed)?.clone();
        let tokens = self.ahead.staging.start_read(&chosen).map_err(device)?;
        self.ahead.steps.push_back(tokens);
        self.ahead.launched += 1;
        Ok(())
    }

    /// Launches another step after those in flight; returns false if it cannot.
    pub(super) fn launch_next(&mut self, more: bool) -> Result<bool, ModelError> {
        let DeviceDecoding { rows, steps, launched, placed, size, .. } = &self.ahead;
        // The last step in flight already reads the location of the token after it.
        let going = !steps.is_empty() && placed > launched && rows.iter().all(|row| !row.over);
        if !going {
            return Ok(false);
        }
        let [_, width, _] = *size;
        let want = (launched + 1 + usize::from(more)).saturating_sub(*placed);
        let slots: Vec<usize> = rows.iter().map(|row| row.slot).collect();
        let blocks_needed: usize =
            slots.iter().map(|slot| self.pages.blocks_needed(*slot, want)).sum();
        let fits = |slot: &usize| Pages::blocks_for(self.pages.len(*slot) + want) <= width;
        if blocks_needed > self.pages.free_blocks() || !slots.iter().all(fits) {
            return Ok(false);
        }
        let grown: Vec<_> = slots.iter().map(|slot| (*slot, want)).collect();
        self.pages.grow(&grown)?;
        self.ahead.placed += want;
        if blocks_needed > 0 {
            let table = self.pages.table_of_width(&slots, width);
            let table = Tensor::new(&[table.len()], table);
            let there = self.graph(self.ahead.size)?.table().on().map_err(failed)?.clone();
            self.ahead.staging.send(table.bytes(), &there).map_err(device)?;
        }
        self.launch()?;
        Ok(true)
    }

    /// Waits for the oldest step in flight and returns its tokens.
    pub(super) fn oldest(&mut self) -> Result<Vec<SampledTokens>, ModelError> {
        let step = self.ahead.steps.pop_front();
        let step = step.ok_or_else(|| ModelError::fault("no tokens are being chosen"))?;
        let words = self.ahead.staging.finish_read(step).map_err(device)?;
        let words = words.as_chunks().0.iter().copied().map(i32::from_ne_bytes);
        let last = self.ahead.steps.is_empty();
        let mut drawn = vec![SampledTokens::default(); self.ahead.rows.len()];
        let rows = self.ahead.rows.iter_mut().zip(&mut drawn);
        for ((row, drawn), word) in rows.zip(words).filter(|((row, _), _)| !row.over) {
            let chosen = token(word);
            drawn.tokens.push(chosen);
            row.over = chosen.is_some_and(|token| row.stops.contains(&token));
            row.read += drawn.tokens.len();
            if row.counted {
                self.counts.advance(row.slot, drawn.tokens.len());
            }
            // The GPU removed the sequence from the batch at its end: its states are final, and keys and values written
            // later are beyond its length.
            if row.over || last {
                self.pages.cut(row.slot, row.read);
            }
        }
        Ok(drawn)
    }
}
