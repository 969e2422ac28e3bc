//! Memory of a model on a device, computed before any of it is allocated.

use crate::architecture::product;
use crate::layers::GatedMlp;
use crate::params::Param;
use crate::{Architecture, Layer, Mixer, RecurrentStateSize};
use facts::{Fact, byte_count};

/// The number of sequences and tokens to allocate for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Concurrent sequences.
    pub sequences: usize,
    /// Tokens of each, prompt and generated together; one sequence may use what others leave.
    pub tokens: usize,
}

/// How a model is stored on its device: by an engine of firstlight, or by Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightStorage {
    /// Bytes of a projection's weight: more than requested if the device multiplies nothing narrower.
    pub weight_bytes: usize,
    /// Bytes per cached key or value.
    pub cache_bytes: usize,
    /// Bytes per value of a convolution's state.
    pub conv_bytes: usize,
    /// Tokens per cache block.
    pub block: usize,
    /// Blocks in addition to those of sequences.
    pub spare_blocks: usize,
    /// Pools of recurrent states: two if a step writes one while it reads the other.
    pub state_pools: usize,
    /// Bytes per activation; the residual stream is always float32.
    pub activation_bytes: usize,
    /// Which weights stay quantized.
    pub keeps: UnexpandedWeights,
    /// Whether the embedding is in device memory, or its rows are read from the files.
    pub embedding: bool,
}

/// Which weights an engine does not expand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnexpandedWeights {
    /// Nothing.
    Nothing,
    /// Projections and experts that kernels read as stored (GPUs).
    Projections,
    /// All integer weights except matrices per head (CPU).
    Integers,
}

/// The largest step of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestStep {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Tokens whose logits are returned.
    pub logits: usize,
}

/// Device memory of a model in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Recurrent states of all sequences.
    pub states: u64,
    /// Keys and values, or their latent form.
    pub caches: u64,
    /// Activations and logits of the largest step, and other buffers of the engine.
    pub workspace: u64,
    /// Maximum memory of captured graphs and their shared tensors.
    pub recorded: u64,
    capacity: Capacity,
}

/// A model that is larger than the free memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ModelTooLarge {
    /// The required memory by purpose, and the free memory.
    pub what: String,
    /// The setting to reduce.
    pub hint: String,
}

impl Architecture {
    /// Bytes of one sequence's states, independent of its length.
    pub fn state_bytes(&self, holding: WeightStorage) -> u64 {
        let bytes = |mixer: &Mixer| {
            let convolved = mixer.states().convolved.saturating_mul(holding.conv_bytes as u64);
            self.recurrent_bytes(mixer).saturating_add(convolved)
        };
        let layers = self.layers.iter().map(|layer| bytes(&layer.mixer));
        layers.fold(0, u64::saturating_add).saturating_mul(holding.state_pools as u64)
    }

    /// Number of tokens whose cached values equal a sequence's states in size; 0 without a cache.
    pub fn state_tokens(&self) -> u64 {
        let values = |RecurrentStateSize { recurrent, convolved }: RecurrentStateSize| {
            recurrent.saturating_add(convolved)
        };
        let states = self.layers.iter().map(|layer| values(layer.mixer.states()));
        let cached: usize = self.layers.iter().map(|layer| layer.mixer.cached()).sum();
        states.fold(0, u64::saturating_add).checked_div(cached as u64).unwrap_or(0)
    }

    /// Cached bytes per token.
    pub fn cache_bytes(&self, holding: WeightStorage) -> u64 {
        let values = self.layers.iter().map(|layer| layer.mixer.cached()).sum();
        product(&[values, holding.cache_bytes])
    }
}

impl Footprint {
    /// The memory for a model.
    pub fn new(
        architecture: &Architecture,
        holding: WeightStorage,
        capacity: Capacity,
        step: LargestStep,
    ) -> Self {
        let Capacity { sequences, tokens } = capacity;
        let blocks = product(&[sequences, tokens.div_ceil(holding.block)])
            .saturating_add(holding.spare_blocks as u64);
        let rows = architecture.layers.iter().map(widest).max().unwrap_or(0);
        // A rank also stores its partial sum until the all-reduce, and zeros to start it from.
        let streams = if architecture.place.ranks > 1 { 5 } else { 3 };
        let activations = product(&[step.tokens, rows, holding.activation_bytes])
            .saturating_add(product(&[step.tokens, streams * architecture.hidden, WIDE]));
        let logits = product(&[2, step.logits, architecture.vocabulary, WIDE]);
        let pooled = blocks.saturating_mul(holding.block as u64);
        Self {
            weights: weights(architecture, holding),
            states: architecture.state_bytes(holding).saturating_mul(sequences as u64),
            caches: architecture.cache_bytes(holding).saturating_mul(pooled),
            workspace: activations.saturating_add(logits),
            recorded: 0,
            capacity,
        }
    }

    /// Adds other buffers of an engine.
    #[must_use]
    pub fn with_extra(mut self, bytes: u64) -> Self {
        self.workspace = self.workspace.saturating_add(bytes);
        self
    }

    /// Adds the captured graphs of an engine.
    #[must_use]
    pub fn with_recorded(self, recorded: u64) -> Self {
        Self { recorded, ..self }
    }

