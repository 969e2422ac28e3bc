//! Running a model: an engine holds weights, states and caches on its device and advances many sequences at once.

use crate::choice::{Choice, Drawn, choose_by_steps};
use crate::logprobs::{self, TokenLogprobs};
use crate::pages::{BLOCK, Pages};
use crate::{Architecture, Checkpoint, Config, ModelError, Ranks, Saved, StepBudget, read_config};
pub(crate) use architectures::Capacity;
use architectures::{Holding, Keeps, Place, StateType};
use device::{Device, Isa};
use facts::BackendKind;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

mod kind;
pub use kind::{ENGINES, EngineKind, engine_kind, open};

/// What an engine loads: a model's folder, read and checked, or random weights.
#[derive(Debug)]
pub struct Model {
    /// What its config describes.
    pub architecture: Architecture,
    /// Its weights.
    pub checkpoint: Checkpoint,
    /// Of a part of a model: the ranks that have the rest.
    pub(crate) ranks: Option<Ranks>,
}

impl Model {
    /// Reads config.json and the headers of the weight files of a folder, or the header of a GGUF file, and holds the two against each
    /// other.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let config = read_config(folder)?;
        // A model that does not run is refused before its weights are looked at.
        Architecture::of(&config)?;
        let checkpoint = Checkpoint::open(folder)?;
        let architecture = checkpoint.describe(&config)?;
        Ok(Self { architecture, checkpoint, ranks: None })
    }

    /// Bytes of its weights that an engine of this device reads when it is opened. On the processor the rows of an embedding
    /// that is no head too are read when a token wants them.
    pub fn bytes_to_load(&self, device: &Device) -> u64 {
        let all = match self.architecture.place.ranks * self.architecture.stage.ranks {
            1 => self.checkpoint.bytes(),
            _ => self.architecture.params.iter().map(|param| self.checkpoint.bytes_of(param)).sum(),
        };
        let on_host = device.capabilities().backend == BackendKind::Cpu;
        let loaded = self.architecture.is_tied() && self.architecture.ends_here();
        if !on_host || loaded {
            return all;
        }
        let table = self.architecture.params.get(self.architecture.embedding);
        all.saturating_sub(self.checkpoint.bytes_of(table))
    }

    /// The same with the states of Mamba-2's scan held in a type.
    ///
    /// # Errors
    /// [`ModelError::States`] where a model has others, and not in float32.
    pub fn with_scan_states(self, held: StateType) -> Result<Self, ModelError> {
        let architecture = self.architecture.with_scan_states(held)?;
        Ok(Self { architecture, ..self })
    }

    /// What one process has of a whole model whose layers are shared out, to be opened with the others ([`Ranks::open`]).
    ///
    /// # Errors
    /// [`ModelError::Split`] saying what does not split so.
    pub fn stage(self, stage: Place) -> Result<Self, ModelError> {
        let architecture = self.architecture.stage(stage)?;
        Ok(Self { architecture, ..self })
    }

    /// What one rank has of a whole model, to be opened with the others ([`Ranks::open`]).
    ///
    /// # Errors
    /// [`ModelError::Split`] saying what does not split so.
    pub fn part(self, place: Place) -> Result<Self, ModelError> {
        let architecture = self.architecture.shard(place)?;
        Ok(Self { architecture, ..self })
    }

    /// A model that a config describes, with random weights.
    ///
    /// # Errors
    /// [`ModelError`] naming the key of the config that is missing or wrong.
    pub fn random(config: &Config, seed: u64) -> Result<Self, ModelError> {
        let architecture = Architecture::of(config)?;
        let checkpoint = Checkpoint::random(&architecture, seed);
        Ok(Self { architecture, checkpoint, ranks: None })
    }
}

/// What weights and key/value caches are stored in. Recurrent states are float32, unless another [`StateType`] is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// How the engine of a device holds weights and caches of a type.
pub fn holding(device: &Device, storage: Storage) -> Holding {
    let capabilities = device.capabilities();
    let host = capabilities.backend == BackendKind::Cpu;
    let wide = host && capabilities.isas.first() != Some(&Isa::Avx512Bf16);
    held(host, wide, storage)
}

/// The same of GPUs, whether one is here or not.
pub fn holding_on_gpus(storage: Storage) -> Holding {
    held(false, false, storage)
}

