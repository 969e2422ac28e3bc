//! An architecture in the making.

use crate::params::Params;
use crate::{Architecture, Config, ConfigError, Layer, Place, StateType, TensorShapes};

/// The parameters so far, and why no engine runs the model, where one reason is known.
///
/// What a config leaves open about sizes is an error. What it leaves open about arithmetic is noted: the sizes of a model
/// are asked for more often than the model is run.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) params: Params,
    /// Parts of the names of tensors that checkpoints have and no layer reads.
    pub(crate) unused: &'static [&'static str],
    refused: Option<ConfigError>,
}

/// What stands around the layers.
pub(crate) struct Around {
    pub(crate) embedding: String,
    pub(crate) norm: String,
    /// Whether the head is the embedding where the config does not say.
    pub(crate) tied: bool,
}

impl Around {
    /// Under Llama's names.
    pub(crate) fn model() -> Self {
        Self::under("model", "norm")
    }

    /// Under a prefix, with the last norm's own name.
    pub(crate) fn under(prefix: &str, norm: &str) -> Self {
        Self {
            embedding: format!("{prefix}.embed_tokens.weight"),
            norm: format!("{prefix}.{norm}.weight"),
            tied: false,
        }
    }
}

/// The context of a model that caches nothing, whose states go from token to token without end: engines count every sequence's
/// tokens in blocks all the same, whose number wants a limit.
const UNLIMITED: usize = 1 << 20;

impl Draft {
    /// One whose parameters get the names that a checkpoint has.
    pub(crate) fn of(tensors: TensorShapes) -> Self {
        Self { params: Params::of(tensors), ..Self::default() }
    }

    /// Notes why no engine runs the model. The first reason stays.
    pub(crate) fn refuse(&mut self, reason: ConfigError) {
        self.refused.get_or_insert(reason);
    }

    /// A value, or what stands for it in a model that no engine runs.
    pub(crate) fn need<T>(&mut self, read: Result<T, ConfigError>, otherwise: T) -> T {
        read.unwrap_or_else(|reason| {
            self.refuse(reason);
            otherwise
        })
    }

    /// A number of the arithmetic. One that is missing is NaN, which no result survives.
    pub(crate) fn number(&mut self, config: &Config, key: &str) -> f64 {
        self.need(config.number(key), f64::NAN)
    }

    /// How many of its experts a token passes.
    pub(crate) fn per_token(&mut self, config: &Config, keys: &[&str], count: usize) -> usize {
        let key = config.spelled(keys);
        let per_token = self.need(config.count(key), 1);
        if per_token > count {
            self.refuse(config.wrong(key, format!("at most the {count} experts")));
        }
        per_token
    }

    /// The whole model around its layers, which are declared between the embedding and the last norm.
    pub(crate) fn model(
        mut self,
        config: &Config,
        around: Around,
        layers: impl FnOnce(&mut Self) -> Result<Vec<Layer>, ConfigError>,
    ) -> Result<Architecture, ConfigError> {
        const CONTEXT: &[&str] = &["max_position_embeddings", "model_max_length"];
        let hidden = config.count(config.spelled(&["hidden_size", "d_model", "n_embd"]))?;
        let ids = config.count("vocab_size")?;
        // Mamba's first configs pad the vocabulary.
        let vocabulary =
            ids.next_multiple_of(config.count_or("pad_vocab_size_multiple", 1)?.max(1));
        let embed = self.params.projection(around.embedding, vocabulary, hidden);
        let embedding = embed.rows[0].param;
        let layers = layers(&mut self)?;
        let context = match layers.iter().any(|layer| layer.mixer.cached() > 0) {
            true => self.need(config.count(config.spelled(CONTEXT)), usize::MAX),
            false => config.count_or(config.spelled(CONTEXT), UNLIMITED)?,
        };
        let norm = self.params.norm(around.norm, hidden);
        let head = match config.outer_flag_or("tie_word_embeddings", around.tied)? {
            true => embed,
            false => self.params.head(vocabulary, hidden),
        };
        Ok(Architecture {
            place: Place::WHOLE,
            stage: Place::WHOLE,
            scan_states: StateType::default(),
            family: "",
            hidden,
            vocabulary,
            context,
            eps: self.number(
                config,
                config.spelled(&["rms_norm_eps", "layer_norm_epsilon", "norm_eps"]),
            ),
            embedding,
            embedding_multiplier: 1.0,
            residual_multiplier: 1.0,
            layers,
            norm,
            head,
            logits_divisor: 1.0,
            params: self.params,
            unused: self.unused,
            refused: self.refused,
        })
    }
}
