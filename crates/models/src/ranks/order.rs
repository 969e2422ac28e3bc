//! The orders of rank 0, as they are sent.

use crate::engine::{Batch, Capacity, LogitsSelection, Storage};
use crate::{
    Choice, Config, LargestStep, Model, ModelError, ModelSource, Sampling, ShardRank, StateType,
};
use facts::BackendKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Open(OpenRequest),
    Step {
        batch: Batch,
        wanted: LogitsSelection,
    },
    Choose {
        batch: Batch,
        how: Vec<Option<ChoiceMessage>>,
        count: usize,
    },
    Score {
        batch: Batch,
        tokens: Vec<u32>,
        count: usize,
    },
    BeginChoosing {
        batch: Batch,
        how: Vec<Option<ChoiceMessage>>,
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
    /// Copies a sequence to the host, identified by a number.
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
    /// Asks for the launches of each kernel.
    CountLaunches,
    Close,
}

/// A model that each rank opens its part of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenRequest {
    source: Source,
    /// Whether only the first layer of each kind is opened ([`crate::Architecture::one_layer_of_each_kind`]).
    each_kind: bool,
    /// Whether ranks have different layers (pipeline parallel) instead of a part of every layer.
    stages: bool,
    /// The backend.
    pub backend: BackendKind,
    /// Storage type of weights and caches.
    pub storage: Storage,
    /// Type of the states of Mamba-2's scan; set by [`crate::Ranks::open`].
    #[serde(with = "StateTypeMessage")]
    pub(super) states: StateType,
    /// Number of sequences and tokens.
    #[serde(with = "CapacityMessage")]
    pub capacity: Capacity,
    /// The largest step to allocate memory for.
    #[serde(with = "LargestStepMessage")]
    pub step: LargestStep,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Source {
    Folder(PathBuf),
    Random { path: String, config: String, seed: u64 },
}

/// Serializable copy of [`Capacity`]; its crate does not depend on serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Capacity")]
struct CapacityMessage {
    sequences: usize,
    tokens: usize,
}

/// Serializable copy of [`StateType`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "StateType")]
enum StateTypeMessage {
    F32,
    Bf16,
}

/// Serializable copy of [`LargestStep`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "LargestStep")]
struct LargestStepMessage {
    tokens: usize,
    logits: usize,
}

impl OpenRequest {
    /// Opens the whole model.
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

    /// Opens only one layer of each kind.
    #[must_use]
    pub(crate) fn one_layer_of_each_kind(self) -> Self {
        Self { each_kind: true, ..self }
    }

    /// Opens different layers on each rank.
    #[must_use]
    pub fn by_layers(self) -> Self {
        Self { stages: true, ..self }
    }

    /// Reads a rank's part of the model.
    ///
    /// # Errors
    /// As [`ModelSource::open`] and [`Model::part`].
    pub(crate) fn part(&self, place: ShardRank) -> Result<Model, ModelError> {
        let model = self.model()?.with_scan_states(self.states)?;
        if self.stages { model.stage(place) } else { model.part(place) }
    }

    /// Reads the whole model.
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

/// Serializable copy of a [`Choice`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ChoiceMessage {
    /// Sampling parameters as bits: decimal text may lose the last digit.
    numbers: [u64; 6],
    /// Tokens with the bits of their biases.
    logit_bias: Vec<(u32, u32)>,
    top_k: Option<usize>,
    seed: u64,
    /// The tokens if penalties count them, otherwise their number.
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

impl ChoiceMessage {
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

    pub(super) fn with_choices(self) -> OwnedChoice {
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
        OwnedChoice { sampling, prompt, added, mask, stop_ids, logits }
    }
}

/// An owned [`Choice`].
pub(super) struct OwnedChoice {
    sampling: Sampling,
    prompt: Vec<u32>,
    added: Vec<u32>,
    mask: Option<Vec<u32>>,
    stop_ids: Vec<u32>,
    logits: bool,
}

impl OwnedChoice {
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
    fn choice_round_trips() {
        let sampling = Sampling {
            logit_bias: vec![(7, -0.1), (300, 100.0)],
            repetition_penalty: 1.1,
            temperature: 0.7,
            top_k: Some(5),
            seed: u64::MAX,
            ..Sampling::default()
        };
        let choice = Choice { prompt: &[1, 2], added: &[3], ..Choice::by(&sampling) };
        let sent = serde_json::to_vec(&ChoiceMessage::of(&choice)).unwrap();
        let with_choices = serde_json::from_slice::<ChoiceMessage>(&sent).unwrap().with_choices();
        let arrived = with_choices.choice();
        assert_eq!(arrived.sampling, &sampling);
        assert_eq!((arrived.prompt, arrived.added), (choice.prompt, choice.added));
    }
}
