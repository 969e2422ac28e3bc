//! Builds an [`Architecture`] while a config is read.

use crate::params::Params;
use crate::{Architecture, Config, ConfigError, Layer, ShardRank, StateType, TensorShapes};

/// The parameters so far, and the first known reason why no engine runs the model.
///
/// A config without a key that determines sizes is an error. If only the arithmetic needs the missing key, the model is
/// described and marked as not runnable, because its sizes are requested more often than it is run.
#[derive(Debug, Default)]
pub(crate) struct ArchitectureBuilder {
    pub(crate) params: Params,
    /// Substrings of the names of tensors that no layer reads.
    pub(crate) unused: &'static [&'static str],
    refused: Option<ConfigError>,
}

/// Names and options of the tensors outside of layers.
pub(crate) struct OuterTensors {
    pub(crate) embedding: String,
    pub(crate) norm: String,
    /// Whether the head is tied to the embedding by default.
    pub(crate) tied: bool,
}

impl OuterTensors {
    /// Llama's names.
    pub(crate) fn llama() -> Self {
        Self::with_prefix("model", "norm")
    }

    /// Llama's names with another prefix and another name of the final norm.
    pub(crate) fn with_prefix(prefix: &str, norm: &str) -> Self {
        Self {
            embedding: format!("{prefix}.embed_tokens.weight"),
            norm: format!("{prefix}.{norm}.weight"),
            tied: false,
        }
    }
}

/// Context length of a model without a KV cache, whose recurrence has no limit: engines count tokens in blocks, whose
/// number must be finite.
const UNLIMITED: usize = 1 << 20;

impl ArchitectureBuilder {
    /// A builder whose parameters have a checkpoint's names.
    pub(crate) fn of(tensors: TensorShapes) -> Self {
        Self { params: Params::of(tensors), ..Self::default() }
    }

    /// Records why no engine runs the model; only the first reason is kept.
    pub(crate) fn refuse(&mut self, reason: ConfigError) {
        self.refused.get_or_insert(reason);
    }

    /// A value that only the arithmetic needs; if it cannot be read, records the reason and returns `otherwise`.
    pub(crate) fn need<T>(&mut self, read: Result<T, ConfigError>, otherwise: T) -> T {
        read.unwrap_or_else(|reason| {
            self.refuse(reason);
            otherwise
        })
    }

    /// A required number of the arithmetic; NaN if it is missing, which makes every result NaN.
    pub(crate) fn number(&mut self, config: &Config, key: &str) -> f64 {
        self.need(config.number(key), f64::NAN)
    }

    /// Number of experts per token.
    pub(crate) fn per_token(&mut self, config: &Config, keys: &[&str], count: usize) -> usize {
        let key = config.present_key(keys);
        let per_token = self.need(config.count(key), 1);
        if per_token > count {
            self.refuse(config.wrong(key, format!("at most the {count} experts")));
        }
        per_token
    }

    /// Builds the model: embedding, layers, final norm and head.
    pub(crate) fn model(
        mut self,
        config: &Config,
        outer: OuterTensors,
        layers: impl FnOnce(&mut Self) -> Result<Vec<Layer>, ConfigError>,
    ) -> Result<Architecture, ConfigError> {
        const CONTEXT: &[&str] = &["max_position_embeddings", "model_max_length"];
        let hidden = config.count(config.present_key(&["hidden_size", "d_model", "n_embd"]))?;
        let ids = config.count("vocab_size")?;
        // The first Mamba configs give the vocabulary without its padding.
        let vocabulary =
            ids.next_multiple_of(config.count_or("pad_vocab_size_multiple", 1)?.max(1));
        let embed = self.params.projection(outer.embedding, vocabulary, hidden);
        let embedding = embed.rows[0].param;
        let layers = layers(&mut self)?;
        let context = match layers.iter().any(|layer| layer.mixer.cached() > 0) {
            true => self.need(config.count(config.present_key(CONTEXT)), usize::MAX),
            false => config.count_or(config.present_key(CONTEXT), UNLIMITED)?,
        };
        let norm = self.params.norm(outer.norm, hidden);
        const TIED: &str = "tie_word_embeddings";
        // Many multimodal models do not say so, and have no head.
        let tied = match config.outer_flag(TIED)? {
            Some(tied) => tied,
            None => self.params.lacks("lm_head.weight") || config.flag_or(TIED, outer.tied)?,
        };
        let head = match tied {
            true => embed,
            false => self.params.head(vocabulary, hidden),
        };
        Ok(Architecture {
            place: ShardRank::WHOLE,
            stage: ShardRank::WHOLE,
            scan_states: StateType::default(),
            family: "",
            hidden,
            vocabulary,
            context,
            eps: self.number(
                config,
                config.present_key(&["rms_norm_eps", "layer_norm_epsilon", "norm_eps"]),
            ),
            embedding,
            embedding_multiplier: 1.0,
            residual_multiplier: 1.0,
            layers,
            norm,
            head,
            logits_divisor: 1.0,
            logits_softcap: None,
            params: self.params,
            unused: self.unused,
            refused: self.refused,
        })
    }
}
