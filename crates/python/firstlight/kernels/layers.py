"""Layers for the ``kernels`` package: subclasses of ``torch.nn.Module`` whose ``forward`` replaces that of another module.

The names are those of transformers. Norms read the weight and the epsilon of the module. The others are functions, which transformers
converts to modules. Classes are created on first use, because this file does not import torch.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, Callable

from .. import _mixers, _norms
from .._counts import fell, ran
from .._keywords import known, parameters
from .._library import Refused
from ..compat import causal_conv1d, fla, mamba_ssm

__all__ = ["NAMES", "has_backward"]

# Each norm, and the parameters of its forward pass.
_NORMS = {"RMSNorm": ("hidden_states",), "RMSNormZeroCentered": ("x",), "RMSNormGated": ("hidden_states", "gate")}
# Each function: its implementation, whether it has gradients, and the parameters of transformers' function.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "causal_conv1d_fn": (causal_conv1d.causal_conv1d_fn, True, "hidden_states weight bias activation **kwargs"),
    "causal_conv1d_update": (causal_conv1d.causal_conv1d_update, False, "hidden_states conv_state weight bias activation"),
    "chunk_gated_delta_rule": (
        _mixers.gated_delta_rule,
        False,
        "query key value g beta chunk_size initial_state output_final_state use_qk_l2norm_in_kernel **kwargs",
    ),
    "chunk_kda": (
        fla.chunk_kda,
        False,
        "query key value g beta chunk_size initial_state output_final_state use_qk_l2norm_in_kernel **kwargs",
    ),
    "fused_recurrent_gated_delta_rule": (
        _mixers.gated_delta_rule,
        False,
        "query key value g beta initial_state output_final_state use_qk_l2norm_in_kernel **kwargs",
    ),
    "fused_recurrent_kda": (
        fla.fused_recurrent_kda,
        False,
        "query key value g beta initial_state output_final_state use_qk_l2norm_in_kernel **kwargs",
    ),
    "mamba_chunk_scan_combined": (
        mamba_ssm.mamba_chunk_scan_combined,
        True,
        "hidden_states dt A B C chunk_size D dt_bias initial_states dt_softplus dt_limit return_final_states **kwargs",
    ),
    "selective_scan_fn": (
        _mixers.selective_scan,
        False,
        "hidden_states dt A B C D z delta_bias delta_softplus return_last_state use_mambapy use_associative_scan **kwargs",
    ),
    "selective_state_update": (
        mamba_ssm.selective_state_update,
        False,
        "state hidden_states dt A B C D dt_bias dt_softplus z **kwargs",
    ),
}

NAMES = (*_NORMS, *_FUNCTIONS)


def has_backward(name: str) -> bool:
    """Whether a layer supports gradients."""
    return name in _NORMS or _FUNCTIONS[name][1]


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return _layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _signature(words: tuple[str, ...]) -> inspect.Signature:
    """The signature, whose number and kinds of parameters ``kernels`` compares with the replaced layer."""
    found = []
    for word in ("self", *words):
        kind = inspect.Parameter.VAR_KEYWORD if word.startswith("**") else inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(inspect.Parameter(word.lstrip("*"), kind))
    return inspect.Signature(found)


@lru_cache(maxsize=None)
def _layer(name: str) -> Any:
    import torch

    if name in _NORMS:
        words, forward = _NORMS[name], _norm()
    else:
        ours, _, theirs = _FUNCTIONS[name]
        words, forward = tuple(theirs.split()), _function(name, ours, theirs)
    forward.__signature__ = _signature(words)  # type: ignore[attr-defined]
    about = {"__doc__": f"``{name}`` of transformers on firstlight.", "__module__": __name__}
    return type(name, (torch.nn.Module,), {**about, "forward": forward, "has_backward": has_backward(name), "can_torch_compile": False})


def _norm() -> Callable[..., Any]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        cls = type(self)
        ours = _replacement(cls)
        if ours is None:
            fell(cls.__name__, _norms.OTHER_FORMULA)
            return cls.forward(self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    return forward


@lru_cache(maxsize=None)
def _replacement(cls: Any) -> Any:
    return _norms.replacement(cls.__name__, cls)


def _function(name: str, ours: Callable[..., Any], theirs: str) -> Callable[..., Any]:
    taken = parameters(ours)
    only_theirs = set(theirs.split()) - taken

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = ours(*args, **known(kwargs, taken, only_theirs))
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return type(self).forward(self, *args, **kwargs)
        ran(name)
        return found

    return forward
