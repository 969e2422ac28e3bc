"""Attention masks of transformers: creates the mask of a model, and derives the pattern of a mask from its values.

A mask is one of

- None: causal if the module is causal, otherwise every key. In eager attention None always means every key;
- int8 ``[B, Tk]``: padding mask, causal; uint8: padding mask, not causal; other types: causal if the module is;
- int16 ``[1, 1, 1, W]``: causal with a sliding window of W keys, encoded in the shape only; W = Tk is plain causal;
- int32 ``[B, 1, 1, 1]``: for a static cache, the number of keys in use, which a CUDA graph reads at each replay;
- ``[B, 1, Tq, Tk]``: the mask of transformers' SDPA (bool) or eager attention (additive), whose values are examined once per forward pass.

Only models that support flash attention get the short forms, because they pass masks through without reading them.
"""

import inspect
import sys
import weakref
from dataclasses import dataclass

from . import _original


def mask(batch_size, kv_length, q_length=None, q_offset=0, cache_position=None, kv_offset=0, mask_function=None, attention_mask=None, **kwargs):
    """The mask of a forward pass, with the signature of transformers' mask interface."""
    from transformers.masking_utils import causal_mask_function, flash_attention_mask

    given = {"batch_size": batch_size, "kv_length": kv_length, "kv_offset": kv_offset, "attention_mask": attention_mask}
    if cache_position is not None:
        # transformers 4 does not distinguish static caches: any cache with more keys than queries is treated as static.
        q_length, used = cache_position.shape[0], cache_position[-1] + 1
        given["cache_position"] = cache_position
        static = q_length != kv_length
    else:
        used = q_offset + q_length
        given.update(q_length=q_length, q_offset=q_offset, device=kwargs.get("device", "cpu"))
        static = not isinstance(used, int) or used != kv_offset + kv_length

    def whole():
        return _original.mask(kwargs.get("config"), {**kwargs, **given, "mask_function": mask_function})

    if kwargs.get("use_vmap", False) or not _original.passes_masks_through(kwargs.get("config")):
        return whole()
    plain, compiling = mask_function is causal_mask_function, _compiling()
    both = not plain and mask_function is _bidirectional()
    window = kwargs.get("local_size")
    device = given.get("device") or cache_position.device
    eager = _original.implementation(kwargs["config"]) == "eager"
    if not plain and not compiling and attention_mask is None and not static and _is_window(mask_function, window):
        return _marker(min(window, kv_length), device) if eager or kv_length > window else None
    # Models that combine masks forbid skipping them. Eager attention is causal only by its mask.
    skip = kwargs.get("allow_is_causal_skip", True) if plain else kwargs.get("allow_is_bidirectional_skip", True)
    if not (plain or both) or (attention_mask is not None and (compiling or eager)) or (both and eager):
        return whole()
    if not skip and (both or q_length > 1 or not static):
        return whole()
    if eager and not static:
        return _marker(kv_length, device)
    if not static or both:
        import torch

        found = flash_attention_mask(**given)
        return found if found is None else found.to(torch.int8 if plain else torch.uint8)
    if attention_mask is not None and not bool(attention_mask.all()):
        return whole()
    import torch

    used = used if isinstance(used, torch.Tensor) else torch.tensor(used)
    return used.to(device, torch.int32).expand(batch_size).reshape(batch_size, 1, 1, 1).contiguous()


def _compiling():
    import torch

    return torch.compiler.is_compiling() if hasattr(torch.compiler, "is_compiling") else torch._dynamo.is_compiling()


def _bidirectional():
    # transformers 4 does not have it.
    return getattr(sys.modules["transformers.masking_utils"], "bidirectional_mask_function", None)


