//! An engine that chooses tokens before they are requested, as a GPU does: its sequences are ahead of what it has
//! returned.

use device::Device;
use models::{
    Architecture, Batch, Choice, Engine, LogitsSelection, ModelError, Pages, SampledTokens,
    Sampling, SavedSequence,
};
use std::collections::VecDeque;

/// Wraps an engine that only has steps.
pub(crate) struct Eager {
    inner: Box<dyn Engine>,
    rows: Vec<Row>,
    parts: VecDeque<Vec<SampledTokens>>,
    /// How often it continued before its tokens were requested.
    pub(crate) went_on: usize,
}

/// A sequence that is decoded ahead.
struct Row {
    slot: usize,
    sampling: Sampling,
    prompt: Vec<u32>,
    added: Vec<u32>,
    stops: Vec<u32>,
    /// Whether a token ended it, which the host may not know yet; and whether it was reset.
    ended: bool,
    over: bool,
}

impl Row {
    fn choice(&self) -> Choice<'_> {
        Choice {
            sampling: &self.sampling,
            prompt: &self.prompt,
            added: &self.added,
            mask: None,
            stop_ids: &self.stops,
            logits: false,
        }
    }

    fn last_ends(&self, tokens: &[Option<u32>]) -> bool {
        tokens.iter().flatten().any(|token| self.stops.contains(token))
    }
}

impl Eager {
    pub(crate) fn new(inner: Box<dyn Engine>) -> Self {
        Self { inner, rows: Vec::new(), parts: VecDeque::new(), went_on: 0 }
    }

    /// Chooses a token of each active sequence of the batch.
    fn go(&mut self, batch: &Batch) -> Result<(), ModelError> {
        let going: Vec<usize> = (0..self.rows.len()).filter(|at| !self.rows[*at].ended).collect();
        let how: Vec<_> = going.iter().map(|at| Some(self.rows[*at].choice())).collect();
        let chosen = match going.is_empty() {
            true => Vec::new(),
            false => self.inner.choose(batch, &how, 1)?,
        };
        // Tokens of an ended sequence are ignored.
        let nothing = SampledTokens { tokens: vec![Some(1)], logits: None };
        let mut part = vec![nothing; self.rows.len()];
        for (at, drawn) in going.into_iter().zip(chosen) {
            let row = &mut self.rows[at];
            row.added.extend(drawn.tokens.iter().flatten());
            row.ended = row.last_ends(&drawn.tokens);
            part[at] = drawn;
        }
        self.parts.push_back(part);
        Ok(())
    }
}

impl Engine for Eager {
    fn architecture(&self) -> &Architecture {
        self.inner.architecture()
    }
    fn device(&self) -> &Device {
        self.inner.device()
    }
    fn read_bandwidth(&self) -> f64 {
        self.inner.read_bandwidth()
    }
    fn pages(&self) -> &Pages {
        self.inner.pages()
    }
    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        assert!(self.parts.is_empty(), "a step while tokens are in flight");
        self.inner.step(batch, wanted)
    }
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        assert!(self.parts.is_empty(), "a step while tokens are in flight");
        self.inner.choose(batch, how, count)
    }
    fn begin_choosing(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        _more: bool,
    ) -> Result<bool, ModelError> {
        assert!(self.parts.is_empty(), "tokens in flight that were not fetched");
        let on_device = |how: &Choice<'_>| how.mask.is_none() && !how.logits;
        if !how.iter().all(|how| how.as_ref().is_some_and(on_device)) {
            return Ok(false);
        }
        let row = |(slot, how): (usize, &Choice<'_>)| Row {
            slot,
            sampling: how.sampling.clone(),
            prompt: how.prompt.to_vec(),
            added: how.added.to_vec(),
            stops: how.stop_ids.to_vec(),
            ended: false,
            over: false,
        };
        self.rows = batch.slots().zip(how.iter().flatten()).map(row).collect();
        self.go(batch)?;
        Ok(true)
    }
    fn choose_more(&mut self, _more: bool) -> Result<bool, ModelError> {
        let pages = self.inner.pages();
        let lacking: usize = self.rows.iter().map(|row| pages.blocks_needed(row.slot, 1)).sum();
        let over = self.rows.iter().any(|row| row.over);
        if self.parts.is_empty() || over || lacking > pages.free_blocks() {
            return Ok(false);
        }
        let going = self.rows.iter().filter(|row| !row.ended);
        let last = |row: &Row| [row.added.last().copied().unwrap_or(0)];
        let batch = going.fold(Batch::new(), |batch, row| batch.with(row.slot, &last(row)));
        self.go(&batch)?;
        self.went_on += 1;
        Ok(true)
    }
    fn chosen(&mut self) -> Result<Vec<SampledTokens>, ModelError> {
        let mut part = self.parts.pop_front().expect("tokens that were begun");
        for (row, drawn) in self.rows.iter_mut().zip(&mut part) {
            if row.over {
                *drawn = SampledTokens::default();
            }
            row.over |= row.last_ends(&drawn.tokens);
        }
        Ok(part)
    }
    fn reset(&mut self, sequence: usize) {
        for row in self.rows.iter_mut().filter(|row| row.slot == sequence) {
            (row.ended, row.over) = (true, true);
        }
        self.inner.reset(sequence);
    }
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        assert!(self.parts.is_empty(), "a sequence that is not where it seems is copied");
        self.inner.fork(from, to, keep)
    }
    fn keep(&mut self, sequence: usize) -> bool {
        self.inner.keep(sequence)
    }
    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        let own = self.rows.iter().any(|row| row.slot == sequence && !row.over);
        assert!(!own || self.parts.is_empty(), "a sequence that is not where it seems is saved");
        self.inner.save(sequence)
    }
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        self.inner.restore(saved, to)
    }
}
