"""``flash_attn_func`` and its variants of the package flash-attn (flash_attn_interface.py)."""

from __future__ import annotations

from typing import Any, Optional, Union

from .._types import Array
from ._attention import cached, dense, packed
from ._packed import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _answer(found: Any, probabilities: bool) -> Any:
    """Like flash-attn, returns the output, the log-sum-exp, and None for the dropout probabilities."""
    return (*found, None) if probabilities else found


def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """q ``[B, Tq, H, D]``, k and v ``[B, Tk, Hkv, D]``. Returns o like q. Results are always deterministic."""
    settings = softmax_scale, causal, window_size, softcap, return_attn_probs
    found = dense("flash_attn_func", q, k, v, *settings, dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    return _answer(found, return_attn_probs)


def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Array] = None,
) -> Any:
    """Packed sequences: q ``[total, H, D]``, k and v ``[total_k, Hkv, D]``, offsets int32. With a ``block_table`` ``[B, max_blocks]`` k and v
    are a paged cache ``[blocks, block_size, Hkv, D]``. Nothing is copied from the GPU to the host."""
    offsets = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table
    settings = softmax_scale, causal, window_size, softcap, return_attn_probs
    found = packed("flash_attn_varlen_func", q, k, v, *offsets, *settings, dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    return _answer(found, return_attn_probs)


def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    rotary_cos: Optional[Array] = None,
    rotary_sin: Optional[Array] = None,
    cache_seqlens: Union[int, Array, None] = None,
    cache_batch_idx: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None,
    block_table: Optional[Array] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Array] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """q ``[B, Tq, H, D]`` over a KV cache ``[B, Tk, Hkv, D]`` with ``cache_seqlens`` keys per sequence, or over a paged cache with a
    ``block_table``; ``cache_batch_idx`` ``[B]`` selects rows of a larger cache. New k and v ``[B, T, Hkv, D]`` are first appended to the
    cache; with ``rotary_cos`` and ``rotary_sin`` q and the new k are rotated."""
    rotary = rotary_cos, rotary_sin, rotary_interleaved
    settings = softmax_scale, causal, window_size, softcap, return_softmax_lse
    where = cache_seqlens, cache_batch_idx, block_table
    refused = {"cache_leftpad": cache_leftpad, "alibi_slopes": alibi_slopes}
    return cached("flash_attn_with_kvcache", q, (k_cache, v_cache), (k, v), rotary, *where, *settings, **refused)
