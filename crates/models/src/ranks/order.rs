//! What rank 0 has the others do, as it is sent.

use crate::engine::{Batch, Capacity, Storage, Wanted};
use crate::{
    Choice, Config, LargestStep, Model, ModelError, ModelSource, Place, Sampling, StateType,
};
use facts::BackendKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Open(Opening),
    Step {
        batch: Batch,
        wanted: Wanted,
    },
    Choose {
        batch: Batch,
        how: Vec<Option<Wish>>,
        count: usize,
    },
    Score {
        batch: Batch,
        tokens: Vec<u32>,
        count: usize,
    },
    BeginChoosing {
        batch: Batch,
        how: Vec<Option<Wish>>,
        more: bool,
    },
    ChooseMore {
        more: bool,
    },
    Chosen,
    Reset(usize),
    Fork {
        from: usize,
        to: usize,
        keep: bool,
    },
    Keep(usize),
    Prepare {
        sequences: usize,
        tokens: usize,
    },
    Reserve(u64),
    ReserveMore,
    /// Copies a sequence to the host, under a number.
    Save {
        sequence: usize,
        copy: u64,
    },
    Restore {
        copy: u64,
        to: usize,
    },
    /// Drops copies.
    Forget(Vec<u64>),
    Close,
}

/// A model to be opened, each rank its part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opening {
    source: Source,
    /// Whether the first layer of each kind is all of it ([`crate::Architecture::one_layer_of_each_kind`]).
    each_kind: bool,
    /// Whether ranks have some of the layers each, in place of a part of every one.
    stages: bool,
    /// On which backend.
    pub backend: BackendKind,
    /// What weights and caches are stored in.
    pub storage: Storage,
    /// What the states of Mamba-2's scan are held in; [`crate::Ranks::open`] lays it.
    #[serde(with = "Held")]
    pub(super) states: StateType,
    /// What is made room for.
    #[serde(with = "Room")]
    pub capacity: Capacity,
    /// The largest step that it is to have memory for.
    #[serde(with = "Most")]
    pub step: LargestStep,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Source {
    Folder(PathBuf),
    Random { path: String, config: String, seed: u64 },
}

/// [`Capacity`], which the pure room does not serialise.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Capacity")]
struct Room {
    sequences: usize,
    tokens: usize,
}

/// [`StateType`], as above.
#[derive(Serialize, Deserialize)]
#[serde(remote = "StateType")]
enum Held {
    F32,
    Bf16,
}

/// [`LargestStep`], as above.
#[derive(Serialize, Deserialize)]
#[serde(remote = "LargestStep")]
struct Most {
    tokens: usize,
    logits: usize,
}

impl Opening {
    /// The whole of a model.
    pub fn new(
        source: &ModelSource,
        backend: BackendKind,
        storage: Storage,
        (capacity, step): (Capacity, LargestStep),
    ) -> Self {
        let source = match source {
            ModelSource::Folder(folder) => Source::Folder(folder.clone()),
            ModelSource::Random { config, seed } => {
                let (path, config) = (config.path().to_owned(), config.to_text());
                Source::Random { path, config, seed: *seed }
            }
        };
        let states = StateType::default();
        Self { source, each_kind: false, stages: false, backend, storage, states, capacity, step }
    }

    /// The same with one layer of each kind.
    #[must_use]
    pub(crate) fn one_layer_of_each_kind(self) -> Self {
        Self { each_kind: true, ..self }
    }

    /// The same with some of the layers on each rank.
    #[must_use]
    pub fn by_layers(self) -> Self {
        Self { stages: true, ..self }
    }

    /// Reads what a rank has of the model.
    ///
    /// # Errors
    /// As [`ModelSource::open`] and [`Model::part`].
    pub(crate) fn part(&self, place: Place) -> Result<Model, ModelError> {
        let model = self.model()?.with_scan_states(self.states)?;
        if self.stages { model.stage(place) } else { model.part(place) }
    }

