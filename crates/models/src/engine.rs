//! Running a model: an engine holds weights, states and caches on its device and advances many sequences at once.

use crate::sampler::likeliest;
use crate::{Architecture, Checkpoint, Config, ModelError, cpu, cuda};
use device::Device;
use facts::BackendKind;
use std::path::Path;

/// What an engine loads: a model's folder, read and checked, or random weights.
#[derive(Debug)]
pub struct Model {
    /// What its config describes.
    pub architecture: Architecture,
    /// Its weights.
    pub checkpoint: Checkpoint,
}

impl Model {
    /// Reads config.json and the headers of the weight files of a folder, and holds the two against each other.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let architecture = Architecture::of(&Config::read(folder)?)?;
        let checkpoint = Checkpoint::open(folder)?;
        checkpoint.check(&architecture)?;
        Ok(Self { architecture, checkpoint })
    }

    /// A model that a config describes, with random weights.
    ///
    /// # Errors
    /// [`ModelError`] naming the key of the config that is missing or wrong.
    pub fn random(config: &Config, seed: u64) -> Result<Self, ModelError> {
        let architecture = Architecture::of(config)?;
        let checkpoint = Checkpoint::random(&architecture, seed);
        Ok(Self { architecture, checkpoint })
    }
}

/// What weights and key/value caches are stored in. Recurrent states are float32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// float32: for comparing with references.
    F32,
    /// bfloat16: for speed.
    Bf16,
}

impl Storage {
    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The relative error that logits of a few layers may have in it.
    pub fn tolerance(self) -> f64 {
        match self {
            Self::F32 => 1e-4,
            Self::Bf16 => 2e-2,
        }
    }

    /// The same between two ways through a model of so many layers, both of which round. Rounding errors of layers are
    /// independent and add as their squares do; a few layers have [`Storage::tolerance`].
    pub fn tolerance_of(self, layers: usize) -> f64 {
        const FEW: f64 = 4.0;
        self.tolerance() * (2.0 * layers as f64 / FEW).sqrt().max(1.0)
    }

    /// The same for a whole model, by its architecture.
    pub fn tolerance_between(self, architecture: &Architecture) -> f64 {
        // Where two experts are rated alike, rounding decides which of them a token passes, and its logits are then rightly
        // others; logits of wrong arithmetic have nothing in common, which is a relative error of 1.4.
        const ROUTED: f64 = 0.5;
        let rounding = self.tolerance_of(architecture.layers.len());
        let flips = architecture.is_routed() && self == Self::Bf16;
        if flips { rounding.max(ROUTED) } else { rounding }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

/// What an engine makes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens of each, prompt and continuation; one sequence may take what others leave.
    pub tokens: usize,
}

/// Of which tokens a step gives logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Of every token of the batch.
    Every,
    /// Of the last token of each sequence.
    Last,
}

/// Tokens to advance sequences by: some of a prompt, or the one that was just chosen, of any number of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) sequences: Vec<usize>,
    /// Where each sequence's tokens begin, and the end.
    pub(crate) offsets: Vec<usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self { offsets: vec![0], ..Self::default() }
    }

    /// The batch with the next tokens of one more sequence, which is one of the engine's places.
    #[must_use]
    pub fn with(mut self, sequence: usize, tokens: &[u32]) -> Self {
        self.tokens.extend(tokens);
        self.sequences.push(sequence);
        self.offsets.push(self.tokens.len());
        self
    }

    /// The tokens of all sequences, one behind the other.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Each sequence with its number of tokens.
    pub(crate) fn lengths(&self) -> Vec<(usize, usize)> {
        let lengths = self.offsets.windows(2).map(|ends| ends[1] - ends[0]);
        self.sequences.iter().copied().zip(lengths).collect()
    }

    /// Checks everything that can be wrong with a batch before a layer has seen it.
    pub(crate) fn check(&self, places: usize, vocabulary: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::Call(what));
        let mut seen = vec![false; places];
        for (sequence, tokens) in self.lengths() {
            match seen.get_mut(sequence) {
                None => {
                    return refuse(format!(
                        "there is no place {sequence}, the engine has {places}"
                    ));
                }
                Some(true) => return refuse(format!("sequence {sequence} is in the batch twice")),
                Some(seen) => *seen = true,
            }
            if tokens == 0 {
                return refuse(format!("sequence {sequence} has no tokens"));
            }
        }
        match self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => refuse(format!(
                "token {token} is beyond the model's vocabulary of {vocabulary}, so the tokens are another model's"
            )),
            None if self.tokens.is_empty() => refuse("there are no tokens".to_owned()),
            None => Ok(()),
        }
    }
}

