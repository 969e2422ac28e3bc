//! What an engine takes of its device's memory, counted before it takes it.

use crate::layers::{GatedMlp, LatentShape};
use crate::pages::{BLOCK, Pages};
use crate::params::Projection;
use crate::{Architecture, Capacity, Layer, Mixer, ModelError, Storage};
use device::{Device, Isa};
use facts::{BackendKind, Fact, byte_count};

/// The largest block that glibc may keep once it is let go, instead of giving it back.
const KEPT_BLOCK: u64 = 32 << 20;

/// How an engine holds a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Bytes of a projection's weight: more than was asked for where the device multiplies nothing narrower.
    pub weight_bytes: usize,
    /// Bytes of a cached key or value.
    pub cache_bytes: usize,
    /// Pools of recurrent states: two where a step writes one while it reads the other.
    pub state_pools: usize,
    /// Bytes of a value between two kernels; the residual stream is float32 everywhere.
    pub activation_bytes: usize,
    /// Whether the embedding lies on the device, or its rows are read from the files.
    pub embedding: bool,
    /// Whether weights are decoded in the same memory before they are laid out for the kernels.
    pub decodes: bool,
}

impl Holding {
    /// How the engine of a device holds weights and caches of a type.
    pub fn of(device: &Device, storage: Storage) -> Self {
        let capabilities = device.capabilities();
        let host = capabilities.backend == BackendKind::Cpu;
        let wide = host && capabilities.isas.first() != Some(&Isa::Avx512Bf16);
        Self {
            weight_bytes: if wide { size_of::<f32>() } else { storage.bytes() },
            cache_bytes: storage.bytes(),
            state_pools: if host { 2 } else { 1 },
            activation_bytes: if host { WIDE } else { storage.bytes() },
            embedding: !host,
            decodes: host,
        }
    }
}

/// The largest step of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestStep {
    /// Tokens, of all sequences.
    pub tokens: usize,
    /// Tokens whose logits are wanted.
    pub logits: usize,
}

/// Bytes of a device's memory that an engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Recurrent states of all sequences.
    pub states: u64,
    /// Key/value pools.
    pub caches: u64,
    /// Activations and logits of the largest step.
    pub workspace: u64,
    /// The largest part of the weights that lies there twice while it is loaded.
    pub loading: u64,
    /// What the allocator keeps of such parts.
    pub kept: u64,
    capacity: Capacity,
}

impl Footprint {
    /// What an engine takes for a model.
    pub fn new(
        architecture: &Architecture,
        holding: Holding,
        capacity: Capacity,
        step: LargestStep,
    ) -> Self {
        let mixers = || architecture.layers.iter().map(|layer| &layer.mixer);
        let (weights, loading, kept) = weights(architecture, holding);
        let pools = holding.state_pools;
        let states_of = |mixer: &Mixer| product(&[mixer.states(), capacity.sequences, pools, WIDE]);
        let pooled = Pages::needed(capacity.sequences, capacity.tokens).saturating_mul(BLOCK);
        let rows = architecture.layers.iter().map(widest).max().unwrap_or(0);
        let activations = product(&[step.tokens, rows, holding.activation_bytes])
            .saturating_add(product(&[step.tokens, 3 * architecture.hidden, WIDE]));
        let logits = product(&[2, step.logits, architecture.vocabulary, WIDE]);
        Self {
            weights,
            states: mixers().map(states_of).fold(0, u64::saturating_add),
            caches: product(&[mixers().map(Mixer::cached).sum(), pooled, holding.cache_bytes]),
            workspace: activations.saturating_add(logits),
            loading,
            kept,
            capacity,
        }
    }

    /// The most that is taken at once: when the last weights are loaded, or in the largest step.
    pub fn peak(&self) -> u64 {
        [self.states, self.caches, self.beside()]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }

    /// What is taken beside weights, states and caches.
    fn beside(&self) -> u64 {
        self.workspace.max(self.loading).saturating_add(self.kept)
    }

    /// The sum and what it is for, in words.
    pub fn told(&self) -> String {
        let [peak, weights, states, caches, workspace] =
            [self.peak(), self.weights, self.states, self.caches, self.beside()].map(byte_count);
        format!(
            "{peak}: weights {weights}, states {states}, caches {caches}, workspace {workspace}"
        )
    }

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// [`ModelError::Memory`] with what is needed and for what, what is free, and what to reduce.
    pub fn hold_against(&self, free: &Fact<u64>) -> Result<(), ModelError> {
        if self.peak() <= free.value {
            return Ok(());
        }
        let Capacity { sequences, tokens } = self.capacity;
        let (needs, left) = (self.told(), byte_count(free.value));
        let what = format!("the model needs {needs}; {left} are free ({})", free.source);
        let hint = if self.weights > free.value {
            "the weights alone are more than what is free: take --dtype bf16, a smaller model, or a device with more memory".to_owned()
        } else {
            format!(
                "it is for {sequences} x {tokens} tokens: ask for fewer or shorter sequences, or a smaller --chunk; `firstlight ps` shows who has the memory"
            )
        };
        Err(ModelError::Memory { what, hint })
    }
}

/// Bytes of a float32.
const WIDE: usize = size_of::<f32>();

/// Numbers that a person asked for can be of any size.
fn product(of: &[usize]) -> u64 {
    of.iter().fold(1, |all: u64, one| all.saturating_mul(*one as u64))
}

