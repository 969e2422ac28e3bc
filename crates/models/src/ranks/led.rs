//! An engine of which every rank has a part: rank 0's, which hands on what it is asked, and the others', which do it alike.

use super::Ranks;
use super::order::{Granted, Order, Wish};
use crate::engine::{Batch, Engine, Wanted};
use crate::pages::Pages;
use crate::{Architecture, Choice, Drawn, ModelError, Saved};
use device::Device;

/// Rank 0's part of an engine.
pub(super) struct Led {
    engine: Box<dyn Engine>,
    ranks: Ranks,
}

impl Led {
    pub(super) fn new(engine: Box<dyn Engine>, ranks: Ranks) -> Self {
        Self { engine, ranks }
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
        let wishes = how.iter().map(|how| how.as_ref().map(Wish::of)).collect();
        self.ranks.order(&Order::Choose { batch: batch.clone(), how: wishes, count })?;
        self.engine.choose(batch, how, count)
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

    fn prepare(
        &mut self,
        sequences: usize,
        tokens: usize,
        several: bool,
    ) -> Result<bool, ModelError> {
        self.ranks.order(&Order::Prepare { sequences, tokens, several })?;
        self.engine.prepare(sequences, tokens, several)
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        self.engine.bytes_of(tokens)
    }

    fn save(&mut self, _sequence: usize) -> Result<Saved, ModelError> {
        Err(ModelError::fault("sequences of a split model are not copied to the host"))
    }

    fn restore(&mut self, _saved: &Saved, _to: usize) -> Result<(), ModelError> {
        Err(ModelError::fault("sequences of a split model are not copied to the host"))
    }
}

/// Another rank: does what rank 0 says, on the device that `open` opens for a backend, until rank 0 is gone.
///
/// # Errors
/// [`ModelError`] when a model cannot be opened, the device is lost, or rank 0 has ended.
pub fn follow(
    ranks: &Ranks,
    open: impl Fn(facts::BackendKind) -> Result<Device, ModelError>,
) -> Result<(), ModelError> {
    let mut engine: Option<Box<dyn Engine>> = None;
    loop {
        let order = ranks.next()?;
        let done = match (order, &mut engine) {
            (Order::Open(opening), engine) => {
                // Two models would not fit.
                *engine = None;
                let part = opening.model()?.part(ranks.place())?;
                let device = open(opening.backend)?;
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
                let how: Vec<Option<Granted>> =
                    how.into_iter().map(|wish| wish.map(Wish::granted)).collect();
                let how: Vec<_> = how.iter().map(|how| how.as_ref().map(Granted::choice)).collect();
                engine.choose(&batch, &how, count).map(drop)
            }
            (Order::Reset(sequence), Some(engine)) => {
                engine.reset(sequence);
                Ok(())
            }
            (Order::Fork { from, to, keep }, Some(engine)) => engine.fork(from, to, keep),
            (Order::Keep(sequence), Some(engine)) => {
                engine.keep(sequence);
                Ok(())
            }
            (Order::Prepare { sequences, tokens, several }, Some(engine)) => {
                engine.prepare(sequences, tokens, several).map(drop)
            }
        };
        match done {
            Ok(()) => {}
            Err(error @ ModelError::Device(_)) => return Err(error),
            // Rank 0 says no more: what it gave up, it has said.
            Err(ModelError::Rank { .. }) => {}
            // It fails on all ranks alike, or rank 0 waits for this one.
            Err(error) => ranks.refuse(&error)?,
        }
    }
}