/// A model on a device.
pub trait Engine {
    /// The model.
    fn architecture(&self) -> &Architecture;
    /// The device; its counters tell which kernels ran.
    fn device(&self) -> &Device;
    /// Bytes a second that the device reads of memory in which nothing is found twice, measured now: the limit of
    /// decoding, which reads all weights for each token.
    fn read_bandwidth(&self) -> f64;
    /// Tokens of a prompt that are best read in one step.
    fn chunk(&self) -> usize {
        // An engine that is open has a kind.
        engine_kind(self.device()).map_or(1, |kind| kind.chunk)
    }
    /// Tokens that are best decoded at once where the device chooses them.
    fn ahead(&self) -> usize {
        engine_kind(self.device()).map_or(1, |kind| kind.ahead)
    }
    /// Advances the sequences of a batch, and gives logits `[tokens or sequences, vocabulary]`.
    ///
    /// # Errors
    /// [`ModelError`] when a token or sequence is none of the model's, or the cache has no place; then no sequence was
    /// advanced. Also when a layer's values overflow: then the engine's sequences are lost.
    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError>;
    /// Advances the sequences of a batch, one token of each, by `count` tokens: by that one, then each time by the likeliest
    /// that follows. Gives for each sequence the `count` tokens that were chosen, by the last of which it was not advanced.
    ///
    /// An engine whose device can choose gives no logits out on the way.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn decode_greedy(&mut self, batch: &Batch, count: usize) -> Result<Vec<Vec<u32>>, ModelError> {
        let vocabulary = self.architecture().vocabulary;
        let mut chosen = vec![Vec::with_capacity(count); batch.sequences.len()];
        let mut next = batch.clone();
        for _ in 0..count {
            let logits = self.step(&next, Wanted::Last)?;
            next.tokens = logits.chunks_exact(vocabulary).map(likeliest).collect();
            for (chosen, token) in chosen.iter_mut().zip(&next.tokens) {
                chosen.push(*token);
            }
        }
        Ok(chosen)
    }
    /// Tokens that a sequence has been advanced by.
    fn len(&self, sequence: usize) -> usize;
    /// Forgets a sequence, whose place begins anew.
    fn reset(&mut self, sequence: usize);
}

/// Loads a model onto a device.
type Open = fn(Model, Device, Storage, Capacity) -> Result<Box<dyn Engine>, ModelError>;

/// An engine, by its backend.
#[derive(Debug)]
pub struct EngineKind {
    /// The backend it is for.
    pub backend: BackendKind,
    /// Tokens of a prompt that are best read in one step.
    pub chunk: usize,
    /// Tokens that are best decoded at once: 1 where nothing is gained by more, and they would be waited for.
    pub ahead: usize,
    pub(crate) open: Open,
}

/// Every engine.
pub const ENGINES: &[EngineKind] = &[cpu::ENGINE, cuda::ENGINE];

/// The engine for a device.
///
/// # Errors
/// [`ModelError::Backend`].
pub fn engine_kind(device: &Device) -> Result<&'static EngineKind, ModelError> {
    let backend = device.capabilities().backend;
    ENGINES.iter().find(|engine| engine.backend == backend).ok_or(ModelError::Backend(backend))
}

/// Loads a model onto a device.
///
/// # Errors
/// [`ModelError::Backend`] when there is no engine for the device, and whatever is wrong with the weights' values.
pub fn open(
    model: Model,
    device: Device,
    storage: Storage,
    capacity: Capacity,
) -> Result<Box<dyn Engine>, ModelError> {
    (engine_kind(&device)?.open)(model, device, storage, capacity)
}
