//! Engines: an engine has a model's weights, states and caches on its device and advances many sequences at once.

use crate::choice::{Choice, SampledTokens, choose_by_steps};
use crate::logprobs::{self, TokenLogprobs};
use crate::pages::{BLOCK, Pages};
use crate::{
    Architecture, Checkpoint, Config, ModelError, Ranks, SavedSequence, StepBudget, read_config,
};
pub(crate) use architectures::Capacity;
use architectures::{ShardRank, StateType, UnexpandedWeights, WeightStorage};
use device::{Device, Isa};
use facts::{BackendKind, CompactCollect};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

mod kind;
pub use kind::{ENGINES, EngineKind, engine_kind, open};

/// Launches of each kernel on a device so far.
pub(crate) fn launches_of(device: &Device) -> BTreeMap<String, u64> {
    let launches = device.launches().snapshot().into_iter();
    launches.map(|(kernel, record)| (kernel, record.count)).compact_map()
}

/// The input of an engine: a model's folder, read and checked, or random weights.
#[derive(Debug)]
pub struct Model {
    /// The architecture that its config describes.
    pub architecture: Architecture,
    /// Its weights.
    pub checkpoint: Checkpoint,
    /// The ranks that have the other parts of a split model.
    pub(crate) ranks: Option<Ranks>,
}

impl Model {
    /// Reads config.json and the headers of a folder's weight files, or the header of a GGUF file, and checks that they
    /// agree.
    ///
    /// # Errors
    /// [`ModelError`] naming the file, key or tensor.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let config = read_config(folder)?;
        // Refuse a model that does not run before looking at its weights.
        Architecture::of(&config)?;
        let checkpoint = Checkpoint::open(folder)?;
        let architecture = checkpoint.describe(&config)?;
        Ok(Self { architecture, checkpoint, ranks: None })
    }

    /// Bytes of weights that an engine of this device reads when it is opened. On the CPU the rows of an untied
    /// embedding are read on demand.
    pub fn bytes_to_load(&self, device: &Device) -> u64 {
        let all = match self.architecture.place.ranks * self.architecture.stage.ranks {
            1 => self.checkpoint.bytes(),
            _ => self.architecture.params.iter().map(|param| self.checkpoint.bytes_of(param)).sum(),
        };
        let on_host = device.capabilities().backend == BackendKind::Cpu;
        let loaded = self.architecture.is_tied() && self.architecture.is_last_stage();
        if !on_host || loaded {
            return all;
        }
        let table = self.architecture.params.get(self.architecture.embedding);
        all.saturating_sub(self.checkpoint.bytes_of(table))
    }

    /// The model with the states of Mamba-2's scan stored in another type.
    ///
    /// # Errors
    /// [`ModelError::States`] when a model has other states and the type is not float32.
    pub fn with_scan_states(self, held: StateType) -> Result<Self, ModelError> {
        let architecture = self.architecture.with_scan_states(held)?;
        Ok(Self { architecture, ..self })
    }

    /// One process's layers of a whole model (pipeline parallel), to be opened with the others ([`Ranks::open`]).
    ///
    /// # Errors
    /// [`ModelError::Split`] naming what cannot be split this way.
    pub fn stage(self, stage: ShardRank) -> Result<Self, ModelError> {
        let architecture = self.architecture.stage(stage)?;
        Ok(Self { architecture, ..self })
    }

    /// One rank's part of a whole model (tensor parallel), to be opened with the others ([`Ranks::open`]).
    ///
    /// # Errors
    /// [`ModelError::Split`] naming what cannot be split this way.
    pub fn part(self, place: ShardRank) -> Result<Self, ModelError> {
        let architecture = self.architecture.shard(place)?;
        Ok(Self { architecture, ..self })
    }

    /// A model of a config with random weights.
    ///
    /// # Errors
    /// [`ModelError`] naming the config's key that is missing or wrong.
    pub fn random(config: &Config, seed: u64) -> Result<Self, ModelError> {
        let architecture = Architecture::of(config)?;
        let checkpoint = Checkpoint::random(&architecture, seed);
        Ok(Self { architecture, checkpoint, ranks: None })
    }
}

