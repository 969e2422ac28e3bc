"""Converts ``seq_idx`` of packed sequences to offsets."""

from __future__ import annotations

import weakref
from typing import Any, Optional

_LAST: Optional[tuple[Any, int, Any]] = None


def offsets(seq_idx: Any) -> tuple[Any, int, Any]:
    """From ``seq_idx`` ``[B, T]``, the sequence index of each token: the offsets into the ``B T`` tokens (int32), the length of the longest
    sequence, and the last sequence of each row. A sequence ends if the index changes, and at the end of its row.

    The number of sequences has to be copied from the GPU to the host. The last result is cached, so this happens once for all layers.
    """
    global _LAST
    import torch

    if _LAST is not None and _LAST[0]() is seq_idx and _LAST[1] == seq_idx._version:
        return _LAST[2]
    starts = torch.ones_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    at = torch.nn.functional.pad(starts.flatten().nonzero().flatten(), (0, 1), value=seq_idx.numel())
    found = at.int(), int(at.diff().max()), starts.sum(1).cumsum(0) - 1
    _LAST = weakref.ref(seq_idx), seq_idx._version, found
    return found


def flat(cu_seqlens, *tensors):
    """Removes the first dimension of packed tensors ``[1, total, ...]``; returns tensors without offsets unchanged."""
    return tensors if cu_seqlens is None else tuple(tensor.flatten(0, 1) for tensor in tensors)