    /// Peak memory, reached in the largest step: loading needs no extra copy of the weights.
    pub fn peak(&self) -> u64 {
        [self.states, self.caches, self.workspace, self.recorded]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }

    /// The sum and its parts, for messages.
    pub fn summary(&self) -> String {
        let [peak, weights, states, caches, workspace] =
            [self.peak(), self.weights, self.states, self.caches, self.workspace].map(byte_count);
        let mut told = format!(
            "{peak}: weights {weights}, states {states}, caches {caches}, workspace {workspace}"
        );
        if self.recorded > 0 {
            told += &format!(", recorded steps {}", byte_count(self.recorded));
        }
        told
    }

    /// Refuses a model that does not fit.
    ///
    /// # Errors
    /// [`ModelTooLarge`] with the required memory by purpose, the free memory, and what to reduce.
    pub fn check_fits(&self, free: &Fact<u64>) -> Result<(), ModelTooLarge> {
        if self.peak() <= free.value {
            return Ok(());
        }
        let Capacity { sequences, tokens } = self.capacity;
        let (needs, left) = (self.summary(), byte_count(free.value));
        let what = format!("the model needs {needs}; {left} are free ({})", free.source);
        let hint = if self.weights > free.value {
            "the weights alone are more than what is free: take --dtype bf16, a smaller model, or a device with more memory".to_owned()
        } else {
            format!(
                "it is for {sequences} x {tokens} tokens: ask for fewer or shorter sequences, or a smaller --chunk; `firstlight ps` shows who has the memory"
            )
        };
        Err(ModelTooLarge { what, hint })
    }
}

/// Bytes of a float32.
const WIDE: usize = size_of::<f32>();

/// Bytes of all weights.
fn weights(architecture: &Architecture, holding: WeightStorage) -> u64 {
    let params = &architecture.params;
    let bytes = |param: &Param| match param.is_matrix() {
        true => param.bytes(holding.weight_bytes, holding.keeps),
        false => (param.len() as u64).saturating_mul(WIDE as u64),
    };
    // A table that is not also the head, and whose rows are read from the files.
    let head = architecture.is_tied() && architecture.ends_here();
    let absent = match head || holding.embedding {
        true => 0,
        false => bytes(params.get(architecture.embedding)),
    };
    // A rank's rows of a tied head are in the embedding, if the rank has that.
    let table = params.get(architecture.embedding);
    let again = |param: &&Param| param.name == table.name && param.cut.is_some();
    let twice = match holding.embedding {
        true => params.iter().filter(again).map(bytes).sum(),
        false => 0,
    };
    let all = params.iter().map(bytes).fold(0, u64::saturating_add);
    all.saturating_sub(absent).saturating_sub(twice)
}

/// Maximum values per token at any point of a layer.
fn widest(layer: &Layer) -> usize {
    let gated = |of: &GatedMlp| of.gate_up.outputs() + of.down.inputs;
    // The experts of a layer are alike.
    let experts = layer.experts.iter().filter_map(|experts| experts.experts.first());
    let gated = experts.chain(&layer.mlp).map(gated).max().unwrap_or(0);
    let latent = layer.experts.iter().filter_map(|experts| experts.latent.as_ref());
    // The narrower vector, and the sum of the experts' outputs.
    let latent = latent.map(|[to, _]| 2 * to.outputs()).max().unwrap_or(0);
    layer.mixer.widest().max(gated + latent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StateType, shape};

    fn of(name: &str, tokens: usize) -> Footprint {
        with(name, tokens, StateType::F32)
    }

    fn with(name: &str, tokens: usize, held: StateType) -> Footprint {
        let architecture = Architecture::of(&shape(name).unwrap()).unwrap();
        let architecture = architecture.with_scan_states(held).unwrap();
        let holding = WeightStorage {
            weight_bytes: 2,
            cache_bytes: 2,
            conv_bytes: 4,
            block: 64,
            spare_blocks: 1,
            state_pools: 1,
            activation_bytes: 2,
            keeps: UnexpandedWeights::Projections,
            embedding: true,
        };
        let capacity = Capacity { sequences: 1, tokens };
        Footprint::new(&architecture, holding, capacity, LargestStep { tokens: 1, logits: 1 })
    }

    #[test]
    fn memory_of_published_models_follows_their_shapes() {
        // Weights in bytes from published counts, states in float32, cache per token.
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
    fn states_in_bfloat16_are_half_but_for_convolutions() {
        let [plain, narrow] =
            [StateType::F32, StateType::Bf16].map(|held| with("granite-4.0-h-micro", 64, held));
        assert_eq!(narrow.states, (36 << 20) + 36 * 4352 * 3 * 4);
        assert_eq!(plain.peak() - narrow.peak(), 36 << 20);
    }

    #[test]
    fn a_model_that_does_not_fit_names_the_setting_to_reduce() {
        let micro = of("granite-4.0-h-micro", 4096);
        assert!(micro.check_fits(&Fact::new(micro.peak(), "meminfo")).is_ok());
        for (free, hint) in [(micro.peak() - 1, "fewer or shorter"), (1 << 30, "weights alone")] {
            let error = micro.check_fits(&Fact::new(free, "meminfo")).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("weights 6.38 GB = 5.95 GiB") && said.ends_with("(meminfo)"),
                "{said}"
            );
            assert!(error.hint.contains(hint), "{error:?}");
        }
    }
}
