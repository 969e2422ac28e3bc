"""Shared by the functions of flash-attn 2 and 3: rejects unsupported arguments and calls ``ops.attention``. ``refused`` has unsupported
arguments by name, each of which must be unset (None, 0 or False)."""

from __future__ import annotations

from typing import Any

from .. import ops
from . import unsupported
from ._cache import attend


def _settings(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, return_lse: Any) -> dict[str, Any]:
    return {"scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap, "return_lse": return_lse}


def dense(function: str, q: Any, k: Any, v: Any, *settings: Any, **refused: Any) -> Any:
    """Attention over sequences of equal lengths. ``settings`` are ``softmax_scale``, ``causal``, ``window_size``, ``softcap`` and whether to
    return the log-sum-exp."""
    _refuse(function, refused)
    return ops.attention(q, k, v, **_settings(*settings))


def packed(function: str, q: Any, k: Any, v: Any, offsets: Any, offsets_k: Any, longest: Any, longest_k: Any, table: Any, *settings: Any, **refused: Any) -> Any:
    """Attention over packed sequences, with the settings of ``dense``; over a paged cache if there is a ``table``."""
    _refuse(function, refused)
    if table is None:
        keys = {"cu_seqlens_k": None if offsets_k is offsets else offsets_k}
    else:
        keys = {"cache_seqlens": offsets_k[1:] - offsets_k[:-1], "block_table": table}
    return ops.attention(q, k, v, cu_seqlens=offsets, max_seqlen=longest, max_seqlen_k=longest_k, **keys, **_settings(*settings))


def cached(function: str, q: Any, caches: Any, new: Any, rotary: Any, lengths: Any, rows: Any, table: Any, *settings: Any, **refused: Any) -> Any:
    """Attention over a KV cache, to which the ``new`` keys and values are appended first, with the settings of ``dense``. ``rotary`` has
    cosines, sines and whether the rotated pairs are adjacent channels."""
    _refuse(function, refused)
    given = _settings(*settings)
    is_local = given["causal"] or tuple(given["window"]) != (-1, -1)
    return attend(ops.attention, q, *caches, *new, *rotary, lengths, rows, table, is_local, **given)


def _refuse(function: str, refused: dict[str, Any]) -> None:
    unsupported(function, **{name: value is not None and not (isinstance(value, (bool, int, float)) and not value) for name, value in refused.items()})
