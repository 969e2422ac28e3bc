"""Tiny random models of all classes of transformers: configurations reduced by the names of their settings, and inputs."""

import copy
import inspect

import torch
import transformers
from families import FAMILIES, merged
from transformers.models.auto import configuration_auto, modeling_auto

# The auto mappings whose classes have text inputs, in the order in which they are tried. The last one adds every base model.
TEXT = ("MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL", "MODEL_FOR_TEXT_ENCODING")
VOCABULARY, TOKENS, TARGET_TOKENS = 200, 19, 17
MAX_PARAMETERS = 60_000_000

# Values of settings by exact name, then by suffix. Widths are multiples of the number of heads.
_EXACT = {
    "vocab_size": VOCABULARY,
    "type_vocab_size": 2,
    "max_position_embeddings": 64,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "n_positions": 64,
    "n_ctx": 64,
    "max_sequence_length": 64,
    "max_seq_len": 64,
    "d_kv": 16,
    "kv_channels": 16,
    "d_ff": 96,
    "d_state": 16,
    "dim": 64,
    "dim_head": 16,
    "n_embd": 64,
    "n_inner": 96,
    "ffn_dim": 96,
    "hidden_dim": 96,
    "d_model": 64,
    "d_inner": 96,
    "d_embed": 64,
    "d_head": 16,
    "emb_dim": 64,
    "embedding_size": 64,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "n_head_kv": 2,
    "num_kv_heads": 2,
    "multi_query_group_num": 2,
    "head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 32,
    "v_head_dim": 16,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "sliding_window": 8,
    "attention_window_size": 8,
    "sliding_window_size": 8,
    "local_attention": 8,
    "window_size": 8,
    "attention_window": 8,
    "local_window_size": 8,
    "attention_chunk_size": 8,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "block_size": 8,
    "state_size": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_n_groups": 1,
    "n_groups": 1,
    "time_step_rank": 8,
    "mamba_dt_rank": 8,
    "linear_num_heads": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "lru_width": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "laurel_rank": 8,
    "num_kv_shared_layers": 0,
    "decoder_start_token_id": 1,
    "rotary_dim": 8,
    "moe_k": 2,
    "use_sliding_window": True,
    "max_window_layers": 1,
}
_ENDS = (
    ("moe_intermediate_size", 48),
    ("intermediate_size", 96),
    ("hidden_size", 64),
    ("_ffn_dim", 96),
    ("num_experts_per_tok", 2),
    ("num_experts_per_token", 2),
    ("experts_per_token", 2),
    ("moe_top_k", 2),
    ("moe_topk", 2),
    ("num_local_experts", 4),
    ("n_routed_experts", 4),
    ("num_routed_experts", 4),
    ("num_experts", 4),
    ("attention_heads", 4),
    ("key_value_heads", 2),
    ("num_hidden_layers", 2),
    ("_layers", 2),
    ("n_layer", 2),
    ("_vocab_size", VOCABULARY),
    ("hidden_dim", 64),
    ("_embed_dim", 64),
    ("_rank", 16),
)
_DROPOUTS = ("dropout", "dropout_rate", "pdrop", "dropout_prob", "drop")
DROPOUT = 0.1


def classes(names=TEXT):
    """The distinct model classes of the auto mappings: ``{class name: (model class, config class)}``."""
    found = {}
    for name in names:
        mapping = getattr(modeling_auto, name + "_MAPPING_NAMES")
        for model_type, models in mapping.items():
            config = configuration_auto.CONFIG_MAPPING_NAMES.get(model_type)
            for model in (models,) if isinstance(models, str) else models:
                found.setdefault(model, config)
    return found


def _value(name, before):
    if isinstance(before, bool):
        return _EXACT.get(name, before) if name == "use_sliding_window" else before
    if isinstance(before, float) or before is None or isinstance(before, int):
        if name.endswith(_DROPOUTS) and isinstance(before, (int, float)):
            return DROPOUT
    if name in ("n_layers", "num_layers", "n_layer", "num_hidden_layers", "depth") and isinstance(before, int):
        return 2
    if isinstance(before, int) or before is None and name in ("sliding_window", "head_dim", "num_key_value_heads", "vocab_size", "n_routed_experts"):
        if name in _EXACT:
            small = _EXACT[name]
            return before if isinstance(before, int) and 0 <= before < small and "token_id" not in name else small
        for end, small in _ENDS:
            if name.endswith(end) and isinstance(before, int):
                return min(before, small) if before > 0 else before
    return before