    /// Reads the model, all of it.
    fn model(&self) -> Result<Model, ModelError> {
        let mut model = match &self.source {
            Source::Folder(folder) => Model::read(folder)?,
            Source::Random { path, config, seed } => {
                Model::random(&Config::parse(path, config)?, *seed)?
            }
        };
        if self.each_kind {
            model.architecture = model.architecture.one_layer_of_each_kind();
        }
        Ok(model)
    }
}

/// A [`Choice`] of one sequence.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wish {
    /// The rules' numbers as bits: a number in words may lose its last one.
    numbers: [u64; 6],
    /// Tokens with the bits of their biases.
    logit_bias: Vec<(u32, u32)>,
    top_k: Option<usize>,
    seed: u64,
    /// Tokens where some rule counts them, else how many there are.
    prompt: Tokens,
    added: Tokens,
    mask: Option<Vec<u32>>,
    stop_ids: Vec<u32>,
    logits: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Tokens {
    All(Vec<u32>),
    Count(usize),
}

impl Tokens {
    fn of(tokens: &[u32], counted: bool) -> Self {
        if counted { Self::All(tokens.to_vec()) } else { Self::Count(tokens.len()) }
    }

    fn into_all(self) -> Vec<u32> {
        match self {
            Self::All(tokens) => tokens,
            Self::Count(count) => vec![0; count],
        }
    }
}

impl Wish {
    pub(super) fn of(choice: &Choice<'_>) -> Self {
        let Sampling { top_k, seed, .. } = *choice.sampling;
        let of = choice.sampling;
        let numbers = [
            of.repetition_penalty,
            of.frequency_penalty,
            of.presence_penalty,
            of.temperature,
            of.top_p,
            of.min_p,
        ];
        let counted = of.penalises();
        Self {
            numbers: numbers.map(f64::to_bits),
            logit_bias: of.logit_bias.iter().map(|(id, bias)| (*id, bias.to_bits())).collect(),
            top_k,
            seed,
            prompt: Tokens::of(choice.prompt, counted),
            added: Tokens::of(choice.added, counted),
            mask: choice.mask.map(<[u32]>::to_vec),
            stop_ids: choice.stop_ids.to_vec(),
            logits: choice.logits,
        }
    }

    pub(super) fn granted(self) -> Granted {
        let [repetition_penalty, frequency_penalty, presence_penalty, temperature, top_p, min_p] =
            self.numbers.map(f64::from_bits);
        let biases = self.logit_bias.into_iter();
        let sampling = Sampling {
            logit_bias: biases.map(|(token, bias)| (token, f32::from_bits(bias))).collect(),
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            temperature,
            top_k: self.top_k,
            top_p,
            min_p,
            seed: self.seed,
        };
        let (prompt, added) = (self.prompt.into_all(), self.added.into_all());
        let Self { mask, stop_ids, logits, .. } = self;
        Granted { sampling, prompt, added, mask, stop_ids, logits }
    }
}

/// A [`Choice`] with what it borrows.
pub(super) struct Granted {
    sampling: Sampling,
    prompt: Vec<u32>,
    added: Vec<u32>,
    mask: Option<Vec<u32>>,
    stop_ids: Vec<u32>,
    logits: bool,
}

impl Granted {
    pub(super) fn choice(&self) -> Choice<'_> {
        Choice {
            sampling: &self.sampling,
            prompt: &self.prompt,
            added: &self.added,
            mask: self.mask.as_deref(),
            stop_ids: &self.stop_ids,
            logits: self.logits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_arrives_as_it_was_sent() {
        let sampling = Sampling {
            logit_bias: vec![(7, -0.1), (300, 100.0)],
            repetition_penalty: 1.1,
            temperature: 0.7,
            top_k: Some(5),
            seed: u64::MAX,
            ..Sampling::default()
        };
        let choice = Choice { prompt: &[1, 2], added: &[3], ..Choice::by(&sampling) };
        let sent = serde_json::to_vec(&Wish::of(&choice)).unwrap();
        let granted = serde_json::from_slice::<Wish>(&sent).unwrap().granted();
        let arrived = granted.choice();
        assert_eq!(arrived.sampling, &sampling);
        assert_eq!((arrived.prompt, arrived.added), (choice.prompt, choice.added));
    }
}
