//! The common part of the calls of recurrent ops.

use super::{Call, integers, offsets, slots};
use crate::TensorRng;
use ops::{DType, Settings, Tensor, TensorMap};
use std::fmt::Display;

/// A described call of a recurrent op.
#[derive(Clone)]
pub(in crate::cases) struct Recurrent<T> {
    sequences: Sequences,
    settings: Settings,
    /// The op's own part.
    of: T,
}

/// The sequences of a call, and their initial states.
#[derive(Clone, Default)]
pub(in crate::cases) struct Sequences {
    pub(in crate::cases) batch: usize,
    pub(in crate::cases) tokens: usize,
    packed: Option<Vec<usize>>,
    initial: bool,
    /// Slots of a pool.
    pool: Option<usize>,
    /// Every third sequence is padding.
    padding: bool,
}

/// An op's own part of a call.
pub(in crate::cases) trait Recurrence: Clone + Send + Sync + 'static {
    /// Generates the inputs, states included, without offsets of packed sequences.
    fn draw(&self, of: &Sequences, draw: &mut TensorRng, dtype: DType) -> TensorMap;
    /// Adds settings.
    fn set(&self, _: &mut Settings) {}
}

impl<T> Recurrent<T> {
    /// A call of one sequence without an initial state.
    pub(in crate::cases) fn new(tokens: usize, of: T) -> Self {
        let sequences = Sequences { batch: 1, tokens, ..Sequences::default() };
        Self { sequences, settings: Settings::new(), of }
    }

    fn with_sequences(mut self, change: impl FnOnce(&mut Sequences)) -> Self {
        change(&mut self.sequences);
        self
    }

    /// A number of sequences.
    pub(in crate::cases) fn batch(self, batch: usize) -> Self {
        self.with_sequences(|of| of.batch = batch)
    }

    /// Packed sequences of these lengths.
    pub(in crate::cases) fn packed(self, lengths: &[usize]) -> Self {
        self.batch(lengths.len()).with_sequences(|of| of.packed = Some(lengths.to_vec()))
    }

    /// Sequences with initial states.
    pub(in crate::cases) fn initial(self) -> Self {
        self.with_sequences(|of| of.initial = true)
    }

    /// Initial states in a pool of this many slots.
    pub(in crate::cases) fn pool(self, slots: usize) -> Self {
        self.initial().with_sequences(|of| of.pool = Some(slots))
    }

    /// Every third sequence of a pool is padding.
    pub(in crate::cases) fn padded(self) -> Self {
        self.with_sequences(|of| of.padding = true)
    }

    /// Changes the op's own part.
    pub(in crate::cases) fn with(mut self, change: impl FnOnce(&mut T)) -> Self {
        change(&mut self.of);
        self
    }

    pub(in crate::cases) fn set(mut self, name: &str, value: impl Display) -> Self {
        self.settings.set(name, value);
        self
    }
}

impl<T: Recurrence> Call for Recurrent<T> {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let mut inputs = self.of.draw(&self.sequences, draw, dtype);
        if let Some(lengths) = &self.sequences.packed {
            inputs.insert("cu_seqlens".to_owned(), offsets(lengths.iter().copied()));
        }
        let mut settings = self.settings.clone();
        self.of.set(&mut settings);
        (inputs, settings)
    }
}

impl Sequences {
    /// Whether sequences are packed.
    pub(in crate::cases) fn are_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// The shape of a tensor with these dimensions per token.
    pub(in crate::cases) fn shape(&self, rest: &[usize]) -> Vec<usize> {
        match &self.packed {
            Some(lengths) => [&[lengths.iter().sum()], rest].concat(),
            None => [&[self.batch, self.tokens], rest].concat(),
        }
    }

    /// Initial states, if there are any: one per sequence, or a pool and the slot of each sequence.
    pub(in crate::cases) fn states(
        &self,
        draw: &mut TensorRng,
        state: &[usize],
        dtype: DType,
        deviation: f64,
    ) -> TensorMap {
        let mut states = TensorMap::new();
        if !self.initial {
            return states;
        }
        let count = self.pool.unwrap_or(self.batch);
        let mut all = draw.normals(&[&[count], state].concat(), dtype, deviation);
        if self.pool.is_some() {
            let indices = slots(draw, self.batch, count, self.padding);
            all = poison_unused(&all, &indices);
            states.insert("state_indices".to_owned(), integers(&indices));
        }
        states.insert("initial_state".to_owned(), all);
        states
    }
}

/// Value of unused slots, so that reading or overwriting one is detected.
const SLOT_POISON: f64 = 1e30;

/// The pool with [`SLOT_POISON`] in every slot that `indices` does not name.
fn poison_unused(pool: &Tensor, indices: &[i32]) -> Tensor {
    let mut values = pool.to_f64();
    let slots = pool.shape()[0];
    let size = values.len() / slots.max(1);
    for slot in (0..slots).filter(|slot| !indices.contains(&(*slot as i32))) {
        values[slot * size..][..size].fill(SLOT_POISON);
    }
    Tensor::new(pool.shape(), values).cast(pool.dtype())
}
