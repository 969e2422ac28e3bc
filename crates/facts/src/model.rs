use crate::Fact;
use serde::{Deserialize, Serialize};

/// What a model needs of a machine, read from its config.json and, where they are there, its weight files' headers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// The config that was read.
    pub config: String,
    /// `architectures` of the config, or its `model_type`.
    pub architecture: String,
    /// The family that reads this config: `granite-hybrid`.
    pub family: String,
    /// Its layers by kind, in the order they first come.
    pub layers: Vec<LayerGroup>,
    /// The kernels each kind needs, for each environment.
    pub kernels: Vec<KernelNeed>,
    /// Whether it fits, in bytes.
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

/// One package with kernels that one kind of layer wants, in one environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNeed {
    /// The kind of layer.
    pub layer: String,
    /// The package on PyPI.
    pub package: String,
    /// The functions taken from it.
    pub functions: Vec<String>,
    /// The environment's folder; `None` where no environment was read.
    pub env: Option<String>,
    /// How it stands.
    pub status: KernelStatus,
    /// Why, in one sentence.
    pub reason: String,
    /// What runs in its place when it is missing, and whether anybody is told.
    pub otherwise: String,
}

/// How a kernel package stands in an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KernelStatus {
    /// Installed, with its compiled file where it has one, and nothing found against it.
    Ready,
    /// Not installed.
    Missing,
    /// Installed and yet of no use.
    Broken,
    /// Not needed to run at full speed.
    Optional,
    /// Nothing here could run it: no NVIDIA GPU, no CUDA torch, or no environment.
    Unusable,
}

/// Memory of a model, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelMemory {
    /// Parameters, counted from the headers of the weight files, else by the shapes the config gives.
    pub parameters: Option<Fact<u64>>,
    /// Bytes of the weights.
    pub weights_bytes: Option<Fact<u64>>,
    /// Recurrent and convolution state of one sequence, whatever its length.
    pub state_bytes_per_sequence: u64,
    /// Keys and values (or their latent form) of one token of one sequence.
    pub cache_bytes_per_token: u64,
    /// Tokens of each sequence the verdict is for.
    pub context_tokens: u64,
    /// Sequences the verdict is for.
    pub sequences: u64,
    /// Activations of the longest step, an estimate: the widest layer over one chunk of a prompt, and the logits.
    pub workspace_bytes: u64,
    /// What the CUDA driver and its libraries keep for themselves in each process, an estimate.
    pub runtime_bytes: u64,
    /// All of it together.
    pub needed_bytes: Option<u64>,
    /// What the largest GPU has free; where there is none, the host's memory.
    pub available: Option<Fact<u64>>,
    /// Whether it fits.
    pub fits: Option<bool>,
    /// What is left; negative when it does not fit.
    pub left_bytes: Option<i64>,
    /// The longest context that many sequences can have here.
    pub longest_context_tokens: Option<u64>,
}
