"""The attention function for models of transformers: firstlight if it supports the whole call, otherwise the model's original attention."""

from . import _masks, _original, ops
from ._counts import fell, ran
from ._library import Refused

# Keywords that this function supports. Any other one matters only if the original attention can read it.
_KNOWN = {"is_causal", "sliding_window", "softcap", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "s_aux", "sinks"}
# Keywords that change the result in any implementation that reads them.
_DECLINED = {
    "alibi",
    "alibi_slopes",
    "attention_bias",
    "attn_bias",
    "bias",
    "block_indices",
    "block_mask",
    "head_mask",
    "indices",
    "layer_head_mask",
    "mask_mod",
    "position_bias",
    "relative_position_bias",
    "score_mod",
}
_SPARSE = ("indices", "block_indices")


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Attention with the signature of transformers: query ``[B, H, T, D]``, key and value ``[B, Hkv, Tk, D]``. Returns o ``[B, T, H, D]``
    and no attention weights. The mask has one of the forms of ``_masks``."""
    for name in _SPARSE:
        if kwargs.get(name) is not None and _original.depends_on_name(type(module)):
            # The mask lacks the sparsity, which transformers includes only in masks for eager attention and SDPA.
            raise ValueError(f'{type(module).__name__} needs attn_implementation="sdpa" or "eager": firstlight has no sparse `{name}`')
    # Reasons known before the call are not raised, because torch.compile of 2.6 cannot trace the handler of such an exception.
    why = _declined(module, attention_mask, dropout, kwargs)
    if why is not None:
        fell("attention", why)
        return _before(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    try:
        found = _ours(module, query, key, value, attention_mask, scaling, kwargs)
    except (Refused, NotImplementedError, TypeError) as why:
        fell("attention", str(why))
        return _before(module, query, key, value, attention_mask, scaling, dropout, kwargs)
    ran("attention")
    return found, None


def _declined(module, mask, dropout, kwargs):
    """The reason why a call does not run on firstlight, as far as it follows from the arguments without tensor values; or None."""
    if dropout and module.training:
        return "attention dropout in training"
    if kwargs.get("cu_seq_lens_q") is None and _masks.is_untraceable(mask):
        return _masks.UNTRACEABLE
    for name, value in kwargs.items():
        if value is None or value is False or name in _KNOWN:
            continue
        if name in _DECLINED or _original.reads(module, name):
            return f"attention with the keyword `{name}`"
    for name in _original.attributes(module):
        if getattr(module, name, None) is not None and not (name == "sinks" and _sinks(kwargs) is not None):
            return f"attention that reads `{name}` of its module"
    return None


def _ours(module, query, key, value, mask, scaling, kwargs):
    sinks = _sinks(kwargs)
    query, key, value = _autocast(query, key, value)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    causal = _is_causal(module, kwargs)
    offsets = kwargs.get("cu_seq_lens_q")
    settings = {"scale": scaling, "softcap": kwargs.get("softcap"), "sinks": sinks}
    if offsets is not None:
        return _packed_by_caller(q, k, v, offsets, kwargs, causal, settings)
    batch, _, queries, _ = query.shape
    if mask is None and queries == 1:
        # A decode step: the query sees every key.
        return ops.attention(q, k, v, **settings)
    eager = _original.attention(module)[1]
    if eager and mask is not None and mask.dim() == 2:
        raise NotImplementedError("a mask with two dimensions for eager attention")
    found = _masks.pattern(mask, batch, queries, k.shape[1], causal and not eager)
    settings.update(causal=found.causal, window=(found.window, -1))
    if found.keys is not None:
        k, v = (x[:, found.keys[0] : found.keys[1]] for x in (k, v))
    if found.rows is None:
        return ops.attention(q, k, v, cache_seqlens=found.used, **settings)
    o = ops.attention(
        q.flatten(0, 1)[found.rows],
        k.flatten(0, 1)[found.columns],
        v.flatten(0, 1)[found.columns],
        cu_seqlens=found.offsets[0],
        cu_seqlens_k=found.offsets[1],
        max_seqlen=found.longest[0],
        max_seqlen_k=found.longest[1],
        **settings,
    )
    # The output of padding queries is 0.
    whole = o.new_zeros(q.shape[0] * q.shape[1], *o.shape[1:]).index_copy(0, found.rows, o)
    return whole.reshape(*q.shape[:2], *o.shape[1:])


def _is_causal(module, kwargs):
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _sinks(kwargs):
    """Attention sinks, one logit per head."""
    for name in ("s_aux", "sinks"):
        if kwargs.get(name) is not None:
            return kwargs[name].flatten()
    return None


def _autocast(query, key, value):
    """Casts the tensors to the autocast type, as torch's attention does."""
    import torch

    kind = query.device.type
    if kind == "cpu":
        on, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype
    else:
        on, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype
    if not on:
        return query, key, value
    return tuple(x.to(dtype()) if x.is_floating_point() else x for x in (query, key, value))


