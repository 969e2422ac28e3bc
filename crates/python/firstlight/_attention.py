"""Attention as models of transformers call it, and the masks that they hand over to it."""

import weakref

from . import ops
from ._counts import fell, ran
from ._library import Refused


def mask(batch_size, kv_length, q_length=None, q_offset=0, cache_position=None, kv_offset=0, mask_function=None, attention_mask=None, **kwargs):
    """What ``attention`` is to know of the keys, as transformers asks for masks: None where each is seen up to its query, ``[B, Tk]`` where
    some are padding, and for a static cache, which has room for more keys than there are, how many are in use: int32 ``[B, 1, 1, 1]``, on
    the device, so that nobody waits for it and a recorded graph reads it anew. Whatever says more is a mask ``[B, 1, Tq, Tk]``."""
    from transformers.masking_utils import causal_mask_function, flash_attention_mask, sdpa_mask

    given = {"batch_size": batch_size, "kv_length": kv_length, "kv_offset": kv_offset, "attention_mask": attention_mask}
    if cache_position is not None:
        # transformers 4, which does not tell a static cache from another one: after the prompt each is taken for one.
        q_length, used = cache_position.shape[0], cache_position[-1] + 1
        given["cache_position"] = cache_position
        static = q_length != kv_length
    else:
        used = q_offset + q_length
        given.update(q_length=q_length, q_offset=q_offset, device=kwargs.get("device", "cpu"))
        static = not isinstance(used, int) or used != kv_offset + kv_length
    # Sequences behind each other, images among the text: no window, and no mask for a single query of a compiled step.
    plain = mask_function is causal_mask_function
    special = not plain and (kwargs.get("use_vmap", False) or q_length > 1 and not kwargs.get("allow_is_causal_skip", True))
    if not static and not special:
        return flash_attention_mask(**given)
    padded = attention_mask is not None and not bool(attention_mask.all())
    if special or padded or not plain:
        settings = {name: value for name, value in kwargs.items() if name not in ("config", "dtype", "device")}
        return sdpa_mask(**{**given, **settings, "mask_function": mask_function, "allow_is_causal_skip": False})
    import torch

    device = given.get("device") or cache_position.device
    used = used if isinstance(used, torch.Tensor) else torch.tensor(used)
    return used.to(device, torch.int32).expand(batch_size).reshape(batch_size, 1, 1, 1).contiguous()


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Attention as transformers calls it: query ``[B, H, T, D]``, key and value ``[B, Hkv, Tk, D]``; o ``[B, T, H, D]``. A mask is what
    ``mask`` gives, or ``[B, 1, Tq, Tk]`` of older models; one that is more than padding runs by torch."""
    if dropout and module.training:
        raise NotImplementedError("firstlight's attention has no dropout")
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = kwargs.get("sliding_window")
    settings = {
        "causal": causal,
        "scale": scaling,
        "softcap": kwargs.get("softcap"),
        "window": (-1 if window is None else window - 1, -1),
    }
    offsets = kwargs.get("cu_seq_lens_q")
    padded, used = False, None
    try:
        if offsets is not None:
            # They say more than any mask.
            attention_mask = None
        if attention_mask is not None and not attention_mask.dtype.is_floating_point and attention_mask.dtype.itemsize == 4:
            used, attention_mask = attention_mask.flatten(), None
        if attention_mask is not None:
            if attention_mask.dim() == 4:
                attention_mask = _padding(attention_mask, q.shape[1], k.shape[1], causal)
            padded = not bool(attention_mask.all())
        if padded:
            found = _without_padding(q, k, v, attention_mask, settings)
        elif offsets is not None:
            found = _packed(q, k, v, offsets, kwargs, settings)
        else:
            found = ops.attention(q, k, v, cache_seqlens=used, **settings)
    except (Refused, NotImplementedError) as why:
        if offsets is not None:
            raise
        fell("attention", str(why))
        whole = attention_mask is not None and attention_mask.dim() == 4
        return _by_torch(query, key, value, attention_mask if padded or whole else None, settings, used), None
    ran("attention")
    return found, None


_LAST_MASK = None


def _padding(mask, queries, keys, causal):
    """Which keys ``[B, Tk]`` are no padding, of a mask over queries and keys: True or 0 where a key is seen. The layers of a model hand
    over the same mask, so the last answer is kept."""
    global _LAST_MASK
    key = (mask._version, queries, keys, causal)
    if _LAST_MASK is not None and _LAST_MASK[0]() is mask and _LAST_MASK[1] == key:
        return _LAST_MASK[2]
    import torch

    seen = mask[:, 0, :, :keys]
    seen = seen if seen.dtype == torch.bool else seen == 0
    # The last query sees all that is there.
    kept = seen[:, -1]
    wanted = torch.ones_like(seen) if not causal else torch.ones_like(seen).tril(keys - queries)
    # Rows of queries that are padding say nothing: they see all or none. Others see what came before them in another sequence.
    rows = kept[:, keys - queries :, None] if queries <= keys else kept.new_ones(1, 1, 1)
    rows = rows | (seen != seen[:, :, :1]).any(-1, keepdim=True)
    # Queries are the last tokens, which see themselves, but in a static cache, which goes on behind them.
    if mask.shape[1] != 1 or bool(((seen != (wanted & kept[:, None])) & rows).any()) or not bool(kept[:, -1].all()):
        raise NotImplementedError("an attention mask that is more than padding")
    _LAST_MASK = weakref.ref(mask), key, kept
    return kept


def _packed(q, k, v, offsets, kwargs, settings):
    offsets_k = kwargs.get("cu_seq_lens_k")
    return ops.attention(
        q.squeeze(0),
        k.squeeze(0),
        v.squeeze(0),
        cu_seqlens=offsets,
        max_seqlen=int(kwargs["max_length_q"]),
        cu_seqlens_k=None if offsets_k is offsets else offsets_k,
        max_seqlen_k=int(kwargs["max_length_k"]),
        **settings,
    ).unsqueeze(0)


def _by_torch(query, key, value, mask, settings, used=None):
    """The same by torch's own attention; a softcap has none there. Of a static cache's keys so many are in ``used``."""
    import torch

    if settings["softcap"]:
        raise NotImplementedError("torch's attention has no softcap")
    heads, queries, keys = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    key, value = (x.repeat_interleave(heads, dim=1) for x in (key, value))
    at = torch.arange(queries, device=query.device)[:, None] - queries + (keys if used is None else used[:, None, None, None])
    before = at - torch.arange(keys, device=query.device)
    seen = before >= 0 if settings["causal"] else torch.ones_like(before, dtype=torch.bool)
    if used is not None:
        seen = seen & (torch.arange(keys, device=query.device) < used[:, None, None, None])
    if settings["window"][0] >= 0:
        seen = seen & (before <= settings["window"][0])
    if mask is not None and mask.dim() == 4:
        seen = mask[..., :keys] if mask.dtype == torch.bool else mask[..., :keys].to(query.dtype)
    elif mask is not None:
        # What is padding sees itself, for a row without any key has no softmax.
        seen = (seen & mask.bool()[:, None, None, :]) | (before == 0)
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=settings["scale"])
    return found.transpose(1, 2).contiguous()


def _without_padding(q, k, v, mask, settings):
    """Tokens that are no padding, packed; what is padding gives 0."""
    import torch

    seen = mask.bool()
    queries = seen[:, seen.shape[1] - q.shape[1] :]

    def packed(x, kept):
        lengths = kept.sum(1)
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        return x[kept], offsets, int(lengths.max())

    (q_, offsets, most), (k_, offsets_k, most_k), (v_, _, _) = packed(q, queries), packed(k, seen), packed(v, seen)
    o = ops.attention(
        q_,
        k_,
        v_,
        cu_seqlens=offsets,
        max_seqlen=most,
        cu_seqlens_k=offsets_k,
        max_seqlen_k=most_k,
        **settings,
    )
    found = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    found[queries] = o
    return found
