"""The functions of flash-attn 3's ``flash_attn_interface`` (hopper/flash_attn_interface.py)."""

from __future__ import annotations

from typing import Any, Optional, Union

from .._types import Array
from ._attention import cached, dense, packed

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_qkvpacked_func(
    qkv: Any,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: Any = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Any = None,
    sm_margin: Any = 0,
    return_attn_probs: bool = False,
) -> Any:
    """qkv ``[B, T, 3, H, D]``, or ``[B, T, H + 2 Hkv, D]`` with ``num_heads_q`` = H. Returns o ``[B, T, H, D]``."""
    if len(qkv.shape) == 5:
        q, k, v = qkv.unbind(-3)
    else:
        if num_heads_q is None:
            raise ValueError("qkv with four dimensions needs `num_heads_q`")
        heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads, heads], -2)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: Any = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Any = None,
    deterministic: bool = False,
    sm_margin: Any = 0,
    return_attn_probs: bool = False,
) -> Any:
    """q ``[B, Tq, H, D]``, k and v ``[B, Tk, Hkv, D]``. Returns o like q, and with ``return_attn_probs`` the log-sum-exp. ``num_splits``,
    ``pack_gqa``, ``deterministic`` and ``sm_margin`` are ignored; results are always deterministic."""
    settings = softmax_scale, causal, window_size, softcap, return_attn_probs
    refused = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "attention_chunk": attention_chunk}
    return dense("flash_attn_func", q, k, v, *settings, **refused)


def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: Any = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Any = None,
    deterministic: bool = False,
    sm_margin: Any = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Packed sequences: q ``[total, H, D]``, k and v ``[total_k, Hkv, D]``, offsets int32."""
    offsets = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, None
    settings = softmax_scale, causal, window_size, softcap, return_attn_probs
    refused = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "attention_chunk": attention_chunk}
    return packed("flash_attn_varlen_func", q, k, v, *offsets, *settings, seqused_q=seqused_q, seqused_k=seqused_k, **refused)


def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Optional[Array] = None,
    v: Optional[Array] = None,
    qv: Any = None,
    rotary_cos: Optional[Array] = None,
    rotary_sin: Optional[Array] = None,
    cache_seqlens: Union[int, Array, None] = None,
    cache_batch_idx: Optional[Array] = None,
    cache_leftpad: Optional[Array] = None,
    page_table: Any = None,
    cu_seqlens_q: Optional[Array] = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: Any = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: Any = None,
    sm_margin: Any = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """q ``[B, Tq, H, D]`` over a KV cache ``[B, Tk, Hkv, D]``, or over a paged cache ``[blocks, block_size, Hkv, D]`` with a ``page_table``,
    with ``cache_seqlens`` keys per sequence. New k and v ``[B, T, Hkv, D]`` are first appended to the cache; with ``rotary_cos`` and
    ``rotary_sin`` q and the new k are rotated. Returns o, and with ``return_softmax_lse`` the log-sum-exp."""
    rotary = rotary_cos, rotary_sin, rotary_interleaved
    settings = softmax_scale, causal, window_size, softcap, return_softmax_lse
    where = cache_seqlens, cache_batch_idx, page_table
    refused = {"qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "attention_chunk": attention_chunk}
    refused.update(cache_leftpad=cache_leftpad, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens)
    return cached("flash_attn_with_kvcache", q, (k_cache, v_cache), (k, v), rotary, *where, *settings, **refused)