def _packed_by_caller(q, k, v, offsets, kwargs, causal, settings):
    """Attention over sequences packed into one row, with flash attention's offsets. There is no mask: the window is a keyword."""
    offsets_k, window = kwargs.get("cu_seq_lens_k"), kwargs.get("sliding_window")
    return ops.attention(
        q.squeeze(0),
        k.squeeze(0),
        v.squeeze(0),
        cu_seqlens=offsets,
        max_seqlen=int(kwargs["max_length_q"]),
        cu_seqlens_k=None if offsets_k is offsets else offsets_k,
        max_seqlen_k=int(kwargs["max_length_k"]),
        causal=causal,
        window=(-1 if window is None else window - 1, -1),
        **settings,
    ).unsqueeze(0)


def _before(module, query, key, value, mask, scaling, dropout, kwargs):
    """Runs the original attention, with the mask in the form that it takes."""
    function, eager = _original.attention(module)
    mask = _whole_mask(mask, query, key, _is_causal(module, kwargs), kwargs, eager)
    return function(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)


def _whole_mask(mask, query, key, causal, kwargs, eager):
    import torch

    queries, keys, device = query.shape[2], key.shape[2], query.device
    offsets = kwargs.get("cu_seq_lens_q")
    if eager and (mask is None and offsets is None or mask is not None and mask.dim() == 2):
        return mask
    short = mask is None or not isinstance(mask, torch.Tensor) or mask.dim() == 2 or mask.dtype in (torch.int16, torch.int32)
    if not short:
        seen = mask
    elif mask is not None and not isinstance(mask, torch.Tensor):
        seen = _masks._block_mask(mask, queries, keys)
    else:
        if mask is None and offsets is None and (not causal or queries == 1 or queries == keys):
            return None
        if mask is not None:
            causal = mask.dim() == 4 or _masks.is_causal(mask, causal)
        row = torch.arange(queries, device=device)[:, None] + (keys - queries)
        column = torch.arange(keys, device=device)
        used = None
        if mask is not None and mask.dtype == torch.int32:
            used = mask.reshape(-1, 1, 1, 1)
            row = row + (used - keys)
        seen = (column <= row) if causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
        if used is not None:
            seen = seen & (column < used)
        if mask is not None and mask.dtype == torch.int16:
            seen = seen & (row - column < mask.shape[-1])
        if mask is not None and mask.dim() == 2:
            real = torch.nn.functional.pad(mask.bool(), (0, max(keys - mask.shape[1], 0)))[:, :keys]
            # A padding query sees itself, because the softmax of a row without keys is undefined.
            seen = (seen & real[:, None, None, :]) | (column == row)
        if offsets is not None:
            seen = seen & _together(offsets, kwargs.get("cu_seq_lens_k"), queries, keys)
        seen = seen.reshape(-1, 1, queries, keys) if seen.dim() < 4 else seen
    if eager and seen.dtype == torch.bool:
        seen = torch.zeros((), dtype=query.dtype, device=device).masked_fill(~seen, torch.finfo(query.dtype).min)
    return seen


def _together(offsets, offsets_k, queries, keys):
    from ._backward import _sequence_of

    return _sequence_of(offsets, queries)[:, None] == _sequence_of(offsets if offsets_k is None else offsets_k, keys)