/// Bytes of all weights, what of them lies there twice at the most while they are loaded one by one, and what of that the
/// allocator keeps.
fn weights(architecture: &Architecture, holding: Holding) -> (u64, u64, u64) {
    let matrices = matrices(architecture);
    let (mut loaded, mut highest, mut kept) = (0, 0, 0);
    for values in &matrices {
        let bytes = values * holding.weight_bytes as u64;
        // What was decoded is let go once it is laid out.
        let decoded = if holding.decodes { bytes } else { 0 };
        loaded += bytes;
        highest = highest.max(loaded + decoded);
        kept = kept.max(if decoded < KEPT_BLOCK { decoded } else { 0 });
    }
    let table = architecture.params.get(architecture.embedding).len() as u64;
    let embedding = if architecture.is_tied() { 0 } else { table };
    // Norms, convolutions and the like are float32 everywhere.
    let others = architecture.params.count() - matrices.iter().sum::<u64>() - embedding;
    let embedding = if holding.embedding { embedding * holding.weight_bytes as u64 } else { 0 };
    (loaded + others * size_of::<f32>() as u64 + embedding, highest - loaded, kept)
}

/// Values of each matrix, in the order in which engines load them.
fn matrices(architecture: &Architecture) -> Vec<u64> {
    let values = |projection: &Projection| (projection.outputs() * projection.inputs) as u64;
    let gated = |of: &GatedMlp| [values(&of.gate_up), values(&of.down)];
    let mut all = Vec::new();
    for layer in &architecture.layers {
        match &layer.mixer {
            Mixer::Mamba2(of) => all.extend([&of.in_proj, &of.out_proj].map(values)),
            Mixer::Attention(of) => all.extend([&of.qkv, &of.out].map(values)),
            Mixer::Kda(of) => all.extend([&of.project, &of.decay, &of.gate, &of.out].map(values)),
            Mixer::Latent(of) => {
                let up = of.key_up.iter().chain(&of.value_up);
                all.extend(up.map(|rows| (rows.count * of.shape.rank) as u64));
                all.extend([&of.project, &of.out].map(values));
            }
        }
        if let Some(experts) = &layer.experts {
            all.push(values(&experts.router));
            all.extend(experts.experts.iter().flat_map(gated));
        }
        all.extend(layer.mlp.iter().flat_map(gated));
    }
    all.push(values(&architecture.head));
    all
}

/// Values that a layer has of a token where it has the most, counted from what its parts take and give.
fn widest(layer: &Layer) -> usize {
    let mixer = match &layer.mixer {
        Mixer::Mamba2(of) => 2 * of.in_proj.outputs() + 3 * of.shape.inner(),
        Mixer::Attention(of) => 2 * of.qkv.outputs() + 2 * of.out.inputs,
        Mixer::Kda(of) => 2 * of.project.outputs() + 4 * of.heads * of.head_dim,
        Mixer::Latent(of) => {
            let LatentShape { heads, rank, value, .. } = of.shape;
            of.project.outputs() + heads * (of.shape.cached() + rank + 2 * value)
        }
    };
    let gated = |of: &GatedMlp| of.gate_up.outputs() + of.down.inputs;
    let experts = layer.experts.iter().flat_map(|experts| &experts.experts);
    let gated = experts.chain(&layer.mlp).map(gated).max().unwrap_or(0);
    mixer.max(gated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    fn of(name: &str, tokens: usize) -> Footprint {
        let architecture = Architecture::of(&shape(name).unwrap()).unwrap();
        let holding = Holding {
            weight_bytes: 2,
            cache_bytes: 2,
            state_pools: 1,
            activation_bytes: 2,
            embedding: true,
            decodes: false,
        };
        let capacity = Capacity { sequences: 1, tokens };
        Footprint::new(&architecture, holding, capacity, LargestStep { tokens: 1, logits: 1 })
    }

    #[test]
    fn published_models_take_what_their_shapes_say() {
        // Weights in bytes by the published counts, states in float32, cache of a token.
        for (name, weights, states, cached) in [
            ("granite-4.0-h-micro", 6.38e9, (72 << 20) + 36 * 4352 * 3 * 4, 8 << 10),
            ("granite-4.0-h-tiny", 13.88e9, (54 << 20) + 36 * 3328 * 3 * 4, 8 << 10),
            ("kimi-linear-48b-a3b", 98.25e9, (40 << 20) + 20 * 3 * 4096 * 3 * 4, 7 * 576 * 2),
        ] {
            let [short, long] = [64, 128].map(|tokens| of(name, tokens));
            assert!((short.weights as f64 / weights - 1.0).abs() < 2e-3, "{name} {short:?}");
            assert_eq!((short.states, long.caches - short.caches), (states, 64 * cached), "{name}");
        }
    }

    #[test]
    fn what_does_not_fit_says_what_to_reduce() {
        let micro = of("granite-4.0-h-micro", 4096);
        assert!(micro.hold_against(&Fact::new(micro.peak(), "meminfo")).is_ok());
        for (free, hint) in [(micro.peak() - 1, "fewer or shorter"), (1 << 30, "weights alone")] {
            let error = micro.hold_against(&Fact::new(free, "meminfo")).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("weights 6.38 GB = 5.95 GiB") && said.ends_with("(meminfo)"),
                "{said}"
            );
            assert!(error.hint().unwrap().contains(hint), "{error:?}");
        }
    }
}
