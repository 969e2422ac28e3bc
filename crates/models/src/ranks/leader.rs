//! Engines of a split model: rank 0's engine, which forwards every call, and the loop of the other ranks, which execute
//! it.

use super::line::Kind;
use super::order::{ChoiceMessage, Order, OwnedChoice};
use super::{OpenRequest, Ranks};
use crate::engine::{Batch, Engine, LogitsSelection, launches_of};
use crate::pages::Pages;
use crate::{Architecture, Choice, ModelError, SampledTokens, SavedSequence, TokenLogprobs};
use device::Device;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rank 0's engine.
pub(super) struct LeaderEngine {
    engine: Box<dyn Engine>,
    ranks: Ranks,
    /// Number of host copies made so far.
    copies: u64,
    dropped: DroppedCopies,
}

/// Host copies that were dropped; the other ranks are informed with the next copy.
type DroppedCopies = Arc<Mutex<Vec<u64>>>;

/// A host copy of a sequence, of which every rank has a part.
struct SequenceCopy {
    own: SavedSequence,
    copy: u64,
    dropped: DroppedCopies,
}

impl Drop for SequenceCopy {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.copy);
    }
}

impl LeaderEngine {
    pub(super) fn new(engine: Box<dyn Engine>, ranks: Ranks) -> Self {
        Self { engine, ranks, copies: 0, dropped: DroppedCopies::default() }
    }

    /// Number of ranks; their parts have equal sizes.
    fn count(&self) -> u64 {
        self.ranks.place().ranks as u64
    }
}

impl Drop for LeaderEngine {
    fn drop(&mut self) {
        // A rank that has ended holds nothing.
        let _ = self.ranks.order(&Order::Close);
    }
}

impl Engine for LeaderEngine {
    fn architecture(&self) -> &Architecture {
        self.engine.architecture()
    }

    fn device(&self) -> &Device {
        self.engine.device()
    }

    /// The bandwidth of this rank's device.
    fn read_bandwidth(&self) -> f64 {
        self.engine.read_bandwidth()
    }

    /// The sums over all ranks.
    fn launches(&self) -> Result<BTreeMap<String, u64>, ModelError> {
        let mut all = launches_of(self.device());
        self.ranks.order(&Order::CountLaunches)?;
        let mut star = self.ranks.star();
        for rank in 1..self.ranks.place().ranks {
            let part: BTreeMap<String, u64> = serde_json::from_slice(&star.recv_part(rank)?)
                .map_err(|error| ModelError::rank(rank, format!("sent invalid counts: {error}")))?;
            for (kernel, count) in part {
                *all.entry(kernel).or_default() += count;
            }
        }
        Ok(all)
    }

    fn pages(&self) -> &Pages {
        self.engine.pages()
    }

    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        self.ranks.order(&Order::Step { batch: batch.clone(), wanted })?;
        self.engine.step(batch, wanted)
    }

    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        self.ranks.order(&Order::Choose { batch: batch.clone(), how: to_messages(how), count })?;
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
        let order = Order::BeginChoosing { batch: batch.clone(), how: to_messages(how), more };
        self.ranks.order(&order)?;
        self.engine.begin_choosing(batch, how, more)
    }

    fn choose_more(&mut self, more: bool) -> Result<bool, ModelError> {
        self.ranks.order(&Order::ChooseMore { more })?;
        self.engine.choose_more(more)
    }

    fn chosen(&mut self) -> Result<Vec<SampledTokens>, ModelError> {
        self.ranks.order(&Order::Chosen)?;
        self.engine.chosen()
    }

    fn reset(&mut self, sequence: usize) {
        // A broken connection makes the next step fail, which reports it.
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

    /// The bytes of all ranks, which are on one host.
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

    /// Checks this rank's device only: the other ranks have equal parts, and wait if theirs is slower.
    fn can_save(&self, sequence: usize) -> bool {
        self.engine.can_save(sequence)
    }

    fn has_arrived(&mut self, sequence: usize) -> bool {
        self.engine.has_arrived(sequence)
    }

    /// The rate of all ranks together: their copies run at the same time.
    fn bytes_per_second(&self) -> Option<f64> {
        Some(self.engine.bytes_per_second()? * self.count() as f64)
    }

    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        let dropped =
            std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        if !dropped.is_empty() {
            self.ranks.order(&Order::Forget(dropped))?;
        }
        let copy = self.copies;
        self.copies += 1;
        self.ranks.order(&Order::Save { sequence, copy })?;
        let own = self.ranks.agree(self.engine.save(sequence))?;
        let (tokens, bytes) = (own.tokens(), own.bytes() * self.count());
        let dropped = Arc::clone(&self.dropped);
        Ok(SavedSequence::new(tokens, bytes, SequenceCopy { own, copy, dropped }))
    }

    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        let SequenceCopy { own, copy, .. } = saved.copy()?;
        self.ranks.order(&Order::Restore { copy: *copy, to })?;
        self.ranks.agree(self.engine.restore(own, to))
    }
}

