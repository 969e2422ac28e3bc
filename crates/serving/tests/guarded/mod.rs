//! An engine that tests can block and make fail.

use super::{SLOTS, TOKENS};
use device::Device;
use facts::BackendKind;
use models::{
    Architecture, Batch, Capacity, Engine, LogitsSelection, Model, ModelError, Pages,
    SavedSequence, Storage, open, shape,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

/// How the engine fails when it reads [`BAD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The step returns an error.
    Sequence,
    /// The device is lost.
    Device,
    /// The logits are NaN.
    Logits,
    /// Every step with two sequences fails, whatever they contain.
    Pairs,
    /// The step panics.
    Panics,
    /// Copying a state to another slot fills the slot with the state of other tokens.
    States,
}

/// The token that makes it fail.
pub(super) const BAD: u32 = 500;

/// Wraps another engine.
pub(super) struct FaultyEngine {
    pub(super) inner: Box<dyn Engine>,
    /// Each step waits for a message; without a sender no step waits.
    pub(super) gate: Option<Mutex<Receiver<()>>>,
    pub(super) fails: Fault,
    pub(super) steps: Arc<AtomicUsize>,
    /// Number of graphs that can be prepared, one for each message.
    pub(super) ready: Option<Mutex<Receiver<()>>>,
}

impl FaultyEngine {
    /// Sequences that have tokens in the cache.
    fn occupied_slots(&self) -> usize {
        let pages = self.inner.pages();
        (0..pages.sequences()).filter(|slot| !pages.is_empty(*slot)).count()
    }

    fn fault(&self) -> ModelError {
        let (what, hint) = ("an overflow in layer 3".to_owned(), None);
        match self.fails {
            Fault::Device => ModelError::Device("the device is lost".to_owned()),
            _ => ModelError::Call { what, hint },
        }
    }
}

impl Engine for FaultyEngine {
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

    fn prepare(&mut self, _: usize, _: usize) -> Result<bool, ModelError> {
        Ok(self.ready.as_ref().is_some_and(|ready| ready.lock().unwrap().recv().is_ok()))
    }

    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        if let Some(gate) = &self.gate {
            // Steps do not wait once the sender is dropped.
            let _ = gate.lock().unwrap().recv();
        }
        self.steps.fetch_add(1, Ordering::SeqCst);
        let bad = batch.tokens().contains(&BAD);
        match self.fails {
            Fault::Sequence | Fault::Device if bad => return Err(self.fault()),
            Fault::Pairs if self.occupied_slots() > 1 => return Err(self.fault()),
            Fault::Panics if bad => panic!("the engine panicked"),
            _ => {}
        }
        let mut logits = self.inner.step(batch, wanted)?;
        if self.fails == Fault::Logits && bad {
            logits.fill(f32::NAN);
        }
        Ok(logits)
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }

    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.inner.save(sequence)
    }

    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        self.inner.restore(saved, to)
    }

    fn reset(&mut self, sequence: usize) {
        self.inner.reset(sequence);
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        if self.fails == Fault::States {
            let other = vec![9; self.inner.pages().len(from)];
            return self
                .inner
                .step(&Batch::new().with(to, &other), LogitsSelection::Last)
                .map(|_| ());
        }
        self.inner.fork(from, to, keep)
    }
}

pub(super) fn engine() -> Box<dyn Engine> {
    let config = shape("kimi-linear-mini").unwrap();
    let device = backends::open(BackendKind::Cpu).unwrap();
    // Fewer blocks than `SLOTS` sequences of maximum length need.
    let capacity = Capacity { sequences: SLOTS, tokens: TOKENS * 3 / 4 };
    open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity).unwrap()
}
