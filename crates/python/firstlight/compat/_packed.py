"""``flash_attn_qkvpacked_func``, ``flash_attn_kvpacked_func`` and their variants for packed sequences, of the package flash-attn."""

from __future__ import annotations

from typing import Any, Optional

from .._types import Array
from . import flash_attn


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """qkv ``[B, T, 3, H, D]``. Returns o ``[B, T, H, D]``."""
    q, k, v = qkv.unbind(-3)
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn.flash_attn_func(q, k, v, *rest)


def flash_attn_kvpacked_func(
    q: Array,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """q ``[B, Tq, H, D]``, kv ``[B, Tk, 2, Hkv, D]``. Returns o like q."""
    k, v = kv.unbind(-3)
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn.flash_attn_func(q, k, v, *rest)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Array,
    max_seqlen: Any,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Array] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """qkv ``[total, 3, H, D]`` with offsets of its sequences (int32). Returns o ``[total, H, D]``."""
    q, k, v = qkv.unbind(-3)
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn.flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *rest)


def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: Any,
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
) -> Any:
    """q ``[total, H, D]``, kv ``[total_k, 2, Hkv, D]`` with offsets of their sequences (int32). Returns o like q."""
    k, v = kv.unbind(-3)
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn.flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *rest)