/// Of the processor or of GPUs; `wide` where weights are made float32.
fn held(host: bool, wide: bool, storage: Storage) -> Holding {
    Holding {
        weight_bytes: if wide { size_of::<f32>() } else { storage.bytes() },
        cache_bytes: storage.bytes(),
        conv_bytes: size_of::<f32>(),
        block: BLOCK,
        // The one for padding.
        spare_blocks: 1,
        state_pools: if host { 2 } else { 1 },
        activation_bytes: if host { size_of::<f32>() } else { storage.bytes() },
        keeps: match (host, storage) {
            (false, _) => Keeps::Projections,
            (true, Storage::Bf16) => Keeps::Integers,
            (true, Storage::F32) => Keeps::Nothing,
        },
        embedding: !host,
    }
}

/// Of which tokens a step gives logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// Of every token of the batch.
    Every,
    /// Of the last token of each sequence.
    Last,
    /// No logits: the hidden states of every token after the last norm, `[tokens, hidden]`, are returned instead.
    Hidden,
}

/// Tokens to advance sequences by: some of a prompt, or the one that was just chosen, of any number of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// The batch with the next tokens of one more sequence, which has one of the engine's slots.
    #[must_use]
    pub fn with(mut self, sequence: usize, tokens: &[u32]) -> Self {
        self.add(sequence, tokens.iter().copied());
        self
    }

    /// Adds the next tokens of one more sequence.
    pub(crate) fn add(&mut self, sequence: usize, tokens: impl IntoIterator<Item = u32>) {
        self.tokens.extend(tokens);
        self.sequences.push(sequence);
        self.offsets.push(self.tokens.len());
    }

    /// Whether it is of no sequence.
    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The tokens of all sequences, one behind the other.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The slots of its sequences.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.sequences.iter().copied()
    }

    /// Each sequence with its number of tokens.
    pub(crate) fn lengths(&self) -> Vec<(usize, usize)> {
        let lengths = self.offsets.windows(2).map(|ends| ends[1] - ends[0]);
        self.sequences.iter().copied().zip(lengths).collect()
    }

    /// Checks everything that can be wrong with a batch before a layer has seen it.
    pub(crate) fn check(&self, slots: usize, vocabulary: usize) -> Result<(), ModelError> {
        let refuse = |what: String| Err(ModelError::fault(what));
        let mut seen = vec![false; slots];
        for (sequence, tokens) in self.lengths() {
            match seen.get_mut(sequence) {
                None => {
                    return refuse(format!("there is no slot {sequence}, the engine has {slots}"));
                }
                Some(true) => return refuse(format!("sequence {sequence} is in the batch twice")),
                Some(seen) => *seen = true,
            }
            if tokens == 0 {
                return refuse(format!("sequence {sequence} has no tokens"));
            }
        }
        match self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => Err(ModelError::call(
                format!("token {token} is beyond the model's vocabulary of {vocabulary}"),
                "token ids come from the model's own tokenizer, and count from 0",
            )),
            None if self.tokens.is_empty() => refuse("there are no tokens".to_owned()),
            None => Ok(()),
        }
    }
}

