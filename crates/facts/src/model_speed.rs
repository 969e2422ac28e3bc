use crate::{BackendKind, ParityRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `firstlight bench model` prints, and what `models.json` of a run folder holds: how fast a model runs, and the
/// checks that allow it to be said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeedReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Its name, or its folder.
    pub model: String,
    /// The family it is of.
    pub family: String,
    /// Whether its weights are random.
    pub random: bool,
    /// Layers.
    pub layers: u64,
    /// Parameters.
    pub parameters: u64,
    /// Weights that one token passes.
    pub weights_per_token: u64,
    /// Where it ran.
    pub backend: BackendKind,
    /// The GPU, or the processor's model.
    pub device: String,
    /// Storage type of weights and caches: `f32`, `bf16`.
    pub dtype: String,
    /// Type of the scan's states, where it is not the usual one: `bfloat16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<String>,
    /// Sequences at once.
    pub sequences: u64,
    /// Seconds that loading took: reading or drawing the weights, and laying them out for the device.
    pub load_seconds: Option<f64>,
    /// The engine against the reference, with one layer of each kind; then the models of an installed package, whole.
    pub checks: Vec<ParityRow>,
    /// Timed tests.
    pub speeds: Vec<ModelSpeed>,
    /// What was not timed and why, one sentence each.
    pub not_timed: Vec<String>,
}

/// One timed test of a model. Only an engine that passed every check has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeed {
    /// `pp512`, `tg128@8192`.
    pub test: String,
    /// What ran it: an installed package's model, as the checks name it. `None` for firstlight's own engine.
    #[serde(default)]
    pub peer: Option<String>,
    /// Tokens timed of each sequence.
    pub tokens: u64,
    /// Tokens before them.
    pub depth: u64,
    /// Sequences at once.
    pub sequences: u64,
    /// Mean of the samples: tokens a second of all sequences together.
    pub mean_tokens_per_second: f64,
    /// Standard deviation of the samples; `None` for a single one.
    pub deviation_tokens_per_second: Option<f64>,
    /// The samples in the order they were taken.
    pub samples_tokens_per_second: Vec<f64>,
    /// Of prompts that nothing stands before.
    pub first_token: Option<FirstToken>,
    /// Of decoding.
    pub limit: Option<DecodeLimit>,
    /// Kernels that ran while it was timed, the first time that counts as cold included. Each ran in the checks too.
    pub launches: BTreeMap<String, u64>,
}

/// How long a prompt's reader waits for the logits of the first token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstToken {
    /// Milliseconds the first time, kernels perhaps not compiled and memory untouched.
    pub cold_ms: f64,
    /// Median milliseconds of the samples.
    pub warm_ms: f64,
}

/// What memory allows decoding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DecodeLimit {
    /// Bytes that a step moves at least: weights, states read and written, caches.
    pub bytes_per_step: u64,
    /// What the device reads of memory, measured around the test, in 1e9 bytes per second.
    pub read_gbps: f64,
    /// Tokens a second of all sequences that this allows.
    pub tokens_per_second: f64,
    /// The mean rate as a part of it, in percent.
    pub percent: f64,
}