/// Storage type of weights and KV caches. Recurrent states are float32 unless another [`StateType`] is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// float32, for comparisons with references.
    F32,
    /// bfloat16, for speed.
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

    /// Tolerated relative error of the logits of a model of a few layers.
    pub fn tolerance(self) -> f64 {
        match self {
            Self::F32 => 1e-4,
            Self::Bf16 => 2e-2,
        }
    }

    /// Tolerated relative error between two implementations that both round, for a model of `layers` layers. Rounding
    /// errors of layers are independent and add in quadrature; a few layers have [`Storage::tolerance`].
    pub fn tolerance_of(self, layers: usize) -> f64 {
        const FEW: f64 = 4.0;
        self.tolerance() * (2.0 * layers as f64 / FEW).sqrt().max(1.0)
    }

    /// [`Storage::tolerance_of`] of a whole model, by its architecture.
    pub fn tolerance_between(self, architecture: &Architecture) -> f64 {
        // If two experts have nearly equal scores, rounding decides which one a token is routed to, and different
        // logits are correct. Logits of wrong arithmetic are uncorrelated, which is a relative error of 1.4.
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

/// How the engine of a device stores weights and caches of a type.
pub fn holding(device: &Device, storage: Storage) -> WeightStorage {
    let capabilities = device.capabilities();
    let host = capabilities.backend == BackendKind::Cpu;
    let wide = host && capabilities.isas.first() != Some(&Isa::Avx512Bf16);
    held(host, wide, storage)
}

/// [`holding`] of GPUs, whether one is present or not.
pub fn holding_on_gpus(storage: Storage) -> WeightStorage {
    held(false, false, storage)
}

/// For the CPU or GPUs; `wide` if weights are converted to float32.
fn held(host: bool, wide: bool, storage: Storage) -> WeightStorage {
    WeightStorage {
        weight_bytes: if wide { size_of::<f32>() } else { storage.bytes() },
        cache_bytes: storage.bytes(),
        conv_bytes: size_of::<f32>(),
        block: BLOCK,
        // The padding block.
        spare_blocks: 1,
        state_pools: if host { 2 } else { 1 },
        activation_bytes: if host { size_of::<f32>() } else { storage.bytes() },
        keeps: match (host, storage) {
            (false, _) => UnexpandedWeights::Projections,
            (true, Storage::Bf16) => UnexpandedWeights::Integers,
            (true, Storage::F32) => UnexpandedWeights::Nothing,
        },
        embedding: !host,
    }
}

/// Tokens whose logits are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogitsSelection {
    /// Every token of the batch.
    Every,
    /// The last token of each sequence.
    Last,
    /// None: the hidden states of every token after the last norm, `[tokens, hidden]`, are returned instead.
    Hidden,
}

/// Tokens that sequences are advanced by: chunks of prompts or single generated tokens, of any number of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) sequences: Vec<usize>,
    /// Start of each sequence's tokens, and the end.
    pub(crate) offsets: Vec<usize>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self { offsets: vec![0], ..Self::default() }
    }

    /// Adds the next tokens of one more sequence, given its slot.
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

    /// Whether it has no sequence.
    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The concatenated tokens of all sequences.
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

    /// Checks slots, tokens and lengths before any layer runs.
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