def _kinds_first(kinds, count):
    """Selects ``count`` entries of a list of layer kinds, covering as many kinds as possible."""
    order = list(dict.fromkeys(kinds)) if all(isinstance(kind, (str, int, bool)) for kind in kinds) else list(kinds)
    return (order + list(kinds))[:count]


def settings(config_class):
    """Arguments of a configuration of this class for a tiny model."""
    family = FAMILIES.get(getattr(config_class, "model_type", None), {})
    try:
        before = config_class()
    except Exception:  # no default configuration
        return dict(family)
    layers = next((getattr(before, name) for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if isinstance(getattr(before, name, None), int)), None)
    found = {}
    for name, value in before.to_dict().items():
        try:
            nested = getattr(before, name, None)
        except Exception:  # a setting per layer
            continue
        if name == "rope_parameters" and isinstance(value, dict) and "mrope_section" in str(value):
            found[name] = _sections(value)
            continue
        if isinstance(nested, transformers.PretrainedConfig):
            found[name] = settings(type(nested))
            continue
        if name == "per_layer_config":  # by layer index, most of which do not exist here
            found[name] = {}
            continue
        if name.startswith("_") or name in ("transformers_version", "model_type", "architectures", "dtype", "torch_dtype", "id2label", "label2id"):
            continue
        if isinstance(value, list) and layers and len(value) == layers:
            found[name] = _kinds_first(value, 2 if len(set(map(str, value))) < 3 else 4)
            continue
        small = _value(name, value)
        if small != value or isinstance(value, (list, dict)) and value:
            found[name] = small
    lists = [len(value) for name, value in found.items() if name in ("layer_types", "layers_block_type", "mlp_layer_types")]
    if lists:
        count = max(lists)
        for name, value in list(found.items()):
            if name.endswith("_layers") or name in ("num_hidden_layers", "n_layer"):
                found[name] = count if value == 2 else value
            elif isinstance(value, list) and len(value) in (2, 4) and name in ("layer_types", "layers_block_type", "mlp_layer_types"):
                found[name] = (value * 2)[:count]
    return merged(found, family)


def _sections(value):
    """Rotary settings whose sections cover half of the heads' 16 channels."""
    if isinstance(value, dict):
        return {name: [2, 3, 3] if name == "mrope_section" else _sections(one) for name, one in value.items()}
    return value


