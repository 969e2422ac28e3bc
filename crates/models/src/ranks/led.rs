//! An engine of which every rank has a part: rank 0's, which hands on what it is asked, and the others', which do it alike.

use super::order::{Granted, Order, Wish};
use super::{Opening, Ranks};
use crate::engine::{Batch, Engine, Wanted};
use crate::pages::Pages;
use crate::{Architecture, Choice, Drawn, ModelError, Saved, TokenLogprobs};
use device::Device;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rank 0's part of an engine.
pub(super) struct Led {
    engine: Box<dyn Engine>,
    ranks: Ranks,
    /// Copies on the hosts that were made so far.
    copies: u64,
    dropped: Dropped,
}

/// Copies that nobody wants any more; the other ranks are told when the next one is made.
type Dropped = Arc<Mutex<Vec<u64>>>;

/// A copy of a sequence, of which every rank has its own part.
struct Copied {
    own: Saved,
    copy: u64,
    dropped: Dropped,
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.copy);
    }
}

impl Led {
    pub(super) fn new(engine: Box<dyn Engine>, ranks: Ranks) -> Self {
        Self { engine, ranks, copies: 0, dropped: Dropped::default() }
    }

    /// Ranks, whose parts are of one size.
    fn count(&self) -> u64 {
        self.ranks.place().ranks as u64
    }
}

impl Drop for Led {
    fn drop(&mut self) {
        // A rank that is gone holds nothing more.
        let _ = self.ranks.order(&Order::Close);
    }
}

impl Engine for Led {
    fn architecture(&self) -> &Architecture {
        self.engine.architecture()
    }

    fn device(&self) -> &Device {
        self.engine.device()
    }

    /// Of this rank's device.
    fn read_bandwidth(&self) -> f64 {
        self.engine.read_bandwidth()
    }

    fn pages(&self) -> &Pages {
        self.engine.pages()
    }

    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        self.ranks.order(&Order::Step { batch: batch.clone(), wanted })?;
        self.engine.step(batch, wanted)
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        self.ranks.order(&Order::Choose { batch: batch.clone(), how: wishes(how), count })?;
        self.engine.choose(batch, how, count)
    }

    fn score(
        &mut self,
        batch: &Batch,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, ModelError> {
        self.ranks.order(&Order::Score { batch: batch.clone(), tokens: tokens.to_vec(), count })?;
        self.engine.score(batch, tokens, count)
    }

    fn begin_choosing(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        more: bool,
    ) -> Result<bool, ModelError> {
        let order = Order::BeginChoosing { batch: batch.clone(), how: wishes(how), more };
        self.ranks.order(&order)?;
        self.engine.begin_choosing(batch, how, more)
    }

    fn choose_more(&mut self, more: bool) -> Result<bool, ModelError> {
        self.ranks.order(&Order::ChooseMore { more })?;
        self.engine.choose_more(more)
    }

    fn chosen(&mut self) -> Result<Vec<Drawn>, ModelError> {
        self.ranks.order(&Order::Chosen)?;
        self.engine.chosen()
    }

    fn reset(&mut self, sequence: usize) {
        // A line that is broken breaks the next step as well, which says so.
        let _ = self.ranks.order(&Order::Reset(sequence));
        self.engine.reset(sequence);
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.ranks.order(&Order::Fork { from, to, keep })?;
        self.engine.fork(from, to, keep)
    }

    fn keep(&mut self, sequence: usize) -> bool {
        // As in `reset`.
        let _ = self.ranks.order(&Order::Keep(sequence));
        self.engine.keep(sequence)
    }

    fn prepare(&mut self, sequences: usize, tokens: usize) -> Result<bool, ModelError> {
        self.ranks.order(&Order::Prepare { sequences, tokens })?;
        self.engine.prepare(sequences, tokens)
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        self.engine.bytes_of(tokens)
    }

    /// Of all ranks, which are on one host.
    fn bytes_to_save(&self, tokens: usize) -> u64 {
        self.engine.bytes_to_save(tokens) * self.count()
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), ModelError> {
        let each = bytes / self.count();
        self.ranks.order(&Order::Reserve(each))?;
        self.engine.reserve(each)
    }

    fn reserve_more(&mut self) -> bool {
        // As in `reset`.
        let _ = self.ranks.order(&Order::ReserveMore);
        self.engine.reserve_more()
    }

    /// Of this rank's device; the others, whose parts are as large, wait where theirs is slower.
    fn can_save(&self, sequence: usize) -> bool {
        self.engine.can_save(sequence)
    }

    fn has_arrived(&mut self, sequence: usize) -> bool {
        self.engine.has_arrived(sequence)
    }

    /// Of all ranks, whose copies come at once.
    fn bytes_per_second(&self) -> Option<f64> {
        Some(self.engine.bytes_per_second()? * self.count() as f64)
    }

    fn save(&mut self, sequence: usize) -> Result<Saved, ModelError> {
        let dropped =
            std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        if !dropped.is_empty() {
            self.ranks.order(&Order::Forget(dropped))?;
        }
        let copy = self.copies;
        self.copies += 1;
        self.ranks.order(&Order::Save { sequence, copy })?;
        let own = self.ranks.alike(self.engine.save(sequence))?;
        let (tokens, bytes) = (own.tokens(), own.bytes() * self.count());
        let dropped = Arc::clone(&self.dropped);
        Ok(Saved::new(tokens, bytes, Copied { own, copy, dropped }))
    }

    fn restore(&mut self, saved: &Saved, to: usize) -> Result<(), ModelError> {
        let Copied { own, copy, .. } = saved.copy()?;
        self.ranks.order(&Order::Restore { copy: *copy, to })?;
        self.ranks.alike(self.engine.restore(own, to))
    }
}

