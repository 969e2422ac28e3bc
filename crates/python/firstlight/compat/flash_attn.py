"""``flash_attn_func`` and its kin of the package flash-attn (flash_attn_interface.py)."""

from .. import ops
from . import unsupported

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def _answer(found, probabilities):
    """Theirs gives the log-sum-exp and no probabilities (dropout's) behind the output."""
    return (*found, None) if probabilities else found


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q ``[B, Tq, H, D]``, k and v ``[B, Tk, Hkv, D]``: o like q. Results are the same each time, whatever ``deterministic`` says."""
    unsupported("flash_attn_func", dropout_p=dropout_p, alibi_slopes=alibi_slopes is not None)
    found = ops.attention(
        q,
        k,
        v,
        causal=causal,
        scale=softmax_scale,
        softcap=softcap,
        window=window_size,
        return_lse=return_attn_probs,
    )
    return _answer(found, return_attn_probs)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """Packed sequences: q ``[total, H, D]``, k and v ``[total_k, Hkv, D]``, offsets int32. Nothing is read back from the GPU."""
    unsupported(
        "flash_attn_varlen_func",
        dropout_p=dropout_p,
        alibi_slopes=alibi_slopes is not None,
        block_table=block_table is not None,
    )
    found = ops.attention(
        q,
        k,
        v,
        causal=causal,
        scale=softmax_scale,
        softcap=softcap,
        window=window_size,
        cu_seqlens=cu_seqlens_q,
        max_seqlen=max_seqlen_q,
        cu_seqlens_k=None if cu_seqlens_k is cu_seqlens_q else cu_seqlens_k,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_attn_probs,
    )
    return _answer(found, return_attn_probs)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """q ``[B, Tq, H, D]`` against a cache ``[B, Tk, Hkv, D]`` or pages of it, of which each sequence has ``cache_seqlens`` keys."""
    unsupported(
        "flash_attn_with_kvcache",
        k=k is not None,
        v=v is not None,
        rotary_cos=rotary_cos is not None,
        rotary_sin=rotary_sin is not None,
        cache_batch_idx=cache_batch_idx is not None,
        cache_leftpad=cache_leftpad is not None,
        alibi_slopes=alibi_slopes is not None,
    )
    if isinstance(cache_seqlens, int):
        cache_seqlens = q.new_full((q.shape[0],), cache_seqlens).int()
    return ops.attention(
        q,
        k_cache,
        v_cache,
        causal=causal,
        scale=softmax_scale,
        softcap=softcap,
        window=window_size,
        cache_seqlens=cache_seqlens,
        block_table=block_table,
        return_lse=return_softmax_lse,
    )
