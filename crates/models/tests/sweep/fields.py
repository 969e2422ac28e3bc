"""Changes and removes each key of a config: a change of transformers' logits must change firstlight's the same way, or be refused."""

import copy
import json

import torch
from logits import ROUNDING, distance, firstlight, logits
from tiny import MAX_PARAMETERS, _draw

# Keys that determine the class and the type of its weights.
NAMES = ("architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "auto_map", "quantization_config")
WORDS = ("silu", "gelu", "relu", "gelu_pytorch_tanh", "relu2", "sigmoid", "softmax", "rope", "nope", "sqrtsoftplus", "auto")
ROTATIONS = (
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.2},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    {"partial_rotary_factor": 0.5},
    {"rope_theta": 500.0},
)


def _values(key, value):
    """Other values for a key."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [other for other in (value * 2, value + 1, 0, 1) if other != value]
    if isinstance(value, float):
        return [value * 1.5 + 0.25, 0.0]
    if value is None:
        return [2, 0.5, True]
    if isinstance(value, str):
        return [word for word in WORDS if word != value]
    if isinstance(value, list) and value and all(isinstance(one, (str, int, float)) for one in value):
        others = [value[::-1], value[:1] * len(value)]
        if isinstance(value[0], float):
            others.append([one * 1.5 + 0.25 for one in value])
        return [other for other in others if other != value]
    if value == []:
        return [[0], [1]]
    if isinstance(value, dict) and key in ("rope_parameters", "rope_scaling"):
        return [{**value, **more} for more in ROTATIONS]
    return []


def _places(config, before=()):
    for key, value in config.items():
        if key in NAMES or key.endswith("_token_id") or key in ("vision_config", "audio_config"):
            continue
        yield (*before, key), value
        if isinstance(value, dict):
            yield from _places(value, (*before, key))


def _variants(config):
    for place, value in _places(config):
        for other in [..., *_values(place[-1], value)]:
            variant = copy.deepcopy(config)
            inside = variant
            for key in place[:-1]:
                inside = inside[key]
            if other is ...:
                del inside[place[-1]]
                yield f"without `{'.'.join(place)}`", variant
            else:
                inside[place[-1]] = other
                yield f"`{'.'.join(place)}` = {json.dumps(other)}", variant


def changes(program, model, config, folder, before):
    """The verdict of each change that transformers accepts."""
    for change, variant in _variants(config):
        try:
            changed = type(model.config).from_dict(copy.deepcopy(variant))
            with torch.device("meta"):
                count = sum(value.numel() for value in type(model)._from_config(copy.deepcopy(changed)).parameters())
            if count > MAX_PARAMETERS / 10:
                continue
            torch.manual_seed(0)
            other = type(model)._from_config(changed)
            _draw(other.float())
            wanted, ids = logits(other)
            for file in folder.iterdir():
                file.unlink()
            other.save_pretrained(folder)
            if not bool(torch.isfinite(wanted).all()):
                continue
        except Exception:  # transformers rejects the change, or cannot run the model
            continue
        # The config without the defaults that transformers would add when saving it.
        (folder / "config.json").write_text(json.dumps(variant))
        found, verdict, words = firstlight(program, folder, ids)
        matters = wanted.shape != before.shape or not torch.equal(wanted, before)
        if not verdict:
            off = distance(found, wanted)
            verdict, words = ("equal" if off <= ROUNDING else "wrong"), f"{off:.1e}"
        yield {"change": change, "verdict": verdict, "words": words, "matters": matters}