/// Choices as they are sent.
fn wishes(how: &[Option<Choice<'_>>]) -> Vec<Option<Wish>> {
    how.iter().map(|how| how.as_ref().map(Wish::of)).collect()
}

/// Does something with choices that were sent.
fn granted<T>(how: Vec<Option<Wish>>, with: impl FnOnce(&[Option<Choice<'_>>]) -> T) -> T {
    let how: Vec<Option<Granted>> = how.into_iter().map(|wish| wish.map(Wish::granted)).collect();
    let how: Vec<_> = how.iter().map(|how| how.as_ref().map(Granted::choice)).collect();
    with(&how)
}

/// Another rank: does what rank 0 says, on the device that `open` opens for its part of a model, until rank 0 is gone. That is an orderly
/// end where it has closed its model before.
///
/// # Errors
/// [`ModelError`] when a model cannot be opened, the device is lost, or rank 0 has ended; and those of `open`.
pub fn follow<E: From<ModelError>>(
    ranks: &Ranks,
    open: impl Fn(&Architecture, &Opening) -> Result<Device, E>,
) -> Result<(), E> {
    let mut engine: Option<Box<dyn Engine>> = None;
    let mut copies = BTreeMap::new();
    let mut closed = false;
    loop {
        let order = match ranks.next() {
            Err(_) if closed => return Ok(()),
            order => order?,
        };
        closed = matches!(order, Order::Close);
        let done = match (order, &mut engine) {
            (Order::Open(opening), engine) => {
                // Two models would not fit.
                *engine = None;
                copies.clear();
                let part = opening.part(ranks.place())?;
                let device = open(&part.architecture, &opening)?;
                *engine = Some(ranks.open_part(part, device, &opening)?);
                Ok(())
            }
            (Order::Close, engine) => {
                *engine = None;
                Ok(())
            }
            (_, None) => Err(ModelError::rank(0, "asks for steps of no model")),
            (Order::Step { batch, wanted }, Some(engine)) => engine.step(&batch, wanted).map(drop),
            (Order::Choose { batch, how, count }, Some(engine)) => {
                granted(how, |how| engine.choose(&batch, how, count)).map(drop)
            }
            (Order::Score { batch, tokens, count }, Some(engine)) => {
                engine.score(&batch, &tokens, count).map(drop)
            }
            (Order::BeginChoosing { batch, how, more }, Some(engine)) => {
                granted(how, |how| engine.begin_choosing(&batch, how, more)).map(drop)
            }
            (Order::ChooseMore { more }, Some(engine)) => engine.choose_more(more).map(drop),
            (Order::Chosen, Some(engine)) => engine.chosen().map(drop),
            (Order::Reset(sequence), Some(engine)) => {
                engine.reset(sequence);
                Ok(())
            }
            (Order::Fork { from, to, keep }, Some(engine)) => engine.fork(from, to, keep),
            (Order::Keep(sequence), Some(engine)) => {
                engine.keep(sequence);
                Ok(())
            }
            (Order::Prepare { sequences, tokens }, Some(engine)) => {
                engine.prepare(sequences, tokens).map(drop)
            }
            (Order::Reserve(bytes), Some(engine)) => {
                // Without memory nothing can be saved, which is said then.
                let _ = engine.reserve(bytes);
                Ok(())
            }
            (Order::ReserveMore, Some(engine)) => {
                engine.reserve_more();
                Ok(())
            }
            (Order::Save { sequence, copy }, Some(engine)) => {
                // As rank 0 goes on without a copy, so does this one.
                if let Ok(saved) = ranks.alike(engine.save(sequence)) {
                    copies.insert(copy, saved);
                }
                Ok(())
            }
            (Order::Restore { copy, to }, Some(engine)) => {
                let gone = || Err(ModelError::rank(0, "wants a copy that is not there"));
                let restored = copies.get(&copy).map_or_else(gone, |own| engine.restore(own, to));
                // The slot is reset by the next order.
                let _ = ranks.alike(restored);
                Ok(())
            }
            (Order::Forget(dropped), Some(_)) => {
                dropped.iter().for_each(|copy| drop(copies.remove(copy)));
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(error @ ModelError::Device(_)) => return Err(error.into()),
            // Rank 0 says no more: what it gave up, it has said.
            Err(ModelError::Rank { .. }) => {}
            // It fails on all ranks alike, or rank 0 waits for this one.
            Err(error) => ranks.refuse(&error)?,
        }
    }
}