def _is_window(function, window):
    """Whether a mask function is transformers' causal sliding window of this size: it has the same code and closure values."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    return isinstance(window, int) and _same(function, sliding_window_causal_mask_function(window))


def _same(one, other):
    if not inspect.isfunction(one) or not inspect.isfunction(other):
        return type(one) is type(other) and isinstance(one, (int, tuple)) and _same_values(one, other)
    cells, others = one.__closure__ or (), other.__closure__ or ()
    if one.__code__ is not other.__code__ or len(cells) != len(others):
        return False
    return all(_same(cell.cell_contents, wanted.cell_contents) for cell, wanted in zip(cells, others))


def _same_values(one, other):
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_same(value, wanted) for value, wanted in zip(one, other))
    return one == other


def _marker(window, device):
    import torch

    return torch.zeros(1, 1, 1, 1, dtype=torch.int16, device=device).expand(1, 1, 1, window)


@dataclass
class Pattern:
    """The keys that each query sees: every key that is not padding (``causal`` False), or those up to the query within a window.

    ``used`` is the number of keys in use of a static cache. ``keys`` is the range of keys, if not all are seen. For packed sequences
    ``rows`` and ``columns`` are the indices of the queries and keys that are not padding in the flattened batch, and ``offsets`` and
    ``longest`` describe the sequences.
    """

    causal: bool
    window: int = -1
    used: object = None
    keys: tuple = None
    rows: object = None
    columns: object = None
    offsets: tuple = ()
    longest: tuple = ()


UNTRACEABLE = "the values of an attention mask are not known while torch traces"


def is_untraceable(mask):
    """Whether the pattern depends on mask values that are unknown during tracing."""
    import torch

    if mask is None or not isinstance(mask, torch.Tensor) or mask.dtype in (torch.int16, torch.int32):
        return False
    return _compiling() or type(mask) not in (torch.Tensor, torch.nn.Parameter)


_PATTERNS = []
MAX_PATTERNS = 4


def pattern(mask, batch, queries, keys, causal):
    """The pattern of a mask in any form. The last few patterns are cached, because layers share masks: a mask on a GPU is copied to the
    host once per forward pass. Raises NotImplementedError with the reason if no pattern fits."""
    import torch

    if mask is None:
        return Pattern(causal and queries > 1)
    if not isinstance(mask, torch.Tensor):
        mask = _block_mask(mask, queries, keys)
    if mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[1:] == (1, 1, 1):
        return Pattern(True, used=mask.flatten())
    if mask.dtype == torch.int16:
        return Pattern(queries > 1 or mask.shape[-1] < keys, mask.shape[-1] - 1 if mask.shape[-1] < keys else -1)
    if is_untraceable(mask):
        raise NotImplementedError(UNTRACEABLE)
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("an attention mask cannot be read while a CUDA graph is captured")
    base = mask if mask._base is None else mask._base
    key = (mask._version, mask.data_ptr(), mask.shape, mask.stride(), batch, queries, keys, causal)
    for reference, known, found in _PATTERNS:
        if known == key and reference() is base:
            if isinstance(found, str):
                raise NotImplementedError(found)
            return found
    try:
        with torch.no_grad():
            found = _of_padding(mask, batch, queries, keys, causal) if mask.dim() == 2 else _of_values(mask, batch, queries, keys)
    except NotImplementedError as why:
        _remember(base, key, str(why))
        raise
    _remember(base, key, found)
    return found


def _remember(base, key, found):
    _PATTERNS.append((weakref.ref(base), key, found))
    del _PATTERNS[:-MAX_PATTERNS]


def forget():
    """Drops the cached patterns."""
    _PATTERNS.clear()


def _block_mask(mask, queries, keys):
    """Converts FlexAttention's BlockMask to a mask over queries and keys."""
    function = getattr(mask, "mask_mod", None)
    if function is None:
        raise NotImplementedError(f"an attention mask of type {type(mask).__name__}")
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = mask.shape[:2]
    return create_mask(function, batch, heads, queries, keys, device=mask.kv_indices.device)


def seen_of(mask):
    """A mask over queries and keys as bool, True for visible keys, and whether an additive mask has no bias."""
    import torch

    if mask.dtype == torch.bool:
        return mask, mask.new_ones((), dtype=torch.bool)
    if not mask.dtype.is_floating_point:
        raise NotImplementedError(f"an attention mask of {mask.dtype}")
    seen = mask == 0
    return seen, (seen | (mask <= torch.finfo(mask.dtype).min / 2)).all()


def is_causal(mask, otherwise):
    """Whether a padding mask is causal; ``otherwise`` for types that do not encode it."""
    return {"torch.int8": True, "torch.uint8": False}.get(str(mask.dtype), otherwise)


def _of_padding(mask, batch, queries, keys, causal):
    if mask.shape[1] != keys:
        raise NotImplementedError(f"a padding mask of {mask.shape[1]} tokens for {keys} keys")
    real = mask.bool().expand(batch, keys)
    if not is_causal(mask, causal):
        return _of_keys(real, queries)
    if queries > keys:
        raise NotImplementedError("a causal mask of more queries than keys")
    starts = _new_sequences(real[:, keys - queries :])
    return _packed(real[:, keys - queries :], real, starts, True, -1)


def _new_sequences(real):
    """Marks the first token of each row that is not padding."""
    return real & (real.cumsum(1) == 1)


def _of_keys(real, queries):
    """The pattern if all queries of a row see the same keys."""
    import torch

    batch, keys = real.shape
    count, at = real.sum(1), torch.arange(keys, device=real.device)
    first = torch.where(real, at, keys).amin(1)
    last = torch.where(real, at, -1).amax(1)
    one_range = (first == first[0]).all() & (last == last[0]).all() & (count == last - first + 1).all()
    fits, start, end, fewest = torch.stack([one_range.long(), first[0], last[0] + 1, count.amin()]).tolist()
    if fits and fewest:
        return Pattern(False, keys=None if (start, end) == (0, keys) else (start, end))
    return _packed(real.new_ones(batch, queries), real, _new_sequences(real.new_ones(batch, queries)), False, -1)


def _keys_in_use(seen):
    """The number of keys in use of a mask ``[B, Tq, Tk]``. A static cache has unused keys after the last query's key, which no query sees.
    If queries see their own keys at the end, there are no unused keys."""
    import torch

    queries, keys = seen.shape[1:]
    own = seen.diagonal(keys - queries, 1, 2).any()
    last = torch.where(seen.any(1).any(0), torch.arange(keys, device=seen.device), -1).amax()
    own, last = torch.stack([own.long(), last]).tolist()
    return keys if own else max(last + 1, queries)