# Settings that some families require to have a layer of each kind, or rotary sections.
_MORE = (
    {"attn_layer_indices": [1]},
    {"attn_layer_period": 2, "attn_layer_offset": 1},
    {"layer_types": ["mamba", "attention"]},
    {"layer_types": ["conv", "full_attention"]},
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}},
    {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
    {"is_decoder": False},
    {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"]},
)


def _attempts(config_class):
    """Settings to try until a model runs."""
    small = settings(config_class)
    family = FAMILIES.get(getattr(config_class, "model_type", None), {})
    without = {name: value for name, value in small.items() if name in family or not isinstance(value, list)}
    try:
        defaults = set(vars(config_class()))
    except Exception:  # no default configuration
        defaults = set()
    for base in (small, without):
        fitting = [{**base, **more} for more in _MORE if all(name in defaults or name in base for name in more)]
        # Without the first settings a model runs, but has no attention layers.
        yield from (one for one in fitting if any(name.startswith("attn_layer") for name in one))
        yield base
        yield from fitting
        yield _everywhere(base, {"num_key_value_heads": 4})
        yield _everywhere(base, {"num_heads": 8})
        yield _drop_in_parts(base, "hidden_size")
        yield _drop(base, lambda name: name.endswith(_DROPOUTS))
        yield _drop(base, lambda name: name in ("head_dim", "sliding_window", "use_sliding_window"))
    yield _drop(without, lambda name: name.endswith(_DROPOUTS) or name in ("head_dim", "num_key_value_heads", "rotary_dim"))


def _everywhere(arguments, changes):
    found = {name: _everywhere(value, changes) if isinstance(value, dict) else changes.get(name, value) for name, value in arguments.items()}
    return found


def _drop(arguments, unwanted):
    kept = {name: value for name, value in arguments.items() if not unwanted(name)}
    return {name: _drop(value, unwanted) if isinstance(value, dict) else value for name, value in kept.items()}


def _drop_in_parts(arguments, unwanted):
    """Without a setting of the parts of a model, which some releases do not have."""
    return {name: _drop(value, lambda name: name == unwanted) if isinstance(value, dict) else value for name, value in arguments.items()}


def make(model_name, config_name, implementation=None):
    """Creates a tiny model in float32, or raises. Weights are large enough for attention to depend on its scores."""
    model_class = getattr(transformers, model_name)
    config_class = getattr(model_class, "config_class", None) or getattr(transformers, config_name)
    failure = None
    for arguments in _attempts(config_class):
        try:
            with torch.device("meta"):
                count = sum(value.numel() for value in model_class._from_config(config_class(**copy.deepcopy(arguments))).parameters())
        except Exception:  # some models compute with values in their constructor
            count = 0
        if count > MAX_PARAMETERS:
            raise ValueError(f"{count} parameters are not tiny")
        try:
            return _made(model_class, config_class, arguments, implementation)
        except Exception as error:  # a class may reject any setting
            failure = failure or error
    raise failure


def _made(model_class, config_class, arguments, implementation):
    torch.manual_seed(0)
    chosen = {"attn_implementation": implementation} if implementation else {}
    # A configuration may remove settings of its sub-configurations from these.
    model = model_class._from_config(config_class(**copy.deepcopy(arguments)), **chosen)
    if hasattr(model, "set_default_language"):
        model.set_default_language(model.config.languages[0])
    _draw(model.float())
    with torch.no_grad():
        model.eval()(**inputs(model)[0], **({"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}))
    return model


def other_inputs(model_name):
    """Inputs of a model's forward pass that are not text."""
    taken = inspect.signature(getattr(transformers, model_name).forward).parameters
    kinds = ("pixel_values", "input_features", "input_values", "grid_thw", "visual_feats", "query_embeds", "images", "audio", "speech")
    return [name for name in taken if name.startswith(kinds)]


def _draw(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not value.is_floating_point() or any(word in name for word in ("A_log", "dt_bias", "dt_proj", "time_", "rg_lru", "recurrent_param")):
                continue
            noise = torch.randn(value.shape, generator=generator)
            if value.dim() >= 2:
                value.copy_(1.2 * noise * value.shape[-1] ** -0.5)
            elif not bool(torch.isfinite(value).all()):
                value.copy_(noise)
            else:
                value.add_(0.1 * noise)
        for name, value in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                value.add_(0.1 * torch.randn(value.shape, generator=generator))


def inputs(model, padding=None):
    """Keyword arguments of a forward pass, and a mask ``[B, T]`` of output tokens that are not padding."""
    taken = inspect.signature(model.forward).parameters
    if model.main_input_name != "input_ids" and "input_ids" not in taken:
        raise ValueError(f"its input is {model.main_input_name}")
    generator = torch.Generator().manual_seed(2)
    try:
        vocabulary = min(VOCABULARY, getattr(model.get_input_embeddings(), "num_embeddings", VOCABULARY))
    except NotImplementedError:
        vocabulary = VOCABULARY
    ids = torch.randint(3, vocabulary, (2, TOKENS), generator=generator)
    given, real = {"input_ids": ids}, torch.ones_like(ids)
    if padding:
        real[0, :5] = padding == "right"
        if padding == "right":
            real[0, -5:] = 0
        given["input_ids"] = torch.where(real.bool(), ids, model.config.get_text_config().pad_token_id or 0)
        given["attention_mask"] = real
    if "bbox" in taken:
        given["bbox"] = torch.tensor([1, 2, 5, 7]).expand(2, TOKENS, 4).contiguous()
    any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    if "decoder_input_ids" in taken or model.config.is_encoder_decoder and any_name:
        given["decoder_input_ids"] = torch.randint(3, vocabulary, (2, TARGET_TOKENS), generator=generator)
        real = torch.ones(2, TARGET_TOKENS, dtype=torch.long)
    return given, real.bool()