/// Serializable copies of choices.
fn to_messages(how: &[Option<Choice<'_>>]) -> Vec<Option<ChoiceMessage>> {
    how.iter().map(|how| how.as_ref().map(ChoiceMessage::of)).collect()
}

/// Calls a function with received choices.
fn with_choices<T>(
    how: Vec<Option<ChoiceMessage>>,
    with: impl FnOnce(&[Option<Choice<'_>>]) -> T,
) -> T {
    let how: Vec<Option<OwnedChoice>> =
        how.into_iter().map(|wish| wish.map(ChoiceMessage::with_choices)).collect();
    let how: Vec<_> = how.iter().map(|how| how.as_ref().map(OwnedChoice::choice)).collect();
    with(&how)
}

/// Another rank: executes rank 0's orders, on the device that `open` opens for its part of a model, until rank 0
/// disconnects. If the model was closed before, that is a normal end.
///
/// # Errors
/// [`ModelError`] when a model cannot be opened, the device is lost, or rank 0 has ended; and errors of `open`.
pub fn follow<E: From<ModelError>>(
    ranks: &Ranks,
    open: impl Fn(&Architecture, &OpenRequest) -> Result<Device, E>,
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
                // Drop the former engine first: two would not fit.
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
                with_choices(how, |how| engine.choose(&batch, how, count)).map(drop)
            }
            (Order::Score { batch, tokens, count }, Some(engine)) => {
                engine.score(&batch, &tokens, count).map(drop)
            }
            (Order::BeginChoosing { batch, how, more }, Some(engine)) => {
                with_choices(how, |how| engine.begin_choosing(&batch, how, more)).map(drop)
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
                // Without memory, saving fails later and reports it.
                let _ = engine.reserve(bytes);
                Ok(())
            }
            (Order::ReserveMore, Some(engine)) => {
                engine.reserve_more();
                Ok(())
            }
            (Order::Save { sequence, copy }, Some(engine)) => {
                // If saving fails on some rank, all ranks continue without the copy.
                if let Ok(saved) = ranks.agree(engine.save(sequence)) {
                    copies.insert(copy, saved);
                }
                Ok(())
            }
            (Order::Restore { copy, to }, Some(engine)) => {
                let gone = || Err(ModelError::rank(0, "requested a copy that does not exist"));
                let restored = copies.get(&copy).map_or_else(gone, |own| engine.restore(own, to));
                // On failure rank 0 resets the slot by its next order.
                let _ = ranks.agree(restored);
                Ok(())
            }
            (Order::CountLaunches, Some(engine)) => {
                // Names and numbers always serialize.
                let own = serde_json::to_vec(&launches_of(engine.device())).unwrap_or_default();
                ranks.star().send_all(Kind::Values, &own)
            }
            (Order::Forget(dropped), Some(_)) => {
                dropped.iter().for_each(|copy| drop(copies.remove(copy)));
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(error @ ModelError::Device(_)) => return Err(error.into()),
            // Rank 0 has ended and cannot receive an error.
            Err(ModelError::Rank { .. }) => {}
            // The error occurs on all ranks, or rank 0 is waiting for this rank.
            Err(error) => ranks.refuse(&error)?,
        }
    }
}