/// A model on a device. Each sequence has a slot: a row in the pools of recurrent states, and blocks of the caches.
pub trait Engine: Send {
    /// The model.
    fn architecture(&self) -> &Architecture;
    /// The device; its counters record which kernels ran.
    fn device(&self) -> &Device;
    /// Measured bytes per second that the device reads from memory without cache hits: the limit of decoding, which
    /// reads all weights for each token.
    fn read_bandwidth(&self) -> f64;
    /// Launches of each kernel so far, on all ranks of a split model together.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming a rank that has ended.
    fn launches(&self) -> Result<BTreeMap<String, u64>, ModelError> {
        Ok(launches_of(self.device()))
    }
    /// Best number of prompt tokens per step.
    fn chunk(&self) -> usize {
        // An open engine has a kind.
        engine_kind(self.device()).map_or(1, |kind| kind.chunk)
    }
    /// The best budget of a scheduler's steps.
    fn budget(&self) -> StepBudget {
        let of = |kind: &EngineKind| StepBudget {
            tokens: kind.chunk,
            max_mixed_tokens: kind.max_mixed_tokens,
            max_mixed_step: kind.max_mixed_step,
            decode_steps_in_flight: kind.decode_steps_in_flight,
        };
        engine_kind(self.device()).map_or(
            StepBudget {
                tokens: 1,
                max_mixed_tokens: 1,
                max_mixed_step: Duration::MAX,
                decode_steps_in_flight: 1,
            },
            of,
        )
    }
    /// The block tables of its sequences.
    fn pages(&self) -> &Pages;
    /// Plans or captures a decoding step for a number of sequences of up to `tokens` tokens; false if that was done
    /// before.
    ///
    /// # Errors
    /// The device's error.
    fn prepare(&mut self, _sequences: usize, _tokens: usize) -> Result<bool, ModelError> {
        Ok(false)
    }
    /// Advances the sequences of a batch and returns logits `[tokens or sequences, vocabulary]`.
    ///
    /// # Errors
    /// [`ModelError`] when a token or sequence is out of range or the cache has no room; then no sequence is advanced.
    /// Also when a layer's values overflow: then the engine's sequences are lost.
    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError>;
    /// Advances the sequences of a batch and chooses the next token of each sequence for which `how` is set. If each
    /// sequence has one token, this is repeated `count` times with the chosen tokens; the last chosen token does not
    /// advance its sequence.
    ///
    /// An engine whose device can sample copies no logits to the host, except those that are requested.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        choose_by_steps(self, batch, how, count)
    }
    /// Advances the sequences of a batch and returns, after each of its tokens, the log-probability of the token in
    /// `tokens` and of the `count` most likely ones, 20 at most.
    ///
    /// # Errors
    /// As [`Engine::step`].
    fn score(
        &mut self,
        batch: &Batch,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, ModelError> {
        let logits = self.step(batch, LogitsSelection::Every)?;
        logprobs::on_host(self.device(), logits, tokens, count)
    }
    /// Starts to choose one token of each sequence, as [`Engine::choose`] does, without waiting for it; returns whether
    /// the engine can, which by default it cannot. With `more`, [`Engine::choose_more`] will follow, and blocks for one
    /// more token are allocated. Until [`Engine::chosen`] has returned everything, none of these sequences may be
    /// advanced, copied or kept by other calls. A sequence that is reset in the meantime gets no more tokens.
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
    /// Starts to choose the token after those in flight; false if a sequence has ended or the cache has no room.
    ///
    /// # Errors
    /// As [`Engine::choose`].
    fn choose_more(&mut self, _more: bool) -> Result<bool, ModelError> {
        Ok(false)
    }
    /// Waits for the oldest tokens in flight, one for each sequence; none for a sequence that has ended.
    ///
    /// # Errors
    /// As [`Engine::choose`], and when nothing is in flight.
    fn chosen(&mut self) -> Result<Vec<SampledTokens>, ModelError> {
        Err(ModelError::fault("no tokens are being chosen"))
    }
    /// Tokens that a sequence has been advanced by.
    fn len(&self, sequence: usize) -> usize {
        self.pages().len(sequence)
    }
    /// Drops a sequence; its slot becomes empty.
    fn reset(&mut self, sequence: usize);
    /// Copies a sequence to an empty slot: the two share whole blocks; states and the partly filled block are copied.
    /// With `keep` the copy is a cached prefix, and its blocks count as free.
    ///
    /// # Errors
    /// [`ModelError`] when the slot is not empty, or a block has to be copied and none is free.
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError>;
    /// Turns a sequence into a cached prefix: its blocks count as free. Returns false if the engine does not support
    /// it.
    fn keep(&mut self, _sequence: usize) -> bool {
        false
    }
    /// Bytes of the states, keys and values of a sequence of `tokens` tokens.
    fn bytes_of(&self, tokens: usize) -> u64;
    /// Host memory for a copy of such a sequence, in bytes.
    fn bytes_to_save(&self, tokens: usize) -> u64 {
        self.bytes_of(tokens)
    }
    /// Allocates host memory for copies of this many bytes, if the device needs a special kind of memory for them.
    ///
    /// # Errors
    /// [`ModelError`] when there is too little; then nothing can be saved.
    fn reserve(&mut self, _bytes: u64) -> Result<(), ModelError> {
        Ok(())
    }
    /// Allocates more of that memory while the engine is idle, if allocating delays other work; returns whether there
    /// may be more to allocate.
    fn reserve_more(&mut self) -> bool {
        false
    }
    /// Whether [`Engine::save`] would make neither the device nor the host wait.
    fn can_save(&self, _sequence: usize) -> bool {
        true
    }
    /// Whether a restored sequence has arrived; a step that advances it earlier waits.
    fn has_arrived(&mut self, _sequence: usize) -> bool {
        true
    }
    /// Measured bytes per second of restores; `None` if restoring takes no time or was not measured.
    fn bytes_per_second(&self) -> Option<f64> {
        None
    }
    /// Copies a sequence to the host, in its current state. The engine and the slot can be used immediately.
    ///
    /// # Errors
    /// [`ModelError`] when there is no room; the sequence is unchanged.
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError>;
    /// Restores a saved sequence to an empty slot. The copy is unchanged.
    ///
    /// # Errors
    /// [`ModelError`] when the slot is not empty or the caches have no room. The slot must be reset then.
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError>;
}
