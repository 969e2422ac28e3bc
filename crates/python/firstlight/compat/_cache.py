"""The KV cache of ``flash_attn_with_kvcache``: appends keys and values, with rotary embedding, and selects cache rows.

Nothing is copied from the GPU to the host: positions are tensors.
"""

from __future__ import annotations

from typing import Any, Union

from .._types import Array


def attend(
    attention: Any,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    rotary_cos: Array,
    rotary_sin: Array,
    rotary_interleaved: bool,
    cache_seqlens: Union[int, Array, None],
    cache_batch_idx: Array,
    block_table: Array,
    is_local: Any,
    **settings: Any,
) -> Any:
    """Appends k and v to the cache, then calls ``attention``, which has the signature of ``ops.attention``."""
    if isinstance(cache_seqlens, int):
        cache_seqlens = q.new_full((q.shape[0],), cache_seqlens).int()
    if cache_batch_idx is not None and block_table is not None:
        raise ValueError("`cache_batch_idx` and a table of pages exclude each other")
    if (k is None) != (v is None):
        raise ValueError("`k` and `v` come together")
    if rotary_cos is not None and k is None:
        raise ValueError("`rotary_cos` needs `k` and `v`: keys of the cache are rotated already")
    if k is not None:
        if cache_seqlens is None:
            raise ValueError("`k` and `v` need `cache_seqlens`: the positions after which they are written")
        positions = cache_seqlens.long()[:, None]
        new = positions + _count(k.shape[1], k)
        if rotary_cos is not None:
            at = positions + _count(q.shape[1], q) if is_local else positions.expand(-1, q.shape[1])
            q = _rotated(q, rotary_cos, rotary_sin, at, rotary_interleaved)
            k = _rotated(k, rotary_cos, rotary_sin, new, rotary_interleaved)
        rows = _count(q.shape[0], q) if cache_batch_idx is None else cache_batch_idx.long()
        rows = rows[:, None].expand_as(new)
        if block_table is not None:
            size = k_cache.shape[1]
            rows, new = block_table.long().gather(1, new // size), new % size
        k_cache[rows, new] = k.to(k_cache.dtype)
        v_cache[rows, new] = v.to(v_cache.dtype)
        cache_seqlens = cache_seqlens + k.shape[1]
    if cache_batch_idx is not None:
        # Each row of the cache is treated as one page, and each sequence has one page.
        block_table = cache_batch_idx.int()[:, None]
        if cache_seqlens is None:
            cache_seqlens = q.new_full((q.shape[0],), k_cache.shape[1]).int()
    return attention(q, k_cache, v_cache, cache_seqlens=cache_seqlens, block_table=block_table, **settings)


def _count(number, like):
    import torch

    return torch.arange(number, device=like.device)


def _rotated(x, cos, sin, positions, interleaved):
    """Rotary embedding of the first channels of x ``[B, T, H, D]`` at positions ``[B, T]``: rotates adjacent pairs (``interleaved``) or
    pairs of the two halves."""
    width = 2 * cos.shape[-1]
    cos, sin = (one.float()[positions][:, :, None] for one in (cos, sin))
    turned, kept = x[..., :width].float(), x[..., width:]
    if interleaved:
        one, other = turned[..., 0::2], turned[..., 1::2]
    else:
        one, other = turned.chunk(2, -1)
    pair = one * cos - other * sin, one * sin + other * cos
    import torch

    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((turned.to(x.dtype), kept), -1)
