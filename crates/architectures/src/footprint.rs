//! What a model takes of a device's memory, counted before any of it is taken.

use crate::architecture::product;
use crate::layers::GatedMlp;
use crate::params::Param;
use crate::{Architecture, Layer, Mixer, States};
use facts::{Fact, byte_count};

/// What is made room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens of each, prompt and continuation; one sequence may take what others leave.
    pub tokens: usize,
}

/// How a model is held: by an engine of firstlight on its device, or by Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Bytes of a projection's weight: more than was asked for where the device multiplies nothing narrower.
    pub weight_bytes: usize,
    /// Bytes of a cached key or value.
    pub cache_bytes: usize,
    /// Bytes of what a convolution remembers of an input.
    pub conv_bytes: usize,
    /// Tokens of a block of the cache.
    pub block: usize,
    /// Blocks beside those of the sequences.
    pub spare_blocks: usize,
    /// Pools of recurrent states: two where a step writes one while it reads the other.
    pub state_pools: usize,
    /// Bytes of a value between two kernels; the residual stream is float32 everywhere.
    pub activation_bytes: usize,
    /// What stays as narrow as it is stored.
    pub keeps: Keeps,
    /// Whether the embedding lies on the device, or its rows are read from the files.
    pub embedding: bool,
}

/// What an engine keeps as narrow as its checkpoint stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Projections and experts that kernels read as they are, as GPUs do.
    Projections,
    /// Whatever is in integers but for matrices of heads, as the processor does.
    Integers,
}

/// The largest step of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargestStep {
    /// Tokens, of all sequences.
    pub tokens: usize,
    /// Tokens whose logits are wanted.
    pub logits: usize,
}

/// Bytes of a device's memory that a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Weights.
    pub weights: u64,
    /// Recurrent states of all sequences.
    pub states: u64,
    /// Keys and values, or their latent form.
    pub caches: u64,
    /// Activations and logits of the largest step, and what an engine works with beside them.
    pub workspace: u64,
    /// Recorded steps and what they share, at most.
    pub recorded: u64,
    capacity: Capacity,
}

/// A model that is larger than what is free.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DoesNotFit {
    /// What is needed and for what, and what is free.
    pub what: String,
    /// What to reduce.
    pub hint: String,
}

impl Architecture {
    /// Bytes of one sequence's states, whatever its length.
    pub fn state_bytes(&self, holding: Holding) -> u64 {
        let bytes = |mixer: &Mixer| {
            let convolved = mixer.states().convolved.saturating_mul(holding.conv_bytes as u64);
            self.recurrent_bytes(mixer).saturating_add(convolved)
        };
        let layers = self.layers.iter().map(|layer| bytes(&layer.mixer));
        layers.fold(0, u64::saturating_add).saturating_mul(holding.state_pools as u64)
    }

    /// Tokens of which as many values are cached as one sequence's states have; none where nothing is cached.
    pub fn state_tokens(&self) -> u64 {
        let values = |States { recurrent, convolved }: States| recurrent.saturating_add(convolved);
        let states = self.layers.iter().map(|layer| values(layer.mixer.states()));
        let cached: usize = self.layers.iter().map(|layer| layer.mixer.cached()).sum();
        states.fold(0, u64::saturating_add).checked_div(cached as u64).unwrap_or(0)
    }

    /// Bytes that are cached of one token.
    pub fn cache_bytes(&self, holding: Holding) -> u64 {
        let values = self.layers.iter().map(|layer| layer.mixer.cached()).sum();
        product(&[values, holding.cache_bytes])
    }
}

impl Footprint {
    /// What is taken for a model.
    pub fn new(
        architecture: &Architecture,
        holding: Holding,
        capacity: Capacity,
        step: LargestStep,
    ) -> Self {
        let Capacity { sequences, tokens } = capacity;
        let blocks = product(&[sequences, tokens.div_ceil(holding.block)])
            .saturating_add(holding.spare_blocks as u64);
        let rows = architecture.layers.iter().map(widest).max().unwrap_or(0);
        // Of a part of a model what it adds lies beside the stream until the ranks' sum is there, and so do zeros to add it to.
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

    /// The same with so many bytes more that an engine works with.
    #[must_use]
    pub fn with_extra(mut self, bytes: u64) -> Self {
        self.workspace = self.workspace.saturating_add(bytes);
        self
    }

    /// The same with so many bytes for steps that an engine records.
    #[must_use]
    pub fn with_recorded(self, recorded: u64) -> Self {
        Self { recorded, ..self }
    }

    /// The most that is taken at once, in the largest step: what is read of the weights goes to where it stays.
    pub fn peak(&self) -> u64 {
        [self.states, self.caches, self.workspace, self.recorded]
            .into_iter()
            .fold(self.weights, u64::saturating_add)
    }

    /// The sum and what it is for, in words.
    pub fn told(&self) -> String {
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

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// [`DoesNotFit`] with what is needed and for what, what is free, and what to reduce.
    pub fn hold_against(&self, free: &Fact<u64>) -> Result<(), DoesNotFit> {
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
        Err(DoesNotFit { what, hint })
    }
}

/// Bytes of a float32.
const WIDE: usize = size_of::<f32>();

/// Bytes of all weights.
fn weights(architecture: &Architecture, holding: Holding) -> u64 {
    let params = &architecture.params;
    let bytes = |param: &Param| match param.is_matrix() {
        true => param.bytes(holding.weight_bytes, holding.keeps),
        false => (param.len() as u64).saturating_mul(WIDE as u64),
    };
    // A table that is no head too, and whose rows are read from the files.
    let head = architecture.is_tied() && architecture.ends_here();
    let absent = match head || holding.embedding {
        true => 0,
        false => bytes(params.get(architecture.embedding)),
    };
    // A rank's rows of a head that is the embedding lie in the embedding, where that is.
    let table = params.get(architecture.embedding);
    let again = |param: &&Param| param.name == table.name && param.cut.is_some();
    let twice = match holding.embedding {
        true => params.iter().filter(again).map(bytes).sum(),
        false => 0,
    };
    let all = params.iter().map(bytes).fold(0, u64::saturating_add);
    all.saturating_sub(absent).saturating_sub(twice)
}

/// Values that a layer has of a token where it has the most.
fn widest(layer: &Layer) -> usize {
    let gated = |of: &GatedMlp| of.gate_up.outputs() + of.down.inputs;
    // The experts of a layer are alike.
    let experts = layer.experts.iter().filter_map(|experts| experts.experts.first());
    let gated = experts.chain(&layer.mlp).map(gated).max().unwrap_or(0);
    let latent = layer.experts.iter().filter_map(|experts| experts.latent.as_ref());
    // The narrower vector, and the sum of what is made of it.
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
        let holding = Holding {
            weight_bytes: 2,
            cache_bytes: 2,
            conv_bytes: 4,
            block: 64,
            spare_blocks: 1,
            state_pools: 1,
            activation_bytes: 2,
            keeps: Keeps::Projections,
            embedding: true,
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
    fn states_in_bfloat16_are_half_but_for_convolutions() {
        let [plain, narrow] =
            [StateType::F32, StateType::Bf16].map(|held| with("granite-4.0-h-micro", 64, held));
        assert_eq!(narrow.states, (36 << 20) + 36 * 4352 * 3 * 4);
        assert_eq!(plain.peak() - narrow.peak(), 36 << 20);
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
            assert!(error.hint.contains(hint), "{error:?}");
        }
    }
}