def _of_values(mask, batch, queries, keys):
    """The pattern of a mask ``[B, H, Tq, Tk]``, from its values."""
    import torch

    if mask.dim() != 4 or mask.shape[-1] < keys:
        raise NotImplementedError(f"an attention mask of shape {list(mask.shape)}")
    if mask.shape[1] != 1:
        raise NotImplementedError("an attention mask for each head")
    seen, exact = seen_of(mask[..., :keys])
    seen = seen[:, 0].expand(batch, queries, keys)
    if queries == 1:
        if not bool(exact):
            raise NotImplementedError("an additive attention mask with a bias")
        return _of_keys(seen[:, 0], 1)
    same = (seen == seen[:, :1]).all()
    if queries > keys:
        if not bool(exact & same):
            raise NotImplementedError("an attention mask that is neither padding nor causal, of more queries than keys")
        return _of_keys(seen[:, 0], queries)
    ahead = keys - queries
    used = _keys_in_use(seen) if ahead else keys
    if used < keys:
        found = _of_values(mask[..., :used], batch, queries, used)
        found.keys = found.keys or (0, used)
        return found
    row, column = torch.arange(queries, device=seen.device) + ahead, torch.arange(keys, device=seen.device)
    # A padding query does not see itself. A key in the cache is padding if no query sees it.
    real_rows = seen.diagonal(ahead, 1, 2)
    real = torch.cat([(seen[..., :ahead] & real_rows[..., None]).any(1), real_rows], 1)
    first = torch.where(seen, column, keys).amin(2)
    wanted = real[:, None] & (column <= row[:, None]) & (column >= first[..., None])
    causal = ((seen == wanted) | ~real_rows[..., None]).all()
    # Packed sequences: a query's first key is that of the query before it, or its own.
    reach = torch.where(real_rows, row - first + 1, 0)
    before = torch.cat([first[:, :1], torch.where(real_rows, first, -1).cummax(1).values[:, :-1]], 1)
    starts = real_rows & ((first == row) | (real_rows.cumsum(1) == 1))
    sequences = (starts | (first == before) | ~real_rows).all()
    # A window: the first visible key is the first one that is not padding, or the window's first. Padding must be at the ends, so that
    # packing preserves distances.
    window = reach.amax()
    lowest = torch.where(real, column, keys).amin(1, keepdim=True)
    slides = ((first == torch.maximum(lowest, row - window + 1)) | ~real_rows).all()
    count = real.sum(1, keepdim=True)
    slides &= (torch.where(real, column, -1).amax(1, keepdim=True) - lowest + 1 == count).all()
    numbers = torch.stack([one.long() for one in (exact, same, causal, sequences, slides, window, real.all(), (count > 0).all(), starts.sum())])
    exact, same, causal, sequences, slides, window, no_padding, some, number = numbers.tolist()
    if not exact:
        raise NotImplementedError("an additive attention mask with a bias")
    if same and not causal:
        return _of_keys(seen[:, 0], queries)
    if not causal:
        raise NotImplementedError("an attention mask that is neither causal, windowed, packed nor padding")
    if sequences:
        if no_padding and number == batch:
            return Pattern(True)
        return _packed(real_rows, real, starts, True, -1)
    if not slides:
        raise NotImplementedError("an attention mask that is neither causal, windowed, packed nor padding")
    if no_padding:
        return Pattern(True, window - 1)
    return _packed(real_rows, real, real_rows & (real_rows.cumsum(1) == 1), True, window - 1)


def _packed(rows, columns, starts, causal, window):
    """The pattern of packed sequences that begin at ``starts``, without padding. Keys before the first query belong to its sequence."""
    import torch

    ahead = columns.shape[1] - rows.shape[1]
    sequence = starts.flatten().cumsum(0).reshape(starts.shape)
    if causal:
        lead = sequence[:, :1].clamp(min=1).expand(-1, ahead)
        # If the first query of a row is padding, the row's keys in the cache belong to its first sequence.
        lead = torch.where(starts[:, :1], lead, sequence[:, :1] + 1)[:, :ahead] if ahead else lead
        owner = torch.cat([lead, sequence], 1)
    else:
        owner = sequence[:, :1].expand(columns.shape)
    index, index_k = rows.flatten().nonzero().squeeze(1), columns.flatten().nonzero().squeeze(1)
    number = int(sequence.max())
    lengths = torch.bincount(sequence.flatten()[index], minlength=number + 1)[1 : number + 1]
    lengths_k = torch.bincount(owner.flatten()[index_k], minlength=number + 1)[1 : number + 1]
    ends = [torch.nn.functional.pad(one.cumsum(0), (1, 0)).int() for one in (lengths, lengths_k)]
    longest, longest_k = torch.stack([lengths.max(), lengths_k.max()]).tolist() if number else (0, 0)
    if not longest or not longest_k:
        raise NotImplementedError("an attention mask by which no query sees a key")
    return Pattern(causal, window, rows=index, columns=index_k, offsets=tuple(ends), longest=(longest, longest_k))
