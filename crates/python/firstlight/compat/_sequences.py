"""Sequences that lie behind each other in one row, as ``seq_idx`` says it and as offsets say it."""

from __future__ import annotations

import weakref
from typing import Any, Optional

_LAST: Optional[tuple[Any, int, Any]] = None


def offsets(seq_idx: Any) -> tuple[Any, int, Any]:
    """``seq_idx`` ``[B, T]``, the number of each token's sequence, as offsets into the ``B T`` tokens (int32), the longest sequence, and
    of each row its last sequence. A sequence ends where the number changes, and with its row.

    How many there are has to be read back from a GPU, once for all layers of a model: the last answer is kept.
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
    """Tensors of packed sequences ``[1, total, ...]`` without their first dimension; without offsets as they are."""
    return tensors if cu_seqlens is None else tuple(tensor.flatten(0, 1) for tensor in tensors)
