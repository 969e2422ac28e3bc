use crate::Fact;
use serde::{Deserialize, Serialize};

/// The requirements of a model, from its config.json and, if available, the headers of its weight files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// The path of the config.
    pub config: String,
    /// `architectures` of the config, or its `model_type`.
    pub architecture: String,
    /// The family that reads this config: `granite-hybrid`.
    pub family: String,
    /// Its layers by kind, in order of first occurrence.
    pub layers: Vec<LayerGroup>,
    /// The kernel packages of each kind, by environment.
    pub kernels: Vec<KernelNeed>,
    /// Its memory, and whether it fits.
    pub memory: ModelMemory,
}

/// The layers of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerGroup {
    /// `mamba2`, `attention`, `kda`.
    pub kind: String,
    /// Which layers, counted from 0.
    pub indices: Vec<u32>,
}

/// A package that provides kernels for one kind of layer, in one environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNeed {
    /// The kind of layer.
    pub layer: String,
    /// The package on PyPI.
    pub package: String,
    /// The functions taken from it.
    pub functions: Vec<String>,
    /// The environment's folder; `None` if no environment was read.
    pub env: Option<String>,
    /// Its status.
    pub status: KernelStatus,
    /// Why, in one sentence.
    pub reason: String,
    /// The fallback if it is missing, and whether there is a warning.
    pub otherwise: String,
}

/// The status of a kernel package in an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelStatus {
    /// Installed, with its compiled file if it has one, and without findings.
    Ready,
    /// Not installed.
    Missing,
    /// Installed but unusable.
    Broken,
    /// Not needed for full speed.
    Optional,
    /// Unusable here: no NVIDIA GPU, no CUDA torch, or no environment.
    Unusable,
}

/// Memory of a model, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelMemory {
    /// Number of parameters, from the headers of the weight files, otherwise from the shapes in the config.
    pub parameters: Option<Fact<u64>>,
    /// Bytes of the weights.
    pub weights_bytes: Option<Fact<u64>>,
    /// Recurrent and convolution state per sequence, independent of its length.
    pub state_bytes_per_sequence: u64,
    /// Keys and values (or their latent form) per token of a sequence.
    pub cache_bytes_per_token: u64,
    /// Tokens of each sequence assumed by the verdict.
    pub context_tokens: u64,
    /// Sequences assumed by the verdict.
    pub sequences: u64,
    /// Activations of the largest step, estimated: the widest layer over one chunk of a prompt, and the logits.
    pub workspace_bytes: u64,
    /// Memory that the CUDA driver and its libraries use per process, estimated.
    pub runtime_bytes: u64,
    /// The sum.
    pub needed_bytes: Option<u64>,
    /// Free memory of the largest GPU; without one, of the host.
    pub available: Option<Fact<u64>>,
    /// Whether it fits.
    pub fits: Option<bool>,
    /// The remaining memory; negative if it does not fit.
    pub left_bytes: Option<i64>,
    /// The maximum context for this number of sequences.
    pub longest_context_tokens: Option<u64>,
}
