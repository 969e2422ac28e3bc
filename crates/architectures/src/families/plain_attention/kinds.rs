//! How the layers of plain attention models differ, by `model_type`.

use crate::families::ENCODERS;
use crate::layers::ExpertLayout;
use crate::rope::RotaryFraction;
use crate::{Config, ConfigError};

/// How the layers of a `model_type` differ from Llama's.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) multipliers: Multipliers,
    pub(super) norms: Norms,
    /// Whether norms multiply by 1 plus their weights.
    pub(super) norms_add_one: bool,
    /// Key of a value whose inverse root scales q k^T; empty for the channels of a head.
    pub(super) scale: &'static str,
    /// Norms of queries and keys, before the rotation.
    pub(super) qk_norm: QkNorm,
    /// Key and default of the biases of q, k and v, and of the output; constant without a key.
    pub(super) biases: [(&'static str, bool); 2],
    /// Whether q, k and v are one parameter.
    pub(super) fused_qkv: bool,
    pub(super) sinks: bool,
    /// Key of the soft cap of q k^T; empty without one.
    pub(super) softcap: &'static str,
    /// Whether a separate projection `gate_proj` gates the output of attention.
    pub(super) gated: bool,
    pub(super) windows: Windows,
    pub(super) rotated: Rotated,
    pub(super) share: RotaryFraction,
    /// Whether adjacent channels are rotated together instead of channels of both halves.
    pub(super) rotates_pairs: bool,
    pub(super) mlp: Mlp,
    pub(super) routed: Routed,
}

/// Multipliers of the embedding and others.
#[derive(Clone, Copy)]
pub(super) enum Multipliers {
    None,
    /// Granite's, all in the config.
    Granite,
    /// The embedding times the square root of its width if this flag, with its default, is set.
    RootOfWidth(&'static str, bool),
}

/// The position of a layer's norms, and the names of those of the attention and of the feed-forward part.
#[derive(Clone, Copy)]
pub(super) enum Norms {
    Pre([&'static str; 2]),
    Post([&'static str; 2]),
    /// Before and after each part.
    Both([&'static str; 2], [&'static str; 2]),
}

#[derive(Clone, Copy)]
pub(super) enum QkNorm {
    None,
    OfHead,
    /// Over all heads together.
    OfAll,
    /// A norm of each head, if this flag is set.
    Flag(&'static str),
}

/// Layers with a sliding window.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    /// None: the key has no meaning.
    None,
    /// All, if the key is set.
    All,
    /// Those of `layer_types`; without the list this function says so for a layer.
    Listed(fn(&Config, usize) -> Result<bool, ConfigError>),
    /// [`Windows::Listed`] if `use_sliding_window` is set.
    Flag(fn(&Config, usize) -> Result<bool, ConfigError>),
}

/// Layers with rotary embedding.
#[derive(Clone, Copy)]
pub(super) enum Rotated {
    All,
    /// Those that `no_rope_layers` or `no_rope_layer_interval` does not leave out.
    Listed,
    /// All if no layer has a window, otherwise those with one.
    WithWindow,
    /// All, with a base for each in `layer_rope_theta`; 0 is none.
    ByBase,
    /// All; the scaling applies to layers without a window, and either kind may have separate parameters.
    ByWindow,
}

#[derive(Clone, Copy)]
pub(super) enum Mlp {
    Gated,
    /// Gate and up are one parameter.
    Fused,
    /// The square of `max(0, up)`.
    Squared,
    /// Gated by GELU.
    Gelu,
}

/// The feed-forward part of layers with experts.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    pub(super) module: &'static str,
    pub(super) router: &'static str,
    pub(super) layout: ExpertLayout,
    pub(super) score: Score,
    /// Whether a token's experts come from some groups only, as `n_group` and `topk_group` say.
    pub(super) grouped: bool,
    pub(super) shared: Shared,
}

#[derive(Clone, Copy)]
pub(super) enum Score {
    SoftmaxOfChosen,
    /// Softmax over all experts, renormalized if `norm_topk_prob` says so.
    Softmax,
    /// Softmax over all experts, not renormalized.
    SoftmaxOfAll,
    /// Sigmoid with a correction bias of this name and this epsilon of the sum.
    Sigmoid(&'static str, f64),
}

/// Experts that every token uses.
#[derive(Clone, Copy)]
pub(super) enum Shared {
    /// `n_shared_experts` times as wide as a routed one.
    Counted,
    /// Qwen's, with a token gate.
    Gated,
    /// Granite's, with gate and up as one parameter.
    Fused,
}

const PRE_NORMS: [&str; 2] = ["input_layernorm", "post_attention_layernorm"];
const POST_NORMS: [&str; 2] = ["post_attention_layernorm", "post_feedforward_layernorm"];
pub(super) const LLAMA: Kind = Kind {
    multipliers: Multipliers::None,
    norms: Norms::Pre(PRE_NORMS),
    norms_add_one: false,
    scale: "",
    qk_norm: QkNorm::None,
    biases: [("attention_bias", false); 2],
    fused_qkv: false,
    sinks: false,
    softcap: "",
    gated: false,
    windows: Windows::None,
    rotated: Rotated::All,
    share: RotaryFraction::All,
    rotates_pairs: false,
    mlp: Mlp::Gated,
    routed: Routed {
        module: "mlp",
        router: "gate",
        layout: ExpertLayout::Each(["gate_proj", "up_proj", "down_proj"]),
        score: Score::SoftmaxOfChosen,
        grouped: false,
        shared: Shared::Counted,
    },
};
const NEVER: (&str, bool) = ("", false);
const MIXTRAL: Routed = Routed {
    module: "block_sparse_moe",
    layout: ExpertLayout::Each(["w1", "w3", "w2"]),
    ..LLAMA.routed
};
const DEEPSEEK: Routed = Routed {
    score: Score::Sigmoid("gate.e_score_correction_bias", 1e-20),
    grouped: true,
    ..LLAMA.routed
};
const UNGROUPED: Routed =
    Routed { score: Score::Sigmoid("expert_bias", 1e-20), grouped: false, ..DEEPSEEK };
const QWEN_2: Kind =
    Kind { biases: [("", true), NEVER], windows: Windows::Flag(after_first_layers), ..LLAMA };
const QWEN_3: Kind =
    Kind { qk_norm: QkNorm::OfHead, windows: Windows::Flag(after_first_layers), ..LLAMA };
const GRANITE: Kind = Kind { multipliers: Multipliers::Granite, ..LLAMA };
const GRANITE_SWA: Kind = Kind {
    sinks: true,
    windows: Windows::Listed(|_, index| Ok(index % 4 != 0)),
    rotated: Rotated::ByBase,
    ..GRANITE
};
const GRANITE_EXPERTS: Routed = Routed {
    module: "block_sparse_moe",
    router: "router.layer",
    layout: ExpertLayout::Stacked(["input_linear.weight", "output_linear.weight"]),
    shared: Shared::Fused,
    ..LLAMA.routed
};
const OLMO_2: Kind = Kind { norms: Norms::Post(POST_NORMS), qk_norm: QkNorm::OfAll, ..LLAMA };
const GLM: Kind = Kind {
    biases: [("attention_bias", false), NEVER],
    share: RotaryFraction::Named(1.0),
    rotates_pairs: true,
    mlp: Mlp::Fused,
    ..LLAMA
};

const GEMMA: Kind = Kind {
    multipliers: Multipliers::RootOfWidth("", true),
    norms_add_one: true,
    mlp: Mlp::Gelu,
    ..LLAMA
};
const GEMMA_NORMS: Norms = Norms::Both(
    ["input_layernorm", "pre_feedforward_layernorm"],
    ["post_attention_layernorm", "post_feedforward_layernorm"],
);
const EXAONE_MOE: Kind = Kind {
    qk_norm: QkNorm::OfHead,
    biases: [NEVER; 2],
    windows: Windows::Listed(|config, index| {
        let pattern = config.size_or("sliding_window_pattern", 4)?;
        Ok(!(index + 1).is_multiple_of(pattern))
    }),
    rotated: Rotated::WithWindow,
    routed: DEEPSEEK,
    ..LLAMA
};

/// Every `model_type` and its settings.
pub(super) const KINDS: &[(&str, Kind)] = &[
    ("llama", LLAMA),
    ("mistral", Kind { windows: Windows::All, ..LLAMA }),
    ("mixtral", Kind { windows: Windows::All, routed: MIXTRAL, ..LLAMA }),
    ("ministral", Kind { biases: [NEVER; 2], windows: Windows::Listed(|_, _| Ok(true)), ..LLAMA }),
    ("qwen2", QWEN_2),
    ("mimo", QWEN_2),
    (
        "qwen2_moe",
        Kind {
            biases: [("qkv_bias", true), NEVER],
            windows: Windows::Flag(|config, index| {
                Ok(index % 2 == 0 && !after_first_layers(config, index)?)
            }),
            routed: Routed { score: Score::Softmax, shared: Shared::Gated, ..LLAMA.routed },
            ..LLAMA
        },
    ),
    ("qwen3", QWEN_3),
    ("qwen3_vl_text", Kind { windows: Windows::None, ..QWEN_3 }),
    (
        "qwen3_vl_moe_text",
        Kind {
            windows: Windows::None,
            routed: Routed {
                layout: ExpertLayout::Stacked(["experts.gate_up_proj", "experts.down_proj"]),
                ..LLAMA.routed
            },
            ..QWEN_3
        },
    ),
    (
        "qwen3_moe",
        Kind {
            windows: Windows::Flag(|_, _| Ok(true)),
            routed: Routed { score: Score::Softmax, ..LLAMA.routed },
            ..QWEN_3
        },
    ),
    ("dots1", Kind { windows: Windows::Listed(after_first_layers), routed: DEEPSEEK, ..QWEN_3 }),
    (
        "phi3",
        Kind {
            fused_qkv: true,
            windows: Windows::All,
            share: RotaryFraction::Named(1.0),
            mlp: Mlp::Fused,
            ..LLAMA
        },
    ),
    ("granite", GRANITE),
    ("granite_docling_text", GRANITE),
    ("granite_swa", GRANITE_SWA),
    ("granitemoe", Kind { routed: GRANITE_EXPERTS, ..GRANITE }),
    ("granitemoeshared", Kind { routed: GRANITE_EXPERTS, ..GRANITE }),
    ("granitemoe_swa", Kind { routed: GRANITE_EXPERTS, ..GRANITE_SWA }),
    ("arcee", Kind { mlp: Mlp::Squared, ..LLAMA }),
    (
        "smollm3",
        Kind {
            windows: Windows::Listed(|config, index| {
                Ok(config.flag_or("use_sliding_window", false)? && !is_rotated(config, index)?)
            }),
            rotated: Rotated::Listed,
            ..LLAMA
        },
    ),
    ("deepseek_v3", Kind { routed: DEEPSEEK, ..LLAMA }),
    ("kimi_k2", Kind { routed: DEEPSEEK, ..LLAMA }),
    (
        "deepseek_v2",
        Kind { routed: Routed { score: Score::SoftmaxOfAll, ..LLAMA.routed }, ..LLAMA },
    ),
    ("glm4_moe_lite", Kind { routed: DEEPSEEK, ..LLAMA }),
    ("youtu", LLAMA),
    (
        "seed_oss",
        Kind { biases: [("attention_bias", true), ("attention_out_bias", false)], ..LLAMA },
    ),
    (
        "cwm",
        Kind {
            biases: [NEVER; 2],
            windows: Windows::Listed(|_, index| Ok(index % 4 != 0)),
            ..LLAMA
        },
    ),
    ("olmo2", OLMO_2),
    (
        "olmo3",
        Kind {
            windows: Windows::Listed(|_, index| Ok(!(index + 1).is_multiple_of(4))),
            rotated: Rotated::ByWindow,
            ..OLMO_2
        },
    ),
    (
        "olmoe",
        Kind {
            qk_norm: QkNorm::OfAll,
            routed: Routed { score: Score::Softmax, ..LLAMA.routed },
            ..LLAMA
        },
    ),
    ("exaone4", Kind { norms: Norms::Post(POST_NORMS), ..EXAONE_MOE }),
    ("exaone_moe", EXAONE_MOE),
    (
        "afmoe",
        Kind {
            multipliers: Multipliers::RootOfWidth("mup_enabled", false),
            norms: Norms::Both(
                ["input_layernorm", "pre_mlp_layernorm"],
                ["post_attention_layernorm", "post_mlp_layernorm"],
            ),
            qk_norm: QkNorm::OfHead,
            gated: true,
            windows: Windows::Listed(|config, index| {
                let period = config.size_or("global_attn_every_n_layers", 4)?;
                Ok(!(index + 1).is_multiple_of(period))
            }),
            rotated: Rotated::WithWindow,
            routed: UNGROUPED,
            ..LLAMA
        },
    ),
    (
        "mellum",
        Kind {
            windows: Windows::Listed(|_, _| Ok(false)),
            rotated: Rotated::ByWindow,
            routed: Routed { score: Score::Softmax, ..LLAMA.routed },
            ..QWEN_3
        },
    ),
    ("hy_v3", Kind { qk_norm: QkNorm::OfHead, routed: UNGROUPED, ..LLAMA }),
    ("helium", Kind { mlp: Mlp::Gated, share: RotaryFraction::All, ..GLM }),
    ("ernie4_5", Kind { biases: [NEVER; 2], share: RotaryFraction::All, mlp: Mlp::Gated, ..GLM }),
    ("gemma", GEMMA),
    (
        "gemma2",
        Kind {
            scale: "query_pre_attn_scalar",
            norms: GEMMA_NORMS,
            windows: Windows::Listed(|_, index| Ok(index % 2 == 0)),
            softcap: "attn_logit_softcapping",
            ..GEMMA
        },
    ),
    (
        "gemma3_text",
        Kind {
            scale: "query_pre_attn_scalar",
            norms: GEMMA_NORMS,
            qk_norm: QkNorm::OfHead,
            windows: Windows::Listed(|config, index| {
                let pattern = config.size_or("sliding_window_pattern", 6)?;
                Ok(!(index + 1).is_multiple_of(pattern))
            }),
            rotated: Rotated::ByWindow,
            ..GEMMA
        },
    ),
    ("glm", GLM),
    (
        "glm4",
        Kind {
            norms: Norms::Both(PRE_NORMS, ["post_self_attn_layernorm", "post_mlp_layernorm"]),
            ..GLM
        },
    ),
    (
        "glm4_moe",
        Kind {
            qk_norm: QkNorm::Flag("use_qk_norm"),
            rotates_pairs: false,
            mlp: Mlp::Gated,
            routed: DEEPSEEK,
            ..GLM
        },
    ),
    ("solar_open", Kind { biases: [("attention_bias", false), NEVER], routed: DEEPSEEK, ..LLAMA }),
    (
        "minimax_m2",
        Kind {
            qk_norm: QkNorm::OfAll,
            biases: [NEVER; 2],
            share: RotaryFraction::Named(1.0),
            routed: Routed { score: Score::Sigmoid("e_score_correction_bias", 0.0), ..MIXTRAL },
            ..LLAMA
        },
    ),
];

/// The names of [`KINDS`], and a class whose configs may lack a `model_type`.
pub(super) const NAMES: [&str; KINDS.len() + 1] = {
    let mut names = ["LlamaForCausalLM"; KINDS.len() + 1];
    let mut at = 0;
    while at < KINDS.len() {
        names[at] = KINDS[at].0;
        at += 1;
    }
    names
};

/// Tensors that no layer reads; some files of Llama 2 contain a derived one.
pub(super) const UNUSED: [&str; ENCODERS.len() + 3] =
    with_encoders(&["rotary_emb.inv_freq", "mtp.", "mtp_layers."]);

/// [`UNUSED`] and the multi-token-prediction layers of published models, which follow the others.
pub(super) const UNUSED_WITH_MTP: [&str; ENCODERS.len() + 5] = with_encoders(&[
    "model.layers.46.",
    "model.layers.47.",
    "model.layers.61.",
    "model.layers.92.",
    "mtp.",
]);

/// These names and those of encoders.
const fn with_encoders<const N: usize>(own: &[&'static str]) -> [&'static str; N] {
    let (mut names, mut at) = ([""; N], 0);
    while at < N {
        names[at] = if at < own.len() { own[at] } else { ENCODERS[at - own.len()] };
        at += 1;
    }
    names
}

/// Qwen's default: windows after the first layers.
fn after_first_layers(config: &Config, index: usize) -> Result<bool, ConfigError> {
    Ok(index >= config.count_or("max_window_layers", 0)?)
}

/// Whether SmolLM3's config does not leave out the rotation of a layer.
pub(super) fn is_rotated(config: &Config, index: usize) -> Result<bool, ConfigError> {
    const KEY: &str = "no_rope_layers";
    match config.counts(KEY)? {
        Some(flags) => flags.get(index).map_or_else(
            || Err(config.wrong(KEY, "a number for each layer")),
            |flag| Ok(*flag != 0),
        ),
        None => Ok(!(index + 1).is_multiple_of(config.size_or("no_rope_layer_interval", 4)?)),
    }
}
