use crate::{BackendKind, ParityRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The report of `firstlight bench model`, which is also `models.json` in a run folder: the speed of a model, and the checks
/// that its engine must pass before it is timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeedReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Its name, or its folder.
    pub model: String,
    /// Its family.
    pub family: String,
    /// Whether its weights are random.
    pub random: bool,
    /// Layers.
    pub layers: u64,
    /// Parameters.
    pub parameters: u64,
    /// Parameters that the computation of one token uses (the active ones of a mixture of experts).
    pub weights_per_token: u64,
    /// The backend.
    pub backend: BackendKind,
    /// The GPU or CPU model.
    pub device: String,
    /// Storage type of weights and caches: `f32`, `bf16`.
    pub dtype: String,
    /// Type of the scan's states, if it is not the default: `bfloat16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<String>,
    /// Concurrent sequences.
    pub sequences: u64,
    /// Seconds of loading: reading or generating the weights and converting them for the device.
    pub load_seconds: Option<f64>,
    /// Checks of the engine against the reference, with one layer of each kind; then of the whole models of an
    /// installed package.
    pub checks: Vec<ParityRow>,
    /// Timed tests.
    pub speeds: Vec<ModelSpeed>,
    /// Workloads that were not timed, with the reason, one sentence each.
    pub not_timed: Vec<String>,
}

/// One timed test of a model. Only an engine that passed every check has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpeed {
    /// Its name as in llama-bench: `pp512` is prefill of 512 tokens, `tg128@8192` generation of 128 tokens after 8192.
    pub test: String,
    /// The installed package's model that ran it, as named in the checks; `None` for firstlight's own engine.
    #[serde(default)]
    pub peer: Option<String>,
    /// Timed tokens per sequence.
    pub tokens: u64,
    /// Number of tokens in the KV cache before them.
    pub depth: u64,
    /// Concurrent sequences.
    pub sequences: u64,
    /// Mean over samples: tokens per second of all sequences together.
    pub mean_tokens_per_second: f64,
    /// Standard deviation of the samples; `None` for a single one.
    pub deviation_tokens_per_second: Option<f64>,
    /// The samples in order.
    pub samples_tokens_per_second: Vec<f64>,
    /// For prefill without depth.
    pub first_token: Option<FirstToken>,
    /// For decoding.
    pub limit: Option<DecodeLimit>,
    /// Number of launches by kernel while it was timed, including the cold run. Each of these kernels also ran in the checks.
    pub launches: BTreeMap<String, u64>,
}

/// Time to the logits of the first token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstToken {
    /// Milliseconds of the first run, possibly with compilation and first use of memory.
    pub cold_ms: f64,
    /// Median milliseconds of the samples.
    pub warm_ms: f64,
}

/// The limit that memory bandwidth sets for decoding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DecodeLimit {
    /// Minimum bytes per step: weights, states read and written, caches.
    pub bytes_per_step: u64,
    /// Measured read bandwidth around the test, in 1e9 bytes per second.
    pub read_gbps: f64,
    /// The resulting tokens per second of all sequences.
    pub tokens_per_second: f64,
    /// The mean rate in percent of it.
    pub percent: f64,
}
