//! An engine that can be held back, and fails where it is told to.

use super::{SLOTS, TOKENS};
use device::Device;
use facts::BackendKind;
use models::{
    Architecture, Batch, Capacity, Engine, Model, ModelError, Pages, Saved, Storage, Wanted, open,
    shape,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

/// How an engine fails on a token that it is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fails {
    /// The sequence's own fault.
    Sequence,
    /// The device is lost.
    Device,
    /// NaN where logits should be.
    Logits,
    /// Whenever it holds two sequences.
    Pairs,
    /// It panics.
    Panics,
    /// A slot that should begin with another one's state begins with one of other tokens.
    States,
}

/// The token on which it fails.
pub(super) const BAD: u32 = 500;

/// An engine in front of another one.
pub(super) struct Guarded {
    pub(super) inner: Box<dyn Engine>,
    /// A step waits for a word; without a sender none does.
    pub(super) gate: Option<Mutex<Receiver<()>>>,
    pub(super) fails: Fails,
    pub(super) steps: Arc<AtomicUsize>,
    /// Steps that were made ready, each by a word; without a sender there are none to make.
    pub(super) ready: Option<Mutex<Receiver<()>>>,
}

impl Guarded {
    /// Sequences that have read something.
    fn held(&self) -> usize {
        let pages = self.inner.pages();
        (0..pages.sequences()).filter(|slot| !pages.is_empty(*slot)).count()
    }

    fn fault(&self) -> ModelError {
        let (what, hint) = ("an overflow in layer 3".to_owned(), None);
        match self.fails {
            Fails::Device => ModelError::Device("the device is lost".to_owned()),
            _ => ModelError::Call { what, hint },
        }
    }
}

impl Engine for Guarded {
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

    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError> {
        if let Some(gate) = &self.gate {
            // A gate that nobody has any more stands open.
            let _ = gate.lock().unwrap().recv();
        }
        self.steps.fetch_add(1, Ordering::SeqCst);
        let bad = batch.tokens().contains(&BAD);
        match self.fails {
            Fails::Sequence | Fails::Device if bad => return Err(self.fault()),
            Fails::Pairs if self.held() > 1 => return Err(self.fault()),
            Fails::Panics if bad => panic!("a fault of the engine's own"),
            _ => {}
        }
        let mut logits = self.inner.step(batch, wanted)?;
        if self.fails == Fails::Logits && bad {
            logits.fill(f32::NAN);
        }
        Ok(logits)
    }

    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }

    fn save(&mut self, sequence: usize) -> Result<Saved, ModelError> {
        self.inner.save(sequence)
    }

    fn restore(&mut self, saved: &Saved, to: usize) -> Result<(), ModelError> {
        self.inner.restore(saved, to)
    }

    fn reset(&mut self, sequence: usize) {
        self.inner.reset(sequence);
    }

    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        if self.fails == Fails::States {
            let other = vec![9; self.inner.pages().len(from)];
            return self.inner.step(&Batch::new().with(to, &other), Wanted::Last).map(|_| ());
        }
        self.inner.fork(from, to, keep)
    }
}

pub(super) fn engine() -> Box<dyn Engine> {
    let config = shape("kimi-linear-mini").unwrap();
    let device = device::open(BackendKind::Cpu).unwrap();
    // Fewer blocks than all of the longest want.
    let capacity = Capacity { sequences: SLOTS, tokens: TOKENS * 3 / 4 };
    open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity).unwrap()
}
