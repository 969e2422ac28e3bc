"""Explains the selection of a kernel for a call, and counts calls and launches."""

from __future__ import annotations

import json
import sys
from typing import Any, Iterable, Mapping, Optional, TypedDict, Union

from . import _calls, _library
from ._arrays import library_of
from ._types import Array

Why = TypedDict("Why", {"kernel": str, "not": dict[str, str]})
Why.__doc__ = """The kernel that a call would run, and the reason against each other variant."""


class Status(TypedDict):
    """Counts since the start of the process."""

    calls: dict[str, int]
    copies: dict[str, int]
    refused: dict[str, int]
    launches: dict[str, int]


# Other names of ops: in `firstlight.ops`, in the packages of `firstlight.compat`, and in papers.
_ALIASES = {
    "attn": "attention",
    "flash_attn_func": "attention",
    "flash_attn_varlen_func": "attention",
    "flash_attn_with_kvcache": "attention",
    "scaled_dot_product_attention": "attention",
    "sdpa": "attention",
    "chunk_kda": "kda",
    "fused_recurrent_kda": "kda",
    "kimi_delta_attention": "kda",
    "chunk_gated_delta_rule": "gated_delta",
    "fused_recurrent_gated_delta_rule": "gated_delta",
    "gated_delta_rule": "gated_delta",
    "gated_deltanet": "gated_delta",
    "mamba2": "ssd",
    "mamba_chunk_scan_combined": "ssd",
    "state_space_duality": "ssd",
    "mamba": "selective_scan",
    "selective_scan_fn": "selective_scan",
    "selective_state_update": "selective_scan",
    "causal_conv1d": "conv1d",
    "causal_conv1d_fn": "conv1d",
    "causal_conv1d_update": "conv1d",
    "native_sparse_attention": "nsa",
    "parallel_nsa": "nsa",
    "rms_norm": "rmsnorm",
    "rmsnorm_fn": "rmsnorm",
    "experts": "moe",
    "mixture_of_experts": "moe",
}
# Other names of tensors, in the functions of `firstlight.ops`.
_TENSORS = {"state": "initial_state"}


def op_named(name: str) -> str:
    """The op of a name or an alias, in any case, with dashes or underscores; ValueError with the available names."""
    word = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    word = word.rsplit(".", 1)[-1]
    tables = _library.tables()
    for candidate in (word, _ALIASES.get(word, ""), word.replace("_", "")):
        if candidate in tables:
            return candidate
    raise ValueError(f"no op is named `{name}`: there are {', '.join(sorted(tables))}")


def why(
    name: str,
    settings: Union[Mapping[str, object], Iterable[tuple[str, object]]] = (),
    bounds: Optional[Mapping[str, tuple[int, int]]] = None,
    **given: Any,
) -> Why:
    """The kernel that a call of an op would run, and the reason against each other one: ``{"kernel": ..., "not": {variant: reason}}``.

    ``name`` is an op of ``firstlight.tables()`` or of ``firstlight.ops``, or an alias such as ``"sdpa"`` or ``"mamba_chunk_scan_combined"``.
    Keyword arguments are its tensors and settings by their names in the table. ``bounds`` has, for int32 tensors on a GPU, the largest
    value, or for offsets the longest sequence and the last offset."""
    op = _library.op(op_named(name))
    table = _library.tables()[op.name]
    known = {setting["name"] for setting in table["settings"]}
    options = dict(settings)
    tensors: dict[str, Any] = {}
    for key, value in given.items():
        key = _TENSORS.get(key, key)
        if key in op.inputs:
            tensors[key] = value
        elif key in known:
            options[key] = value
        else:
            raise TypeError(f"{op.name} has no tensor or setting `{key}`: its tensors are {', '.join(op.inputs)}; its settings {', '.join(sorted(known))}")
    missing = [tensor["name"] for tensor in table["inputs"] if tensor["required"] and tensors.get(tensor["name"]) is None]
    if missing:
        raise TypeError(f"`why` needs the tensors of {op.name}: {', '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing")
    first: Array = tensors[next(iter(op.inputs))]
    handle = op.handle(tuple(options.items()))
    kind = library_of(first)
    device = kind.device(first)
    # Like `ops.rms_norm`: each vector of the last dimension is a token with one group.
    insert = ("x", "gate") if op.name == "rmsnorm" and len(first.shape) != 4 else ()
    records = _calls._RecordBuffer(op)
    _calls._write_inputs(op, records, kind, device, tensors, bounds, insert)
    found = _library.library().fl_why(handle, records.address, len(op.inputs), device)
    if found is None:
        raise _library.refused()
    answer: Why = json.loads(found)
    return answer


def status(device: Optional[int] = None) -> Status:
    """Counts in this process: calls of each op that ran, inputs that had to be copied, calls that were refused, and launches of each kernel
    on a device (a GPU's ordinal or -1 for the CPU; by default torch's current GPU, if torch uses one, otherwise the CPU)."""
    if device is None:
        torch = sys.modules.get("torch")
        on_gpu = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        device = torch.cuda.current_device() if torch is not None and on_gpu else -1
    ops = {name: _library.op(name) for name in _library.tables()}
    return {
        "calls": {name: op.calls for name, op in ops.items() if op.calls},
        "copies": dict(_calls._COPIES),
        "refused": {name: op.refused for name, op in ops.items() if op.refused},
        "launches": _library.launches(device),
    }