/// A model on a device. Each sequence has a slot: its row in the pools of recurrent states, and its blocks of the caches.
pub trait Engine: Send {
    /// The model.
    fn architecture(&self) -> &Architecture;
    /// The device; its counters tell which kernels ran.
    fn device(&self) -> &Device;
    /// Bytes a second that the device reads of memory in which nothing is found twice, measured now: the limit of
    /// decoding, which reads all weights for each token.
    fn read_bandwidth(&self) -> f64;
    /// Tokens of prompts that are best read in one step.
    fn chunk(&self) -> usize {
        // An engine that is open has a kind.
        engine_kind(self.device()).map_or(1, |kind| kind.chunk)
    }
    /// How much a scheduler best gives it to do at once.
    fn budget(&self) -> StepBudget {
        let of = |kind: &EngineKind| StepBudget {
            tokens: kind.chunk,
            beside: kind.beside,
            patience: kind.patience,
            ahead: kind.ahead,
        };
        engine_kind(self.device())
            .map_or(StepBudget { tokens: 1, beside: 1, patience: Duration::MAX, ahead: 1 }, of)
    }
    /// Which blocks of the caches its sequences have.
    fn pages(&self) -> &Pages;
    /// Plans or records a step by one token of so many sequences, of up to so many tokens; whether that was missing.
    ///
    /// # Errors
    /// What the device says.
    fn prepare(&mut self, _sequences: usize, _tokens: usize) -> Result<bool, ModelError> {
        Ok(false)
    }
    /// Advances the sequences of a batch, and gives logits `[tokens or sequences, vocabulary]`.
    ///
    /// # Errors
    /// [`ModelError`] when a token or sequence is none of the model's, or the cache has no room; then no sequence was
    /// advanced. Also when a layer's values overflow: then the engine's sequences are lost.
    fn step(&mut self, batch: &Batch, wanted: Wanted) -> Result<Vec<f32>, ModelError>;
    /// Advances the sequences of a batch, and chooses the token that follows in each for which `how` says how. Where each has one
    /// token, this is done `count` times, each time by the token that was just chosen; by the last of them a sequence is not
    /// advanced.
    ///
    /// An engine whose device can choose copies no logits on the way, but for those that are wanted.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<Drawn>, ModelError> {
        choose_by_steps(self, batch, how, count)
    }
    /// Advances the sequences of a batch, and gives for each of its tokens how likely one of `tokens` is after it, with `count` of the
    /// likeliest, 20 at most.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn score(
        &mut self,
        batch: &Batch,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, ModelError> {
        let logits = self.step(batch, Wanted::Every)?;
        logprobs::on_host(self.device(), logits, tokens, count)
    }
    /// Begins to choose one token of each sequence, as [`Engine::choose`] does, and returns before it is chosen; whether the engine can,
    /// which it cannot by default. `more` where [`Engine::choose_more`] is to follow: then the sequences get place for a token more.
    /// Until [`Engine::chosen`] has given everything, no sequence of these may be advanced, copied or kept otherwise. One that is
    /// reset meanwhile is given no more tokens.
    ///
    /// # Errors
    /// As [`Engine::choose`].
    fn begin_choosing(
        &mut self,
        _batch: &Batch,
        _how: &[Option<Choice<'_>>],
        _more: bool,
    ) -> Result<bool, ModelError> {
        Ok(false)
    }
    /// Begins to choose the token after those in flight; whether it does: not where a sequence has ended, or there is no place.
    ///
    /// # Errors
    /// As [`Engine::choose`].
    fn choose_more(&mut self, _more: bool) -> Result<bool, ModelError> {
        Ok(false)
    }
    /// Waits for the oldest tokens in flight, one of each sequence; none of a sequence that has ended.
    ///
    /// # Errors
    /// As [`Engine::choose`], also where nothing was begun.
    fn chosen(&mut self) -> Result<Vec<Drawn>, ModelError> {
        Err(ModelError::fault("no tokens are being chosen"))
    }
    /// Tokens that a sequence has been advanced by.
    fn len(&self, sequence: usize) -> usize {
        self.pages().len(sequence)
    }
    /// Forgets a sequence, whose slot begins anew.
    fn reset(&mut self, sequence: usize);
    /// Lets an empty slot begin where another sequence ends: the two share its whole blocks, and its states are copied, with what it
    /// has of a block more. One that is to `keep` is there for others to begin with, and its blocks count as free.
    ///
    /// # Errors
    /// [`ModelError`] when the slot is not empty, or no block is free where one is to be copied.
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError>;
    /// Lets a sequence stay for others to begin with: its blocks count as free. An engine that cannot tell says so.
    fn keep(&mut self, _sequence: usize) -> bool {
        false
    }
    /// Bytes of the states of a sequence of so many tokens, and of its keys and values.
    fn bytes_of(&self, tokens: usize) -> u64;
    /// Bytes of the host's memory that a copy of such a sequence takes.
    fn bytes_to_save(&self, tokens: usize) -> u64 {
        self.bytes_of(tokens)
    }
    /// Makes room on the host for copies of so many bytes, where the device wants memory of a kind for them.
    ///
    /// # Errors
    /// [`ModelError`] when there is none; then nothing can be saved.
    fn reserve(&mut self, _bytes: u64) -> Result<(), ModelError> {
        Ok(())
    }
    /// Takes some more of that memory while there is nothing else to do, where taking it delays other work; whether there may be more.
    fn reserve_more(&mut self) -> bool {
        false
    }
    /// Whether [`Engine::save`] of a sequence would make neither the device nor the host wait.
    fn can_save(&self, _sequence: usize) -> bool {
        true
    }
    /// Whether a restored sequence is there: a step that advances it waits for that otherwise.
    fn has_arrived(&mut self, _sequence: usize) -> bool {
        true
    }
    /// Bytes per second at which copies come back from the host, where that takes time and was measured.
    fn bytes_per_second(&self) -> Option<f64> {
        None
    }
    /// Copies a sequence to the host. The engine goes on at once, and so may the slot: what is copied is the sequence as it is now.
    ///
    /// # Errors
    /// [`ModelError`] when there is no room; the sequence stays as it was.
    fn save(&mut self, sequence: usize) -> Result<Saved, ModelError>;
    /// Lets an empty slot go on where a sequence was when this engine saved it. The copy stays as it is.
    ///
    /// # Errors
    /// [`ModelError`] when the slot is not empty, or the caches have no room. The slot is to be reset then.
    fn restore(&mut self, saved: &Saved, to: usize) -> Result<(), ModelError>;
}
