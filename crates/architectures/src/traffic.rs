//! Minimum memory traffic of a decoding step: the limit that its speed is compared with.

use crate::layers::{Experts, GatedMlp};
use crate::params::Projection;
use crate::{Architecture, Mixer, UnexpandedWeights};
use std::collections::HashMap;

impl Architecture {
    /// Weights that one token uses: all except experts it is not routed to, and the embedding, of which it reads a row,
    /// unless it is also the head.
    pub fn weights_per_token(&self) -> u64 {
        self.weights_per_step(1)
    }

    /// Weights read by a step of one token for each of `sequences` sequences. Experts are assumed to be chosen
    /// uniformly and independently: of E experts, k per token, S tokens leave `E (1 - k/E)^S` unused.
    pub fn weights_per_step(&self, sequences: usize) -> u64 {
        let idle = |experts: &Experts| {
            let all: usize = experts.experts.iter().map(weights).sum();
            let passed = experts.per_token as f64 / experts.router.outputs() as f64;
            (all as f64 * (1.0 - passed).powf(sequences as f64)).round() as u64
        };
        let idle: u64 =
            self.layers.iter().filter_map(|layer| layer.experts.as_ref()).map(idle).sum();
        let embedding =
            if self.is_tied() { 0 } else { self.params.get(self.embedding).len() as u64 };
        self.params.count() - idle - embedding
    }

    /// [`Self::weights_per_step`] in bytes, given the bytes of unquantized values.
    pub fn weight_bytes_per_step(
        &self,
        value_bytes: usize,
        keeps: UnexpandedWeights,
        sequences: usize,
    ) -> u64 {
        let mut passed = HashMap::new();
        for experts in self.layers.iter().filter_map(|layer| layer.experts.as_ref()) {
            let chosen = experts.per_token as f64 / experts.experts.len() as f64;
            let read = 1.0 - (1.0 - chosen).powf(sequences as f64);
            let of =
                experts.experts.iter().flat_map(|of| of.gate_up.rows.iter().chain(&of.down.rows));
            passed.extend(of.map(|rows| (rows.param, read)));
        }
        let saved = self.params.with_ids().map(|(id, param)| {
            let wide = param.bytes(value_bytes, UnexpandedWeights::Nothing);
            let saved = wide.saturating_sub(param.bytes(value_bytes, keeps));
            (saved as f64 * passed.get(&id).unwrap_or(&1.0)).round() as u64
        });
        let saved: u64 = saved.sum();
        self.weights_per_step(sequences) * value_bytes as u64 - saved
    }

    /// Minimum bytes moved by a step of one token for each sequence, given the tokens before it: weights once, each
    /// sequence's states read and written, and its cache read. Activations stay in on-chip caches. Unquantized weights
    /// and caches have the given bytes per value; states four, or fewer for scan states of another type.
    pub fn decode_bytes(
        &self,
        value_bytes: usize,
        keeps: UnexpandedWeights,
        sequences: usize,
        tokens: usize,
    ) -> u64 {
        let mixers = || self.layers.iter().map(|layer| &layer.mixer);
        let convolved = |mixer: &Mixer| mixer.states().convolved * size_of::<f32>() as u64;
        let states: u64 =
            mixers().map(|mixer| self.recurrent_bytes(mixer) + convolved(mixer)).sum();
        let cached: usize = mixers().map(Mixer::cached).sum();
        let of_sequence = 2 * states + (cached * tokens * value_bytes) as u64;
        self.weight_bytes_per_step(value_bytes, keeps, sequences) + sequences as u64 * of_sequence
    }
}

fn weights(of: &GatedMlp) -> usize {
    let size = |projection: &Projection| projection.outputs() * projection.inputs;
    size(&of.gate_up) + size(&of.down)
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, UnexpandedWeights, shape};

    fn of(name: &str) -> Architecture {
        Architecture::of(&shape(name).unwrap()).unwrap()
    }

    #[test]
    fn a_step_moves_weights_states_and_cache() {
        let micro = of("granite-4.0-h-micro");
        let bytes = |sequences, tokens| {
            micro.decode_bytes(2, UnexpandedWeights::Nothing, sequences, tokens)
        };
        // 36 Mamba layers of 64 heads of 64 channels, state 128, 4 taps over 4352 channels; 4 attention layers with 8
        // heads of 64 channels, each with a key and a value.
        let states = 36 * 2 * 4 * (64 * 64 * 128 + 4352 * 3);
        let cached = 4 * 2 * 8 * 64 * 2;
        assert_eq!(bytes(1, 0), 2 * micro.params.count() + states);
        assert_eq!(bytes(3, 1000) - bytes(0, 0), 3 * (states + 1000 * cached));
        // 7 layers of latent attention cache 512 + 64 values per token, once for keys and values.
        let kimi = of("kimi-linear-48b-a3b");
        let bytes = |tokens| kimi.decode_bytes(2, UnexpandedWeights::Nothing, 1, tokens);
        assert_eq!(bytes(1000) - bytes(0), 1000 * 7 * 576 * 2);
        // 20 KDA layers: 32 heads of 128 by 128, and 3 earlier taps over 3 x 4096 channels.
        let states = 20 * 2 * 4 * (32 * 128 * 128 + 3 * 4096 * 3);
        assert_eq!(bytes(0), 2 * kimi.weights_per_token() + states);
    }

    #[test]
    fn more_sequences_read_more_experts() {
        let tiny = of("granite-4.0-h-tiny");
        let weights = |sequences| tiny.weights_per_step(sequences);
        assert!(weights(1) < weights(2) && weights(2) < 2 * weights(1));
        assert_eq!(weights(10_000), tiny.params.count());
        assert_eq!(weights(1), tiny.weights_per_token());
    }
}
